"""What makes a run fail."""

from collections.abc import Mapping
from typing import Any

from loadtests.traffic.kinds import BROKEN, FIGURES, GAP, REFUSALS, SHED, TTFT


def violations(options: Any, entries: Mapping[tuple[str, str], Any]) -> list[str]:
    """Each threshold of the options that the run passed, in words. `entries`: Locust's statistics, by name and kind."""
    requests = [entry for (_, kind), entry in entries.items() if kind not in FIGURES]
    total = sum(entry.num_requests for entry in requests)
    refused = {kind: sum(e.num_requests for (_, k), e in entries.items() if k == kind) for kind in REFUSALS}
    failed = sum(entry.num_failures for entry in requests)
    answered = total - failed - sum(refused.values())
    found = []
    if answered < options.min_requests:
        found.append(f"{answered} requests were answered, at least {options.min_requests} must be")
    bounds = (
        ("failed", failed, options.max_failures),
        ("were shed", refused[SHED], options.max_shed),
        ("broke off", refused[BROKEN], options.max_broken),
    )
    for what, count, most in bounds:
        if total and count / total > most:
            found.append(f"{count} of {total} requests {what} ({count / total:.2%}), at most {most:.2%} may")
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
