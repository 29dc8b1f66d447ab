"""Proofs that were used: each counts once. One table for a whole replica; workers ask the process that has it.

It is bounded, and never forgets a proof that could count again: when it is full, further proofs are turned away (503). One key takes at
most a part of it, so that no client keeps the others out.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.core.clock import Clock
from gateway.core.errors import Overloaded
from gateway.core.proofs import ClaimProof

CAPACITY: Final = 1 << 18
"""Proofs in a table, about 40 MB: 4,300 new ones in each second of a window of 60 s."""
SHARE: Final = CAPACITY // 4
"""Of one key."""


class Replays:
    """The proofs that were used, for one event loop."""

    def __init__(self, clock: Clock, capacity: int = CAPACITY, share: int = SHARE) -> None:
        self._clock, self._capacity, self._share = clock, capacity, share
        self._used: set[bytes] = set()
        self._order: deque[tuple[float, bytes, bytes]] = deque()
        """(when it was used, its name, its key), the first to be forgotten first."""
        self._of_key: dict[bytes, int] = {}
        self._window = self._ahead = 0.0
        self._floor = float("-inf")

    def __len__(self) -> int:
        return len(self._used)

    def claim(self, proof: ClaimProof) -> bool:
        """Whether it is used for the first time. Raises Overloaded."""
        now = self._clock.monotonic()
        self._widen(proof.window, proof.ahead)
        self._forget(now)
        name = proof.key + proof.id
        if name in self._used or proof.issued <= self._floor:
            return False
        count = self._of_key.get(proof.key, 0)
        if len(self._used) >= self._capacity or count >= self._share:
            raise Overloaded("Too many proofs are in use.", retry_after=1.0)
        self._used.add(name)
        self._of_key[proof.key] = count + 1
        self._order.append((now, name, proof.key))
        return True

    def _forget(self, now: float) -> None:
        order, until = self._order, now - self._window
        while order and order[0][0] <= until:
            _, name, key = order.popleft()
            self._used.discard(name)
            left = self._of_key[key] - 1
            if left:
                self._of_key[key] = left
            else:
                del self._of_key[key]

    def _widen(self, window: float, ahead: float) -> None:
        """Where proofs count for longer than before: those that may have been forgotten do not count again."""
        if window > self._window:
            if self._window:
                self._floor = self._clock.wall() - self._window + self._ahead
            self._window = window
        self._ahead = max(self._ahead, ahead)
