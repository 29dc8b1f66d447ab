"""The API keys that the workers have asked for, remembered by the control process.

Each worker has a cache of its own (gateway/identity/stored.py), which is empty when it starts. Without this one, a worker that starts
while the store is away would know no key of the store, and a key that one worker remembers would be unknown to its neighbours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.clock import Clock, SystemClock
from gateway.core.storage import KeyRecord

Find = Callable[[bytes, str], Awaitable[KeyRecord | None]]
"""(SHA-256 of the key, the key) -> its record in whatever state, or None. Raises StoreUnavailable."""
CAPACITY: Final = 65536


class KeyRecords:
    """For one event loop. Must hear of a change before the workers do: then what it answers is older than the change only for a question
    that was answered before the worker heard of it, and the worker drops it."""

    def __init__(self, find: Find, capacity: int = CAPACITY, clock: Clock | None = None) -> None:
        self._find, self._capacity = find, capacity
        self._clock: Clock = clock or SystemClock()
        self._known: OrderedDict[bytes, KeyRecord] = OrderedDict()
        self._digests: dict[str, set[bytes]] = {}
        self._changes = 0

    def __len__(self) -> int:
        """Remembered secrets."""
        return len(self._known)

    async def find(self, digest: bytes, key: str) -> KeyRecord | None:
        """The record of a key, or None for an unknown one. Neither an unknown key is remembered nor one that has ended. Raises
        StoreUnavailable."""
        record = self._known.get(digest)
        if record is not None:
            self._known.move_to_end(digest)
            return record
        asked = self._changes
        record = await self._find(digest, key)
        overtaken = asked != self._changes  # by a change
        if record is not None and not overtaken and record.state(self._clock.wall()) == "active":
            self._remember(digest, record)
        return record

    def _remember(self, digest: bytes, record: KeyRecord) -> None:
        self._known[digest] = record
        self._digests.setdefault(record.id, set()).add(digest)
        if len(self._known) > self._capacity:
            oldest, forgotten = self._known.popitem(last=False)
            digests = self._digests[forgotten.id]
            digests.discard(oldest)
            if not digests:
                del self._digests[forgotten.id]

    def changed(self, id: str) -> None:
        """Drops a key that was made, updated, rotated, revoked or deleted."""
        self._changes += 1
        for digest in self._digests.pop(id, ()):
            del self._known[digest]

    def clear(self) -> None:
        """Changes were missed."""
        self._changes += 1
        self._known.clear()
        self._digests.clear()
