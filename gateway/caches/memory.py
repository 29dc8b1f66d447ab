"""Answers in memory: bounded by entries and bytes, each with a time to live, the least valuable one evicted first.

A value is opaque. Nothing here waits, so one event loop may use a store without a lock. What is expired is as good as absent at once; its
memory is given back when it is asked for, purged or evicted.

What is purged is absent at once, too. `sweep` gives its memory back, a slice at a time: a purge of a million answers holds nobody up.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from gateway.caches.near import NearAnswers
from gateway.core.slices import Steps, at_once

Eviction = Literal["lru", "lfu", "fifo"]
OVERHEAD: Final = 512
"""Bytes that an entry costs besides its value, as counted against the bound: keys, tables and the object itself."""
SLICE: Final = 500
"""Purged answers whose memory is given back at once: some two milliseconds among a million."""
SHARDS: Final = 128
LARGE: Final = 256 * 1024
"""Bytes of a value above which it is compressed and decompressed in slices: a MiB of numbers takes 18 ms, and 6 ms."""
_PORTION: Final = 128 * 1024
_LEVEL: Final = 1
"""The level of zlib. Answers are read more often than written, and a hit pays for decompression only."""


class Bounds(Struct, frozen=True, kw_only=True):
    """entries, bytes: of the whole store. largest: bytes of one value. compress_above: bytes from which a value is kept compressed, if that
    makes it smaller; 0: never."""

    entries: int = 10_000
    bytes: int = 256 * 1024 * 1024
    largest: int = 1024 * 1024
    compress_above: int = 4096


class Statistics(Struct, kw_only=True):
    """Counted since the start, but `entries` and `bytes`, which are held now. misses: requests for which an engine was asked. joined: those
    that shared such a call. semantic: those that got the answer to a similar one. unembedded: those whose question got no vector in time.
    bypassed: those whose clients wanted so. refused: values that were too large, or came from before a purge."""

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    joined: int = 0
    semantic: int = 0
    unembedded: int = 0
    bypassed: int = 0
    stored: int = 0
    refused: int = 0
    evicted: int = 0
    expired: int = 0
    purged: int = 0


class _Entry:
    """length: bytes of the value where it is kept compressed, else 0. uses: how often it was found or stored. size: what it costs of the
    store's bytes. born: its number among all that were stored."""

    __slots__ = ("born", "expires", "length", "size", "tenant", "uses", "value")

    def __init__(self, value: bytes, length: int, tenant: str, expires: float) -> None:
        self.value, self.length, self.tenant, self.expires = value, length, tenant, expires
        self.size = len(value) + OVERHEAD
        self.uses = 1
        self.born = 0


class _Order(Protocol):
    """The order in which entries are evicted."""

    def added(self, key: bytes) -> None: ...

    def used(self, key: bytes, uses: int) -> None:
        """It was found. uses: how often before."""
        ...

    def removed(self, key: bytes, uses: int) -> None: ...

    def victim(self) -> bytes:
        """The entry to be evicted first; there is one."""
        ...


class _Sequence:
    """The oldest first. moves: what is used counts as new."""

    def __init__(self, moves: bool) -> None:
        self._moves = moves
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def added(self, key: bytes) -> None:
        self._keys[key] = None

    def used(self, key: bytes, uses: int) -> None:
        if self._moves:
            self._keys.move_to_end(key)

    def removed(self, key: bytes, uses: int) -> None:
        del self._keys[key]

    def victim(self) -> bytes:
        return next(iter(self._keys))


class _Frequency:
    """The least used first; of several, the one that was used longest ago."""

    def __init__(self) -> None:
        self._by_uses: dict[int, OrderedDict[bytes, None]] = {}
        self._least = 1

    def added(self, key: bytes) -> None:
        self._by_uses.setdefault(1, OrderedDict())[key] = None
        self._least = 1

    def used(self, key: bytes, uses: int) -> None:
        self.removed(key, uses)
        self._by_uses.setdefault(uses + 1, OrderedDict())[key] = None
        if self._least not in self._by_uses:
            self._least = uses + 1

    def removed(self, key: bytes, uses: int) -> None:
        keys = self._by_uses[uses]
        del keys[key]
        if not keys:
            del self._by_uses[uses]

    def victim(self) -> bytes:
        if self._least not in self._by_uses:  # the last one of its kind was purged
            self._least = min(self._by_uses)
        return next(iter(self._by_uses[self._least]))


