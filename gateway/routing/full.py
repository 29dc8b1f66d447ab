"""Endpoints that had no room for a request: each is avoided for a while, as long as another one of its pool is open."""

from __future__ import annotations

from typing import Final, TypeAlias

REST: Final = 1.0
"""Seconds for which an endpoint is avoided that did not say for how long it has no room."""
MOST_REST: Final = 10.0
"""However long it said: what it says may be an hour, of a quota that is raised in a minute."""


Rests: TypeAlias = dict[str, tuple[float, float]]
"""For each endpoint when it last refused a request, and until when it is avoided (monotonic seconds)."""


def note(full: Rests, endpoint: str, retry_after: float | None, now: float) -> None:
    """An endpoint has refused a request. retry_after: as it said, in seconds."""
    rest = REST if retry_after is None else min(max(REST, retry_after), MOST_REST)
    _, until = full.get(endpoint, (now, now))
    full[endpoint] = (now, max(now + rest, until))


def answered(full: Rests, endpoint: str, began: float) -> bool:
    """An endpoint answers a request that began then. True: after its last refusal, so it has room again."""
    found = full.get(endpoint)
    if found is None or found[0] >= began:
        return False
    del full[endpoint]
    return True


def over(full: Rests, now: float) -> bool:
    """Forgets all whose time is over; whether there were any."""
    found = [name for name, (_, until) in full.items() if until <= now]
    for endpoint in found:
        del full[endpoint]
    return bool(found)


def avoided(full: Rests, tried: tuple[str, ...]) -> tuple[str, ...]:
    """These endpoints and those that have no room now."""
    return (*tried, *[name for name in full if name not in tried])
