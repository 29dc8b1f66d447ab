"""A share of one endpoint's traffic goes to a second process of its engine: which attempts, and how they end. Pure.

A counter decides, so that of n attempts exactly n times the share go there, spread evenly. Failures there are counted here and do not count
for the process in force; after too many `over` completes, and the rollout's driver ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.ports import EngineClient
from gateway.core.waiting import Signal

PARTS = 10_000
"""Shares are counted in whole parts of this, because sums of fractions would drift."""


class Shift:
    """See gateway.core.ports.TrafficShift. client, address, slots: the second process's. end: called when the shift is given up."""

    __slots__ = (
        "_end",
        "_parts",
        "_sum",
        "address",
        "client",
        "failures",
        "heard",
        "in_flight",
        "max_failures",
        "over",
        "requests",
        "slots",
    )

    def __init__(self, client: EngineClient, address: str, slots: int, max_failures: int, end: Callable[[Shift], None]) -> None:
        self.client, self.address, self.slots, self.max_failures, self._end = client, address, slots, max_failures, end
        self.in_flight = self.requests = self.failures = 0
        self.over: Signal[None] = Signal()
        self.heard: Callable[[], None] | None = None
        """Called when an attempt there has failed."""
        self._parts = self._sum = 0

    @property
    def share(self) -> float:
        return self._parts / PARTS

    def move(self, share: float) -> None:
        """Sends this share of the attempts from now on, 0 to 1; above 0 it is at least one part."""
        self._parts = min(PARTS, max(1 if share > 0 else 0, round(share * PARTS)))

    def takes(self) -> bool:
        """Whether a new attempt goes to the second process; if so it holds one of its slots until `released`."""
        self._sum += self._parts
        if self._sum < PARTS:
            return False
        self._sum -= PARTS
        if self.in_flight >= self.slots:
            return False  # it has fewer slots than the first process
        self.in_flight += 1
        self.requests += 1
        return True

    def released(self) -> None:
        """An attempt at the second process has ended."""
        self.in_flight -= 1

    def ended(self, result: str) -> None:
        """Takes the result of an attempt there: success, failure, refused or neutral."""
        if result in ("failure", "refused"):
            self.failures += 1
            if self.heard is not None:
                self.heard()
            if self.failures > self.max_failures:
                self.over.set(None)

    def end(self) -> None:
        """Gives the shift up: the first process has all the traffic again."""
        self._end(self)
