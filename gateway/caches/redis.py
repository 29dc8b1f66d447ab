"""Answers in Redis, where all replicas find them. Bounded by scripts that know what lies there, whatever else the server holds.

All keys have one hash tag, so in a Redis Cluster they are on one server. `e:KEY` is an answer, with its time to live; `marks` the marks of
purges (gateway.caches.place); `order` and `due` say which answer goes next for want of room, and which has expired; `info` the size, model
and tenant of each; `bytes` their sum; `t:TENANT`, `m:MODEL` whose they are. A mark that Redis has lost gets a new value, so answers that
depend on it are lost too, and a purge holds whatever Redis evicts by itself. What others write there is never an answer, and an `info` that
says nothing is forgotten with its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final

from gateway.caches.behind import CacheUnavailable, Held, Stored
from gateway.caches.place import Place, purged_marks
from gateway.core.clock import Entropy
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.keeper import Keeper
from gateway.transport.redis.resp import RedisError, command

PURGE_SECONDS: Final = 2.0
"""How long a purge waits for one answer of Redis."""
_NOW: Final = b"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_MARKS: Final = b"""
local function marks(at, names, fresh)
  local found = redis.call('HMGET', at, unpack(names))
  for i, name in ipairs(names) do
    if not found[i] then redis.pcall('HSET', at, name, fresh) found[i] = fresh end
  end
  return table.concat(found)
end
"""
_FORGET: Final = b"""
local function about(info)
  local fine, size, model, tenant = pcall(cmsgpack.unpack, info)
  if fine and type(size) == 'number' and type(model) == 'string' and type(tenant) == 'string' then return size, model, tenant end
  return 0, '', ''
end

local function forget(base, key)
  local gone = redis.call('DEL', base .. 'e:' .. key)
  redis.call('ZREM', base .. 'order', key)
  redis.call('ZREM', base .. 'due', key)
  local info = redis.call('HGET', base .. 'info', key)
  if info then
    local size, model, tenant = about(info)
    redis.call('HDEL', base .. 'info', key)
    redis.call('DECRBY', base .. 'bytes', size)
    redis.call('SREM', base .. 't:' .. tenant, key)
    redis.call('SREM', base .. 'm:' .. model, key)
  end
  return gone
end
"""
FIND: Final = (
    _NOW
    + _MARKS
    + b"""
local base, key, fresh, policy = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local known = marks(base .. 'marks', {ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]}, fresh)
local value = redis.call('GET', base .. 'e:' .. key)
if value and policy == 'lru' then redis.pcall('ZADD', base .. 'order', 'XX', now, key) end
if value and policy == 'lfu' and redis.call('ZSCORE', base .. 'order', key) then redis.pcall('ZINCRBY', base .. 'order', 1, key) end
return {known, value}
"""
)
STORE: Final = (
    _NOW
    + _MARKS
    + _FORGET
    + b"""
local base, key, fresh, policy = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if marks(base .. 'marks', {ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]}, fresh) ~= ARGV[9] then return {0, 0} end
redis.call('INCRBY', base .. 'bytes', 0)
local value, milliseconds, entries, bytes, model, tenant = ARGV[10], ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14], ARGV[15]
local size, evicted = #value + 512, 0
if size > bytes then return {0, 0} end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', now, 'LIMIT', 0, 8)) do forget(base, old) end
forget(base, key)
while redis.call('ZCARD', base .. 'order') >= entries or (tonumber(redis.call('GET', base .. 'bytes')) or 0) + size > bytes do
  local victim = redis.call('ZRANGE', base .. 'order', 0, 0)[1]
  if not victim then redis.call('SET', base .. 'bytes', 0) break end
  forget(base, victim)
  evicted = evicted + 1
  if evicted >= 256 then return {0, evicted} end
end
redis.call('SET', base .. 'e:' .. key, value, 'PX', milliseconds)
local score = now
if policy == 'lfu' then score = 1 end
redis.call('ZADD', base .. 'order', score, key)
redis.call('ZADD', base .. 'due', now + milliseconds, key)
redis.call('HSET', base .. 'info', key, cmsgpack.pack(size, model, tenant))
redis.call('INCRBY', base .. 'bytes', size)
redis.call('SADD', base .. 't:' .. tenant, key)
redis.call('SADD', base .. 'm:' .. model, key)
return {1, evicted}
"""
)
"""Its first write is one that a full Redis refuses (INCRBY by nothing): what a script does after another one would be let through."""
MARK: Final = b"""
for i = 2, #ARGV do redis.call('HDEL', KEYS[1] .. 'marks', ARGV[i]) end
for i = 2, #ARGV do redis.call('HSET', KEYS[1] .. 'marks', ARGV[i], ARGV[1]) end
return 1
"""
"""Takes away first: a full Redis refuses what takes memory, but lets through whatever a script does after its first write. Look-ups go on
without what it refuses (`pcall`)."""
SWEEP: Final = (
    _FORGET
    + b"""
local base, set, cursor, model, tenant, dry = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local scan, step, count = 'SSCAN', 1, 0
if set == 'order' then scan, step = 'ZSCAN', 2 end
local page = redis.call(scan, base .. set, cursor, 'COUNT', 500)
for i = 1, #page[2], step do
  local key = page[2][i]
  local info = redis.call('HGET', base .. 'info', key)
  local fits = info and true
  if info then
    local _, m, t = about(info)
    fits = (model == '' or m == model) and (tenant == '' or t == tenant)
  end
  if fits then
    if dry == '1' then count = count + redis.call('EXISTS', base .. 'e:' .. key) else count = count + forget(base, key) end
  end