def _order(eviction: Eviction) -> _Order:
    return _Frequency() if eviction == "lfu" else _Sequence(moves=eviction == "lru")


class AnswerStore:
    """Keeps a model's answers by their keys. now: monotonic seconds."""

    def __init__(self, bounds: Bounds, eviction: Eviction, now: Callable[[], float]) -> None:
        self._bounds, self._now = bounds, now
        self.settings = (bounds, eviction)
        self.flights: dict[bytes, Any] = {}
        """Engine calls under way for answers that may come here (gateway.pipeline.flights), by their place."""
        self._shards: list[dict[bytes, _Entry]] = [{} for _ in range(SHARDS)]
        """Shards by the first byte of the key, which is a hash, so that no table grows or is listed all at once."""
        self._count = 0
        self._order = _order(eviction)
        self._born = self._dead = 0
        self._live: dict[str, int] = {}
        """Answers of each tenant."""
        self._floors: dict[str, int] = {}
        """Of tenants that were purged: their answers up to this number are dead, and `_dead` of them still here."""
        self._unswept = 0
        """The shards in which dead ones are still to be looked for, from the last to the first."""
        self._keys: list[bytes] = []
        """Of the shard behind them, those still to be looked at, from the end."""
        self._former: list[tuple[list[dict[bytes, _Entry]], _Order]] = []
        """What was here before everything was purged."""
        self.near: NearAnswers[Any] = NearAnswers()
        """Which of them may be given to similar requests."""
        self.counted = Statistics()
        self.epoch = 0
        """Rises with each purge. Whoever means to store an answer remembers the epoch from before it was asked for."""

    def find(self, key: bytes, *, similar: bool = False) -> bytes | Steps[bytes] | None:
        """The value, of a LARGE one the steps to it; None where there is none that may still be given. similar: it counts as found for a
        similar request."""
        entry = self._shards[key[0] % SHARDS].get(key)
        if entry is not None and (entry.expires <= self._now() or (self._floors and self._is_dead(entry))):
            if not self._is_dead(entry):
                self.counted.expired += 1
            self._remove(key, entry)
            entry = None
        if entry is None:
            return None
        if similar:
            self.counted.semantic += 1
        else:
            self.counted.hits += 1
        self._order.used(key, entry.uses)
        entry.uses += 1
        if not entry.length:
            return entry.value
        return zlib.decompress(entry.value) if entry.length <= LARGE else _decompressed(entry.value)

    def holds(self, key: bytes) -> bool:
        """Whether there is a value, which nobody takes now."""
        return self._one(None, key) is not None

    def store(self, key: bytes, value: bytes, *, tenant: str, ttl: float, epoch: int) -> bool:
        """Keeps the value for `ttl` seconds, in the place of an older one; whether it is kept. It is not where it is larger than a value
        may be, and where anything was purged since `epoch`: the purge may have meant it."""
        return at_once(self.store_steps(key, value, tenant=tenant, ttl=ttl, epoch=epoch))

    def store_steps(self, key: bytes, value: bytes, *, tenant: str, ttl: float, epoch: int) -> Steps[bool]:
        """The same in slices, if it is LARGE."""
        length = len(value)
        if epoch != self.epoch or length > self._bounds.largest or ttl <= 0:
            self.counted.refused += 1
            return False
        expires = self._now() + ttl
        compressed = 0
        if 0 < self._bounds.compress_above < length:
            smaller = zlib.compress(value, _LEVEL) if length <= LARGE else (yield from _compressed(value))
            if len(smaller) < length:
                value, compressed = smaller, length
        entry = _Entry(value, compressed, tenant, expires)
        if entry.size > self._bounds.bytes or epoch != self.epoch:
            self.counted.refused += 1
            return False
        shard = self._shards[key[0] % SHARDS]
        if (old := shard.get(key)) is not None:
            self._remove(key, old)
        while self._count and (self._count >= self._bounds.entries or self.counted.bytes + entry.size > self._bounds.bytes):
            self._evict()
        self._born += 1
        entry.born = self._born
        shard[key] = entry
        self._count += 1
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._order.added(key)
        self.counted.bytes += entry.size
        self.counted.stored += 1
        return True

    def purge(self, *, tenant: str | None = None, key: bytes | None = None) -> int:
        """Forgets the answers that match every given argument (all, if none is given), and returns how many. Answers that an engine was
        asked for before the purge will not be stored."""
        self.epoch += 1
        self.near.purge(tenant=tenant, key=key)
        self.flights.clear()  # their answers are from before the purge: who comes now gets none of them
        if key is not None:
            entry = self._one(tenant, key)
            if entry is not None:
                self._remove(key, entry)
            count = int(entry is not None)
        elif tenant is not None:
            count = self._live.pop(tenant, 0)
            if count:
                self._dead += count
                self._floors[tenant] = self._born
                self._unswept, self._keys = SHARDS, []
        else:
            count = self._count - self._dead
            self._former.append((self._shards, self._order))
            self._shards, self._order = [{} for _ in range(SHARDS)], _order(self.settings[1])
            self._live, self._floors, self._keys, self._unswept, self._dead, self._count = {}, {}, [], 0, 0, 0
            self.counted.bytes = 0
        self.sweep()
        self.counted.purged += count
        return count

    def sweep(self) -> bool:
        """Gives back the memory of up to SLICE purged answers; whether there is more to do."""
        left = SLICE
        while self._former and left:
            shards, order = self._former[-1]
            entries = shards[-1]
            while entries and left:
                key, entry = entries.popitem()
                order.removed(key, entry.uses)
                left -= 1
            if not entries:
                shards.pop()
            if not shards:
                self._former.pop()
        while self._dead and (self._keys or self._unswept) and left > 0:
            if not self._keys:
                self._unswept -= 1
                self._keys = list(self._shards[self._unswept])
                left -= len(self._keys) // 16  # a key is listed in a fraction of the time that its removal takes
                continue
            key = self._keys.pop()
            found = self._shards[key[0] % SHARDS].get(key)
            if found is not None and self._is_dead(found):
                self._remove(key, found)
            left -= 1
        if not self._dead and self._floors:
            self._floors, self._keys, self._unswept = {}, [], 0
        return bool(self._former or self._dead)

    def matching(self, *, tenant: str | None = None, key: bytes | None = None) -> int:
        """How many answers a purge would forget."""
        if key is not None:
            return int(self._one(tenant, key) is not None)
        return self._count - self._dead if tenant is None else self._live.get(tenant, 0)

    def _one(self, tenant: str | None, key: bytes) -> _Entry | None:
        entry = self._shards[key[0] % SHARDS].get(key)
        return None if entry is None or self._is_dead(entry) or tenant not in (None, entry.tenant) else entry

    def _is_dead(self, entry: _Entry) -> bool:
        return entry.born <= self._floors.get(entry.tenant, 0)

    def statistics(self) -> Statistics:
        """A copy."""
        found = Statistics(**{name: getattr(self.counted, name) for name in Statistics.__struct_fields__})
        found.entries = self._count - self._dead
        return found

    def _evict(self) -> None:
        key = self._order.victim()
        entry = self._shards[key[0] % SHARDS][key]
        dead = self._is_dead(entry)
        self._remove(key, entry)
        if dead:
            return
        if entry.expires <= self._now():
            self.counted.expired += 1
        else:
            self.counted.evicted += 1

    def _remove(self, key: bytes, entry: _Entry) -> None:
        del self._shards[key[0] % SHARDS][key]
        self._count -= 1
        self._order.removed(key, entry.uses)
        self.counted.bytes -= entry.size
        if self._is_dead(entry):
            self._dead -= 1
        elif (left := self._live[entry.tenant] - 1) > 0:
            self._live[entry.tenant] = left
        else:
            del self._live[entry.tenant]


def _compressed(value: bytes) -> Steps[bytes]:
    """In slices, as `zlib.compress` does it."""
    packer = zlib.compressobj(_LEVEL)
    found: list[bytes] = []
    for start in range(0, len(value), _PORTION):
        found.append(packer.compress(value[start : start + _PORTION]))
        yield
    found.append(packer.flush())
    return b"".join(found)


def _decompressed(value: bytes) -> Steps[bytes]:
    """In slices, as `zlib.decompress` does it."""
    unpacker = zlib.decompressobj()
    found: list[bytes] = []
    for start in range(0, len(value), _PORTION // 2):
        piece = value[start : start + _PORTION // 2]
        while piece:
            found.append(unpacker.decompress(piece, _PORTION))
            piece = unpacker.unconsumed_tail
            yield
    found.append(unpacker.flush())
    return b"".join(found)
