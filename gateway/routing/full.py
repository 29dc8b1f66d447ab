"""Endpoints that had no room for a request: each is avoided for a while, as long as another one of its pool is open."""

from __future__ import annotations

from typing import Final

REST: Final = 1.0
"""Seconds for which an endpoint is avoided that did not say for how long it has no room."""
MOST_REST: Final = 10.0
"""However long it said: what it says may be an hour, of a quota that is raised in a minute."""


def note(full: dict[str, float], endpoint: str, retry_after: float | None, now: float) -> None:
    """An endpoint has refused a request. full: until when each endpoint is avoided, in monotonic seconds. retry_after: as it said, in
    seconds."""
    rest = REST if retry_after is None else min(max(REST, retry_after), MOST_REST)
    full[endpoint] = max(now + rest, full.get(endpoint, 0.0))


def avoided(full: dict[str, float], tried: tuple[str, ...], now: float) -> tuple[str, ...]:
    """These endpoints and those that have no room now. Forgets all whose time is over."""
    for endpoint in [name for name, until in full.items() if until <= now]:
        del full[endpoint]
    return (*tried, *[name for name in full if name not in tried])
