"""Reservations in buckets that Redis keeps."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.core.errors import GatehouseError
from gateway.core.ports import Reservation
from gateway.core.types import Usage
from gateway.core.waiting import Signal
from gateway.limits.bucket import Amounts
from gateway.limits.redis.calls import Note
from gateway.limits.redis.pot import Pot

IN_HAND: Final = -1
"""As the outage of a reservation: it was decided from shares in hand."""


class Settling(Protocol):
    """Takes what reservations come to."""

    def settle(self, held: SharedHeld, usage: Usage | None) -> None:
        """usage: None for what was not served."""


class Part:
    """What a reservation holds of one bucket. units: what was taken; ticks: the same as Redis, or this process, counts it; None where
    nothing was counted."""

    __slots__ = ("pot", "ticks", "units")

    def __init__(self, pot: Pot, units: list[int], ticks: list[int] | None) -> None:
        self.pot, self.units, self.ticks = pot, units, ticks


class SharedHeld:
    """A reservation. taken_at: by the clock of Redis, in microseconds. outage: 0, or the number of that in which this process admitted the
    request by itself, or IN_HAND. not_enforced: limits that would have refused."""

    __slots__ = ("_owner", "_settled", "amounts", "headers", "not_enforced", "outage", "parts", "taken_at")

    def __init__(
        self,
        owner: Settling,
        amounts: Amounts,
        parts: list[Part],
        taken_at: int,
        outage: int,
        headers: bytes,
        not_enforced: tuple[str, ...],
    ) -> None:
        self._owner, self.amounts, self.parts, self.headers = owner, amounts, parts, headers
        self.taken_at, self.outage, self.not_enforced, self._settled = taken_at, outage, not_enforced, False

    @property
    def counts_tokens(self) -> bool:
        """Whether any of these buckets counts tokens, or money."""
        return any([part.pot.shape.counts_tokens for part in self.parts])

    def settle(self, usage: Usage | None) -> None:
        """Charges the actual usage, or refunds all (None). A second call does nothing."""
        if self._settled:
            return
        self._settled = True
        self._owner.settle(self, usage)


def owed(part: Part, usage: Usage | None, currency: str, again: bool) -> list[int]:
    """What is still to be charged of one bucket, in ticks; below 0 is what comes back. Nothing: empty. usage: None for what was not served.
    again: it is counted again even if it cost what was taken."""
    ticks = part.ticks
    if ticks is None:
        return []
    if usage is None:
        return [-cost for cost in ticks]
    charges = part.pot.shape.charges(usage, part.units, currency)
    if charges == part.units and not again:
        return []
    amounts = part.pot.terms.ticks(charges)
    for index, cost in enumerate(ticks):
        amounts[index] -= cost
    return amounts


def add_unused(unused: dict[Pot, Note], parts: list[Part], taken_at: int) -> None:
    """Redis has admitted what was decided without it. One note for each bucket of a call: what drained since counts once in it."""
    for part in parts:
        pot, ticks = part.pot, part.ticks or []
        slots, before = 1 if pot.shape.concurrent else 0, unused.get(pot)
        amounts = [-cost for cost in ticks]
        if before is not None:
            slots += before.slots
            amounts = [one + more for one, more in zip(before.amounts, amounts, strict=True)]
        unused[pot] = Note(pot, taken_at, slots, amounts, late=True)


Decision = tuple[Signal[Reservation], Reservation | None, GatehouseError | None]


def go_on(signal: Signal[Reservation], reservation: Reservation | None, error: GatehouseError | None) -> None:
    """Tells a request that has waited for its limits what becomes of it."""
    if error is not None:
        signal.fail(error)
    elif reservation is not None and signal.awaited:
        signal.set(reservation)
    elif reservation is not None:
        reservation.settle(None)  # the client has left meanwhile