end
return {page[1], count}
"""
)
ONE: Final = (
    _FORGET
    + b"""
local base, key, dry, model, tenant = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local info = redis.call('HGET', base .. 'info', key)
if info then
  local _, m, t = about(info)
  if (model ~= '' and m ~= model) or (tenant ~= '' and t ~= tenant) then return 0 end
end
if dry == '1' then return redis.call('EXISTS', base .. 'e:' .. key) end
return forget(base, key)
"""
)
SCRIPTS: Final = (FIND, STORE, MARK, SWEEP, ONE)


class RedisAnswers:
    """Implements gateway.caches.behind.Backend. lost: called when the connection is, and when a new one is of use.
    policy, entries, most: of what all replicas keep."""

    def __init__(self, prefix: str, policy: str, entries: int, most: int, entropy: Entropy, lost: Callable[[], None]) -> None:
        self._base = f"{prefix}:{{answers}}:"
        self._policy, self._entries, self._most, self._entropy, self._lost = policy, entries, most, entropy, lost
        self._shas = {script: sha1(script, usedforsecurity=False).hexdigest() for script in SCRIPTS}
        self.keeper: Keeper | None = None
        self._line: Connection | None = None

    # --- the connection

    def connected(self, line: Connection) -> None:
        self._line = line
        self._load(line, self._loaded)

    def disconnected(self, error: Exception) -> None:
        self._line = None
        self._lost()

    def _load(self, line: Connection, loaded: Callable[[Any], None]) -> None:
        for script in SCRIPTS:
            line.send(command("SCRIPT", "LOAD", script), loaded if script is SCRIPTS[-1] else _nothing)

    def _loaded(self, reply: Any) -> None:
        """One that still loads its data refuses everything: look-ups say so."""
        if not isinstance(reply, Exception):
            self._lost()

    def _command(self, script: bytes, *words: str | bytes) -> bytes:
        return command("EVALSHA", self._shas[script], "1", self._base, *words)

    def _why(self, reply: Any) -> str | None:
        """What is wrong with a reply; None if it is one."""
        if isinstance(reply, RedisError):
            line = self._line
            if reply.code == "NOSCRIPT" and line is not None:
                self._load(line, _nothing)
            elif self.keeper is not None:
                self.keeper.elsewhere(reply)
            return str(reply)
        return str(reply) if isinstance(reply, Exception) else None

    # --- Backend

    def ready(self) -> bool:
        line = self._line
        return line is not None and line.open and not line.clogged

    def find(self, place: Place, done: Callable[[tuple[bytes, bytes | None] | str], None]) -> None:
        def replied(reply: Any) -> None:
            if (why := self._why(reply)) is not None:
                done(why)
            elif isinstance(reply, list) and len(reply) == 2 and isinstance(reply[0], bytes) and isinstance(reply[1], bytes | None):
                done((reply[0], reply[1]))
            else:
                done("it answers what it should not")

        line = self._line
        if line is None:
            done("there is no connection")
        else:
            line.send(self._command(FIND, place.key, self._entropy.bytes(8), self._policy, *place.marks()), replied)

    def store(self, place: Place, sealed: bytes, marks: bytes, ttl: float, done: Callable[[Stored | str], None]) -> None:
        def replied(reply: Any) -> None:
            if (why := self._why(reply)) is not None:
                done(why)
            elif isinstance(reply, list) and len(reply) == 2 and all(isinstance(one, int) for one in reply):
                done(Stored(reply[0] == 1, reply[1]))
            else:
                done("it answers what it should not")

        line = self._line
        if line is None or line.clogged:
            done("there is no connection")
            return
        own = (place.key, self._entropy.bytes(8), self._policy, *place.marks(), marks, sealed)
        bounds = (str(max(1, int(ttl * 1000))), str(self._entries), str(self._most), place.model, place.tenant)
        line.send(self._command(STORE, *own, *bounds), replied)

    async def purge(self, model: str | None, tenant: str | None, key: bytes | None, *, dry_run: bool) -> int:
        if not dry_run:
            await self._ask(MARK, self._entropy.bytes(8), *purged_marks(model, tenant, key))
        dry, whose = "1" if dry_run else "0", (model or "", tenant or "")
        if key is not None:
            return int(await self._ask(ONE, key, dry, *whose))
        chosen = f"t:{tenant}" if tenant is not None else f"m:{model}" if model is not None else "order"
        count = 0
        cursor = b"0"
        while True:
            cursor, found = await self._ask(SWEEP, chosen, cursor, *whose, dry)
            count += int(found)
            if cursor == b"0":
                return count

    async def held(self) -> Held:
        line = self._connection()
        entries, size = await self._wait(asyncio.gather(line.ask("ZCARD", f"{self._base}order"), line.ask("GET", f"{self._base}bytes")))
        return Held(int(entries or 0), int(size or 0))

    def _connection(self) -> Connection:
        if self._line is None:
            raise CacheUnavailable("there is no connection to Redis")
        return self._line

    async def _ask(self, script: bytes, *words: str | bytes) -> Any:
        """Raises CacheUnavailable."""
        reply = await self._wait(self._connection().ask(*("EVAL", script, "1", self._base, *words)))
        if (why := self._why(reply)) is not None:
            raise CacheUnavailable(why)
        return reply

    async def _wait(self, answer: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(PURGE_SECONDS):
                return await answer
        except TimeoutError:
            raise CacheUnavailable("Redis does not answer in time") from None
        except Unreachable as error:
            raise CacheUnavailable(str(error)) from None


def _nothing(reply: Any) -> None:
    """An error shows in the first call of the script."""
