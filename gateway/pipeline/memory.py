"""One budget for the bytes that clients make the process hold: bodies from before they are read until their answer is complete, and whole
answers until their client has taken them. Each caller has a share, so that no caller can use it all. Pure: no clock, no loop.

Bytes that each connection may hold without asking do not count: UNCOUNTED of a body, and one buffer (`stream.buffer_bytes`) of an answer.
"""

from __future__ import annotations

from typing import Final

from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.specs import ListenSpec

UNCOUNTED: Final = 64 * 1024
"""Bytes of a body that are read, and of an answer that are written, without a reservation."""
STEP: Final = 256 * 1024
"""Bytes by which the reservation of a body of unknown length grows."""
RETRY_AFTER: Final = 1.0


class MemoryBudget:
    """`held`: bytes taken in total. `freed`: bytes given back since the owner of the allocator last looked."""

    __slots__ = ("_shares", "freed", "held")

    def __init__(self) -> None:
        self.held = 0
        self.freed = 0
        self._shares: dict[str, int] = {}

    def share(self, owner: str) -> int:
        """Bytes that an owner holds."""
        return self._shares.get(owner, 0)

    def take(self, owner: str, amount: int, limits: ListenSpec) -> None:
        """Takes `amount` bytes for an owner (a caller's name). Raises Overloaded when the process has no more to give, LimitExceeded when
        the owner's share is spent; then nothing was taken.

        An owner that holds nothing may take more than a share, so that a share smaller than one body does not lock anyone out.
        """
        share = self._shares.get(owner, 0)
        if self.held + amount > limits.memory_bytes:
            raise Overloaded("The gateway's memory for requests and answers is full; try again.", retry_after=RETRY_AFTER)
        if share and share + amount > limits.memory_bytes * limits.memory_share:
            raise LimitExceeded(
                "Your requests and unread answers take up too much memory at once.", code="concurrency_exceeded", retry_after=RETRY_AFTER
            )
        self.held += amount
        self._shares[owner] = share + amount

    def give_back(self, owner: str, amount: int) -> None:
        """Returns bytes that `take` took."""
        self.held -= amount
        self.freed += amount
        left = self._shares.get(owner, 0) - amount
        if left > 0:
            self._shares[owner] = left
        else:
            self._shares.pop(owner, None)
