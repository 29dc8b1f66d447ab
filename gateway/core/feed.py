"""The feed inside one process: a plain callback, with sequence numbers as on other carriers (a socket, the store)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.core.ports import Change

STOPPING = "stopping"
"""The last change to be published. Streams that relay the feed end with it."""


class LocalFeed:
    """Publishes numbered changes to subscribers in the same process, in order, synchronously."""

    def __init__(self) -> None:
        self.sequence = 0
        self._subscribers: list[Callable[[Change], None]] = []

    def publish(self, kind: str, payload: Any) -> int:
        """Numbers the change, calls every subscriber and returns the number. Then raises the first exception that a subscriber raised."""
        self.sequence += 1
        change = (self.sequence, kind, payload)
        failure: Exception | None = None
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(change)
            except Exception as error:  # noqa: BLE001 - boundary: the others hear of it all the same; raised below
                failure = failure or error
        if failure is not None:
            raise failure
        return self.sequence

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)
