"""The buckets in Redis for operators: read, listed and made full again. Off the hot path: a connection of its own for each question.

What is made full again is so for all processes at once, because none keeps more of a bucket than what it last heard.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from gateway.core.errors import Overloaded
from gateway.core.slices import in_order, in_slices
from gateway.core.specs.redis import RedisSpec
from gateway.limits.bucket import Shape
from gateway.limits.meter import Meter
from gateway.limits.redis.names import Names, bucket_of, holder_of, shown, took_of
from gateway.limits.redis.took import SETTLE, Item, Took, argument, read_took
from gateway.limits.redis.view import BucketSeen, seen
from gateway.transport.redis.address import moved_to, target
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.resp import RedisError
from gateway.transport.redis.sentinel import locate, opened

PATIENCE: Final = 5.0
"""Seconds for one question of an operator."""
SCAN_PATIENCE: Final = 60.0
"""Seconds for one that walks over all keys of the database: in steps, between which Redis serves others, 1 s for a million."""
LISTED: Final = 60.0
"""Seconds for which it is remembered which buckets a limit has, for the next page: 100 bytes for each."""
MOST_LISTED: Final = 4
"""Limits whose buckets are remembered."""
BATCH: Final = 500
MOST_MOVES: Final = 5
RESET: Final = b"""
local time, done = redis.call('TIME'), 0
local now = time[1] * 1000000 + time[2]
for at = 1, #KEYS, 2 do
  local raw = redis.pcall('GET', KEYS[at])
  local fine, state = false, nil
  if type(raw) == 'string' then fine, state = pcall(cmsgpack.unpack, raw) end
  if raw then done = done + 1 end
  redis.call('DEL', KEYS[at + 1])
  if fine and type(state) == 'table' then
    state[1], state[3] = now, now
    for place = 4, #state - 2, 3 do
      state[place], state[place + 1] = 0, now
    end
    redis.call('SET', KEYS[at], cmsgpack.pack(state), 'KEEPTTL')
  elseif raw then
    redis.call('DEL', KEYS[at])
  end
end
return done
"""
"""Makes buckets full, apart from their slots. KEYS: for each the bucket, and where it is kept which share was told of. What was reserved
before gives nothing back afterwards."""
CLAIM: Final = b"""
local mine = {}
for at = 1, #KEYS do
  local holder = redis.call('GET', KEYS[at])
  if not holder then redis.call('SET', KEYS[at], ARGV[1], 'PX', ARGV[2]) end
  mine[at] = (not holder or holder == ARGV[1]) and 1 or 0
