"""Which joined machines are there: sessions, replays and leases. Pure; whoever calls `look` does so several times within a lease.

nothing heard            -> pending      the machine is given a session, and proves with its next beat that it has heard that
pending                  -> there        its first beat within the session
there                    -> lost         nothing was heard for a lease
lost                     -> there        a beat of the same session, or of a new one
there, lost              -> gone         it leaves, or is removed
A session cannot be taken over while its lease runs, neither by a copy of the machine's key nor by a machine that was started twice. Every
change makes gateways build a configuration and write a record, so a machine can cause at most one per SETTLE seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gateway.core.clock import Clock
from gateway.core.joining import Beat

State = Literal["there", "lost"]
FORGET: Final = 600.0
"""Seconds after which a lost machine is no longer listed."""
SETTLE: Final = 1.0
"""Seconds between two changes of where a machine is and what is ready there, and from its leaving to its next session."""
FASTEST: Final = 32
"""Beats in a lease that are taken at most."""
STALL: Final = 0.25
"""Seconds by which `look` may be late. What is beyond was this process's own pause, and no machine's silence."""


class Unknown(Exception):
    """The beat belongs to no known session; the machine should use this one."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session


class Replayed(Exception):
    """The session has had this sequence number, or a later one."""


class TooSoon(Exception):
    """Beats come faster than they are asked for."""


class InUse(Exception):
    """Another process has the machine's session."""


class Lease:
    """One machine, as this process hears it."""

    __slots__ = ("beat", "beats", "due", "known", "pending", "sequence", "session", "since", "spoke", "state", "told")

    def __init__(self, now: float) -> None:
        self.session = self.pending = ""
        self.sequence = self.beats = 0
        self.due = 0.0
        self.since = now
        """Monotonic seconds of the last change of `state`."""
        self.state: State = "lost"
        self.beat: Beat | None = None
        """The last beat; None before the first one, and after the machine has left."""
        self.known: tuple[str, frozenset[str]] = ("", frozenset())
        """The machine's address and its ready engines, as of its last report."""
        self.told = self.spoke = float("-inf")
        """When that was announced, and when the machine was last heard."""


class Leases:
    """changed: called with (machine, what: joined, returned, lost, left, moved) for each change that routing must know."""

    def __init__(self, clock: Clock, lease: float, fresh: Callable[[], str], changed: Callable[[str, str], None]) -> None:
        self._now, self._fresh, self._changed = clock.monotonic, fresh, changed
        self.lease = lease
        """Seconds; may be set at any time."""
        self.machines: dict[str, Lease] = {}
        self._looked = self._now()
        self.losses = 0

    def heard(self, name: str, beat: Beat) -> None:
        """Takes a beat that was signed with the machine's key. Raises Unknown, Replayed, TooSoon, InUse."""
        now = self._now()
        known = self.machines.setdefault(name, Lease(now))
        if not beat.session or beat.session not in (known.session, known.pending):
            known.pending = self._fresh()
            raise Unknown(known.pending)
        if beat.session == known.session:
            if beat.sequence <= known.sequence:
                raise Replayed
            if now - known.spoke < self.lease / FASTEST and not beat.leaving:
                raise TooSoon
        else:
            if known.due > now:
                raise InUse
            known.session, known.pending, known.sequence = beat.session, "", 0
        known.sequence, known.due, known.spoke = beat.sequence, now + self.lease, now
        known.beats += 1
        before, known.beat = known.beat, beat
        self._judge(name, known, before, now)

    def _judge(self, name: str, known: Lease, before: Beat | None, now: float) -> None:
        beat = known.beat
        assert beat is not None
        if beat.leaving:
            known.beat, known.session, known.state, known.since, known.due = None, "", "lost", now, now + SETTLE
            if before is not None:
                self._changed(name, "left")
            return
        was, known.state = known.state, "there"
        if was != "there":
            known.since = now
        if before is None:
            known.known = (beat.address, up(beat))
            self._changed(name, "joined")
            return
        if was == "lost":
            self._changed(name, "returned")
        self._tell(name, known, now)

    def _tell(self, name: str, known: Lease, now: float) -> None:
        """Tells where it is and what is ready there, if that has changed and the last change has settled."""
        if known.beat is None or now - known.told < SETTLE:
            return
        found = (known.beat.address, up(known.beat))
        if found != known.known:
            known.known, known.told = found, now
            self._changed(name, "moved")

    def look(self) -> None:
        """Ends the leases that are over, and forgets what has been lost for long."""
        now, before = self._now(), self._looked
        self._looked = now
        for name, known in list(self.machines.items()):
            late = now - max(before, known.spoke) - STALL  # what it said since that pause is not of before
            if late > 0:
                known.due += late
                known.since += late if known.state == "lost" and known.since <= before else 0.0
            self._tell(name, known, now)
            if known.state == "there" and known.due <= now:
                known.state, known.since = "lost", now
                self.losses += 1
                self._changed(name, "lost")
            elif known.state == "lost" and now - known.since > FORGET:
                self.remove(name)

    def remove(self, name: str) -> None:
        """The machine leaves, or may not serve any more."""
        known = self.machines.pop(name, None)
        if known is not None and known.beat is not None:
            self._changed(name, "left")

    def out(self, name: str) -> str | None:
        """Why a machine must get no requests; None: it may have some."""
        known = self.machines.get(name)
        if known is None or known.beat is None:
            return "the machine has not been heard"
        if known.state == "lost":
            return "the machine's lease is over"
        return None


def up(beat: Beat) -> frozenset[str]:
    """The engines that the machine says are ready."""
    return frozenset(engine.name for engine in beat.engines if engine.state == "ready")


def down(beat: Beat) -> frozenset[str]:
    """The engines that the machine says have failed."""
    return frozenset(engine.name for engine in beat.engines if engine.state == "failed")
