"""Whether the audit log takes records, why not, and what that cost."""

from __future__ import annotations

import logging
from typing import Any, Final

from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError

log = logging.getLogger("gatehouse.audit")

NEW: Final = "new"
OPEN: Final = "open"
BROKEN: Final = "broken"
TRYING: Final = "trying"
CLOSED: Final = "closed"

STARTED: Final = "started"
FAILED: Final = "failed"
HUNG: Final = "hung"
TRIED: Final = "tried"
WRITTEN: Final = "written"
ENDED: Final = "ended"

FULL: Final = "the queue is full"

TRANSITIONS: Final[dict[tuple[str, str], str]] = {
    (NEW, STARTED): OPEN,
    (OPEN, FAILED): BROKEN,
    (OPEN, HUNG): BROKEN,
    (BROKEN, TRIED): TRYING,
    (TRYING, WRITTEN): OPEN,
    (TRYING, FAILED): BROKEN,
    (NEW, ENDED): CLOSED,
    (OPEN, ENDED): CLOSED,
    (BROKEN, ENDED): CLOSED,
    (TRYING, ENDED): CLOSED,
}
"""(state, what happened) -> the next state. What is not listed changes nothing: a trial that hangs may still succeed, and a write that
hung and comes back while the log is broken is no trial."""


class Fault:
    """The log's state. Records are taken while it is OPEN.

    reason: why none are taken, None while they are. refused, lost: since the start, the intents and events that were turned away, and the
    outcomes for which there was no room.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.state: str = NEW
        self.reason: str | None = "not started"
        self._since = 0.0
        self.refused = self.lost = 0
        self._told = self._telling = (0, 0)

    def happened(self, what: str) -> None:
        self.state = TRANSITIONS.get((self.state, what), self.state)
        if self.state == OPEN:
            self.reason = None

    def broke(self, what: str, reason: str) -> None:
        """FAILED or HUNG, and why. The first reason stays until the log is open again."""
        if self.state == OPEN:
            self.reason, self._since = reason, self._clock.wall()
            log.error("the audit log takes no records: %s", reason)
        self.happened(what)

    def lose(self, count: int) -> None:
        self.lost += count

    @property
    def silent(self) -> bool:
        """Whether every loss so far has been told by an `audit.recovered`."""
        return self.lost == self._told[1]

    def trial(self) -> dict[str, Any]:
        """A write is tried while the log is broken: what its event says."""
        self._telling = self.refused, self.lost
        refused, lost = self.refused - self._told[0], self.lost - self._told[1]
        self.happened(TRIED)
        return {"reason": self.reason, "since": self._since, "refused_intents": refused, "lost_records": lost}

    def recovered(self) -> None:
        """The trial succeeded."""
        log.warning("the audit log takes records again, after %s", self.reason)
        self.happened(WRITTEN)
        self._told = self._telling

    def end(self) -> None:
        self.reason = self.reason or "closed"
        self.happened(ENDED)


def reason_of(error: Exception) -> str:
    """What an error says, as the reason why the log takes no records."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return error.message if isinstance(error, GatehouseError) else f"{type(error).__name__}: {error}"
