"""The feed inside one process: a plain callback with the sequence numbers that other carriers (a socket, the store) have too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.core.ports import Change

STOPPING = "stopping"
"""The last change that is published: whoever follows the feed for somebody else lets go."""


class LocalFeed:
    """Publishes numbered changes to subscribers in the same process, in order, synchronously."""

    def __init__(self) -> None:
        self.sequence = 0
        self._subscribers: list[Callable[[Change], None]] = []

    def publish(self, kind: str, payload: Any) -> int:
        """Numbers the change, calls every subscriber, returns the number."""
        self.sequence += 1
        change = (self.sequence, kind, payload)
        for subscriber in tuple(self._subscribers):
            subscriber(change)
        return self.sequence

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)
