"""What makes a run fail."""

from collections.abc import Mapping
from typing import Any

from loadtests.traffic.kinds import ACCEPTED, BROKEN, FIGURES, GAP, LIMITED, REFUSALS, SHED, TTFT


def violations(options: Any, entries: Mapping[tuple[str, str], Any], crashes: int = 0) -> list[str]:
    """Each threshold of the options that the run passed, in words. `entries`: Locust's statistics, by name and kind. crashes: exceptions of
    users, whose requests are in no entry.

    What a limit refused is no part of any share: greedy users, who never wait, would make every share small."""
    requests = [entry for (_, kind), entry in entries.items() if kind not in FIGURES]
    refused = {kind: sum(e.num_requests for (_, k), e in entries.items() if k == kind) for kind in (*REFUSALS, ACCEPTED)}
    total = sum(entry.num_requests for entry in requests) - refused[LIMITED]
    failed = sum(entry.num_failures for entry in requests)
    answered = total - failed - refused[SHED] - refused[BROKEN]
    streams = sum(e.num_requests for (name, kind), e in entries.items() if name == "stream" and kind in ("POST", BROKEN))
    revoked = sum(e.num_requests for (name, _), e in entries.items() if name == "chat with a revoked key")
    found = []
    if crashes:
        found.append(f"{crashes} exceptions ended what users did, and are in no other figure")
    if answered < options.min_requests:
        found.append(f"{answered} requests were answered, at least {options.min_requests} must be")
    bounds = (
        ("requests failed", failed, total, options.max_failures),
        ("requests were shed", refused[SHED], total, options.max_shed),
        ("streams broke off", refused[BROKEN], streams, options.max_broken),
        ("revoked keys were accepted", refused[ACCEPTED], revoked, options.max_late),
    )
    for what, count, of, most in bounds:
        if of and count / of > most:
            found.append(f"{count} of {of} {what} ({count / of:.2%}), at most {most:.2%} may")
    for name, kind, most in (
        ("chat", "POST", options.max_p95),
        ("stream", TTFT, options.max_ttft_p95),
        ("stream", GAP, options.max_gap_p95),
    ):
        entry = entries.get((name, kind))
        if most and entry is None:
            found.append(f"p95 of {name} ({kind}) has a threshold and no requests")
        elif most and entry is not None and entry.get_response_time_percentile(0.95) > most:
            found.append(f"p95 of {name} ({kind}) is {entry.get_response_time_percentile(0.95):.0f} ms, at most {most:.0f} is allowed")
    return found
