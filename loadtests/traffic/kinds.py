"""What an entry of Locust's statistics is, beside the method of a request."""

LIMITED, SHED, BROKEN = "limited", "shed", "broken"
"""Neither failures nor part of the latencies: refused by a limit, refused for want of capacity, a stream that broke off."""
REFUSALS = (LIMITED, SHED, BROKEN)
ACCEPTED = "accepted"
"""A failure of its own: what a revoked key still got."""

TTFT, TPOT, GAP = "TTFT", "TPOT", "GAP"
"""Milliseconds of one stream: to its first token, per token after it, the longest wait between two. Figures, not requests."""
FIGURES = frozenset((TTFT, TPOT, GAP))