end
return mine
"""
KEEP: Final = b"""
for at = 1, #KEYS do redis.call('SET', KEYS[at], ARGV[1], 'PX', ARGV[1 + at]) end
return #KEYS
"""
T = TypeVar("T")


class BucketBook:
    """Raises Overloaded (503) from everything while Redis is away, ConfigError for settings that name no Redis."""

    def __init__(self, spec: RedisSpec) -> None:
        self._to, self._names = target(spec), Names(spec.prefix)
        self._listed: dict[bytes, tuple[list[bytes], asyncio.TimerHandle]] = {}
        self._scanning = asyncio.Lock()

    async def look(self, wanted: Sequence[tuple[Shape, tuple[str, ...]]]) -> list[BucketSeen]:
        """The bucket of each limit for a key."""

        async def ask(line: Connection) -> list[BucketSeen]:
            now = await _time(line)
            names = [self._names.bucket(shape, key) for shape, key in wanted]
            return [seen(shape, raw, now) for (shape, _), raw in zip(wanted, await _values(line, names), strict=True)]

        return await self._asked(ask) if wanted else []

    async def all_of(self, shape: Shape, most: int) -> list[tuple[str, BucketSeen]]:
        """So many buckets of a limit that are in use, each with its scope. A scope that is kept as a hash begins with `#`."""
        before = self._names.of_limit(shape)

        async def ask(line: Connection) -> list[tuple[str, BucketSeen]]:
            names = sorted(await _listed(line, before, most))
            now = await _time(line)
            found = zip(names, await _values(line, names), strict=True)
            return [(shown(name, before), seen(shape, raw, now)) for name, raw in found if raw is not None]

        return await self._asked(ask, SCAN_PATIENCE)

    async def all_of_each(self, shapes: Sequence[Shape], each: int, most: int) -> list[list[tuple[str, BucketSeen]]]:
        """`all_of` for each of several limits, and `most` buckets of all together, in one walk over the keys."""
        before = [self._names.of_limit(shape) for shape in shapes]

        async def ask(line: Connection) -> list[list[tuple[str, BucketSeen]]]:
            listed = await _listed_each(line, self._names.any_bucket, before, each, most)
            now = await _time(line)
            values = iter(await _values(line, [name for names in listed for name in names]))
            return [
                [(shown(name, start), seen(shape, raw, now)) for name in names if (raw := next(values)) is not None]
                for shape, start, names in zip(shapes, before, listed, strict=True)
            ]

        return await self._asked(ask, SCAN_PATIENCE) if shapes else []

    async def page(self, shape: Shape, most: int, after: str | None) -> tuple[list[tuple[str, BucketSeen]], str | None, bool]:
        """The same, in the order of their keys: so many after one, if given; the key of the last one; whether there are more. Which there
        are is found for the first page, and remembered for the next ones: a bucket that is new since then is in none of them."""
        before = self._names.of_limit(shape)
        listed = await self._listing(before, again=after is None)
        begin = 0 if after is None else bisect_right(listed, before + after.encode())  # the key of a limit for all together is empty
        names = listed[begin : begin + most]

        async def ask(line: Connection) -> list[tuple[str, BucketSeen]]:
            now = await _time(line)
            found = zip(names, await _values(line, names), strict=True)
            return [(shown(name, before), seen(shape, raw, now)) for name, raw in found if raw is not None]

        buckets = await self._asked(ask) if names else []
        return buckets, names[-1].removeprefix(before).decode() if names else after, begin + most < len(listed)

    async def _listing(self, before: bytes, *, again: bool) -> list[bytes]:
        """The keys that begin so, in order. One walk over all keys at a time."""
        async with self._scanning:
            known = self._listed.pop(before, None)
            if known is not None:
                known[1].cancel()
            if known is None or again:
                listed = await in_slices(in_order(await self._asked(lambda line: _listed(line, before, 1 << 62), SCAN_PATIENCE)))
            else:
                listed = known[0]
            while len(self._listed) >= MOST_LISTED:
                self._listed.pop(next(iter(self._listed)))[1].cancel()
            self._listed[before] = listed, asyncio.get_running_loop().call_later(LISTED, self._listed.pop, before, None)
            return listed

    def scope_of(self, shape: Shape, key: tuple[str, ...]) -> str:
        """What `all_of` calls the bucket of a key."""
        return self.scope_shown(shape, self._names.bucket(shape, key))

    def scope_shown(self, shape: Shape, name: bytes) -> str:
        """The same, of a bucket's key in Redis."""
        return shown(name, self._names.of_limit(shape))

    async def meant(self, shape: Shape, scope: str) -> list[bytes]:
        """The buckets that a scope means and that are in use; more than one only where names have slashes in them."""

        async def ask(line: Connection) -> list[bytes]:
            names = list(dict.fromkeys(self._names.meant(shape, scope)))
            return [name for name, raw in zip(names, await _values(line, names), strict=True) if raw is not None]

        return await self._asked(ask)

    async def names_of(self, shape: Shape) -> list[bytes]:
        """All buckets of a limit that are in use."""
        return await self._asked(lambda line: _listed(line, self._names.of_limit(shape), 1 << 62), SCAN_PATIENCE)

    async def reset(self, names: Sequence[bytes]) -> int:
        """Makes buckets full, apart from slots that are taken. How many there were."""

        async def ask(line: Connection) -> int:
            done = 0
            for first in range(0, len(names), BATCH):
                keys = [key for name in names[first : first + BATCH] for key in (name, self._names.told(name))]
                found = await _told(line, "EVAL", RESET, str(len(keys)), *keys)
                done += found if isinstance(found, int) else 0
            return done

        return await self._asked(ask, SCAN_PATIENCE)

    async def now(self) -> int:
        """Microseconds since the epoch, by the clock of Redis."""
        return await self._asked(_time)

    async def took(self, shape: Shape, meter: Meter, replica: str, now: int) -> dict[bytes, dict[str, Took]]:
        """What the processes of a replica took of a limit's budget: by bucket, and by process; empty: all that are settled."""

        async def ask(line: Connection) -> dict[bytes, dict[str, Took]]:
            found: dict[bytes, dict[str, Took]] = {}
            names = await _matching(line, self._names.took_by(shape, replica), 1 << 62)
            for name, raw in zip(names, await _values(line, names), strict=True):
                bucket, who = bucket_of(name)
                if (took := read_took(raw, meter, now, settled=not who)) is not None:
                    found.setdefault(bucket, {})[who] = took
            return found

        return await self._asked(ask, SCAN_PATIENCE)

    def name_of(self, shape: Shape, key: tuple[str, ...]) -> bytes:
        return self._names.bucket(shape, key)

    async def settle(
        self, shape: Shape, index: int, replica: str, who: str, items: Sequence[Item], now: int, *, dead: bool
    ) -> list[tuple[bool, int]]:
        """Settles what one process took of budgets (gateway.limits.redis.took.SETTLE): for each item whether that is done, and how much
        came back, in ticks; below 0 was charged. index: of the budget among the limit's amounts."""

        async def ask(line: Connection) -> list[tuple[bool, int]]:
            done: list[tuple[bool, int]] = []
            ours, settled = holder_of(replica, who), holder_of(replica)
            for first in range(0, len(items), BATCH):
                part = items[first : first + BATCH]
                keys = [key for one in part for key in (one.bucket, took_of(one.bucket, ours), took_of(one.bucket, settled))]
                words = (self._names.process(who), *keys, argument(who, shape.meters[index], index, part, now, dead=dead))
                found = await _told(line, "EVAL", SETTLE, str(len(keys) + 1), *words)
                if not isinstance(found, list) or len(found) != 2 * len(part):
                    raise Unreachable("what it answers cannot be read")
                done += [(bool(fine), units) for fine, units in zip(found[::2], found[1::2], strict=True)]
            return done

        return await self._asked(ask) if items else []

    async def claim(self, ids: Sequence[str], replica: str, seconds: float) -> set[str]:
        """Those that this replica is to tell of: what no other one has claimed. A claim lapses after so many seconds unless it is kept, so
        that what a killed replica has claimed is told by another one."""

        async def ask(line: Connection) -> set[str]:
            keys = [self._names.claim(id) for id in ids]
            found = await _told(line, "EVAL", CLAIM, str(len(keys)), *keys, replica, str(int(seconds * 1000)))
            if not isinstance(found, list) or len(found) != len(ids):
                raise Unreachable("what it answers cannot be read")
            return {id for id, mine in zip(ids, found, strict=True) if mine == 1}

        return await self._asked(ask) if ids else set()

    async def keep(self, ids: Mapping[str, float], replica: str) -> None:
        """Prolongs this replica's claims to announce by so many seconds, as it has announced or certainly will."""

        async def ask(line: Connection) -> None:
            keys = [self._names.claim(id) for id in ids]
            lasting = [str(max(1, int(seconds * 1000))) for seconds in ids.values()]
            await _told(line, "EVAL", KEEP, str(len(keys)), *keys, replica, *lasting)

        if ids:
            await self._asked(ask)

    async def _asked(self, ask: Callable[[Connection], Coroutine[Any, Any, T]], patience: float = PATIENCE) -> T:
        try:
            async with asyncio.timeout(patience):
                at, asking = await locate(self._to), False
                for _ in range(MOST_MOVES):
                    line = await opened(self._to, at, lambda error: None, name="gatehouse-admin")
                    line.asking = asking
                    try:
                        await _told(line, "MGET", self._names.process("admin"))  # in a Redis Cluster it shows whether this is the server
                        return await ask(line)
                    except _Moved as moved:
                        at, asking = moved_to(moved.error, at) or at, moved.error.code == "ASK"
                    finally:
                        line.close()
        except (OSError, Unreachable, TimeoutError) as error:
            raise unavailable(str(error) or "it does not answer in time") from None
        raise unavailable("its servers send from one to another")


