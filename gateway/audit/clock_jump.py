"""Notices that the system clock was set forward, so that retention by age does not delete recent segments."""

from __future__ import annotations

from typing import Final

from gateway.core.clock import Clock

JUMP: Final = 3600.0
"""Seconds that the wall clock may gain on the monotonic one between two looks."""
PATIENCE: Final = 86400.0
"""Seconds after which a clock that was set forward, and not back, counts as correct."""


class ClockJumpDetector:
    """Compares the wall clock with the monotonic one since it was made. It cannot tell that the clock was wrong from the start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._now()
        self._since: float | None = None
        self.gained = 0.0
        """Seconds by which the clock is ahead of what it was."""

    def _now(self) -> float:
        return self._clock.wall() - self._clock.monotonic()

    @property
    def jumped(self) -> bool:
        """Whether the clock was set forward within PATIENCE, and not back."""
        offset, now = self._now(), self._clock.monotonic()
        if offset - self._offset <= JUMP:
            self._offset, self._since, self.gained = offset, None, 0.0
            return False
        self._since, self.gained = now if self._since is None else self._since, offset - self._offset
        if now - self._since < PATIENCE:
            return True
        self._offset, self._since, self.gained = offset, None, 0.0
        return False
