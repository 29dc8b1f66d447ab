"""The life of one worker as the control process sees it: one table.

    starting ──ready──▶ ready ──drain──▶ draining ──end──▶ gone
        │                 │                  └──die──▶ failed
        ├──drain──▶ draining
        └──die──▶ failed  └──die──▶ failed

`ready`: it has put its state into force and serves. `drain`: it was asked to finish, or the feed to it has ended, upon which it finishes by
itself. `end`: its process has ended in good order after that; `die`: it ended in any other way.
"""

from __future__ import annotations

from typing import Final, Literal

State = Literal["starting", "ready", "draining", "gone", "failed"]
Event = Literal["ready", "drain", "end", "die"]

STATES: Final[tuple[State, ...]] = ("starting", "ready", "draining", "gone", "failed")
TABLE: Final[dict[tuple[State, Event], State]] = {
    ("starting", "ready"): "ready",
    ("starting", "drain"): "draining",
    ("starting", "die"): "failed",
    ("ready", "drain"): "draining",
    ("ready", "die"): "failed",
    ("draining", "end"): "gone",
    ("draining", "die"): "failed",
}
LIVE: Final[frozenset[State]] = frozenset({"starting", "ready"})
"""States in which it belongs to the workers that serve, or soon will."""
QUICK_SECONDS: Final = 10.0
"""A worker that lived for less died quickly."""
QUICK_DEATHS: Final = 5
"""So many in a row are replaced at once."""
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 10.0


def after(state: State, event: Event) -> State:
    """Raises ValueError for an event that the state does not allow."""
    following = TABLE.get((state, event))
    if following is None:
        raise ValueError(f"a worker that is {state} cannot {event}")
    return following


def pause(quick_deaths: int) -> float:
    """Seconds to wait before a worker is replaced, after so many quick deaths in a row."""
    beyond = quick_deaths - QUICK_DEATHS
    return 0.0 if beyond < 0 else min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(beyond, 10))