class _Moved(Exception):
    """Another server of a Redis Cluster has the keys."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(str(error))
        self.error = error


def unavailable(why: str) -> Overloaded:
    return Overloaded(f"Redis, which holds the state of limits, cannot be asked: {why}.", code="limits_unavailable", retry_after=1.0)


async def _told(line: Connection, *words: str | bytes) -> Any:
    reply = await line.ask(*words)
    if isinstance(reply, RedisError):
        if reply.code in ("MOVED", "ASK"):
            raise _Moved(reply)
        raise Unreachable(str(reply))
    return reply


async def _time(line: Connection) -> int:
    """Microseconds since the epoch."""
    found = await _told(line, "TIME")
    try:
        seconds, micros = found
        return int(seconds) * 1_000_000 + int(micros)
    except (TypeError, ValueError):
        raise Unreachable("it does not know the time") from None


async def _values(line: Connection, names: Sequence[bytes]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for first in range(0, len(names), BATCH):
        part = names[first : first + BATCH]
        values = await _told(line, "MGET", *part)
        if not isinstance(values, list) or len(values) != len(part):
            raise Unreachable("what it answers cannot be read")
        found += [value if isinstance(value, bytes) else None for value in values]
    return found


async def _listed(line: Connection, before: bytes, most: int) -> list[bytes]:
    """Keys that begin so."""
    return await _matching(line, before + b"*", most)


async def _listed_each(line: Connection, pattern: bytes, before: Sequence[bytes], each: int, most: int) -> list[list[bytes]]:
    """Keys that begin so, by what they begin with."""
    found: dict[bytes, set[bytes]] = {start: set() for start in before}
    starts, cursor = sorted(found), b"0"
    while True:
        cursor, names = await _scanned(line, cursor, pattern)
        for name in names:
            start = starts[max(0, bisect_right(starts, name) - 1)]
            if name.startswith(start) and len(found[start]) < each:
                found[start].add(name)
        if cursor == b"0" or sum(map(len, found.values())) >= most:
            return [sorted(found[start]) for start in before]


async def _scanned(line: Connection, cursor: bytes, pattern: bytes) -> tuple[bytes, list[bytes]]:
    """One step of a walk over all keys."""
    reply = await _told(line, "SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
    if not (isinstance(reply, list) and len(reply) == 2 and isinstance(reply[0], bytes) and isinstance(reply[1], list)):
        raise Unreachable("what it answers cannot be read")
    return reply[0], [name for name in reply[1] if isinstance(name, bytes)]


async def _matching(line: Connection, pattern: bytes, most: int) -> list[bytes]:
    found: dict[bytes, None] = {}
    cursor = b"0"
    while True:
        cursor, names = await _scanned(line, cursor, pattern)
        found.update(dict.fromkeys(names))
        if cursor == b"0" or len(found) >= most:
            return list(found)[:most]
