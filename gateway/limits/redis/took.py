"""What each process took of budgets in Redis, beside the buckets (gateway.limits.redis.script): read, and settled once the audit log says
what was used. Pure, but for the script, which Redis runs.

Of a process that is killed, what it took stays as it is: what its requests had reserved, and what it had not told any more. Only its own
replica knows what they used: its log names the process. So only this replica settles it, each bucket at one stroke. From then on Redis does
nothing that this process may have sent before its end (STALE), so nothing comes after that. What others take meanwhile is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.limits.meter import Meter
from gateway.limits.redis.meters import Ticks

_DECODE = msgspec.msgpack.Decoder().decode
_ENCODE = msgspec.msgpack.Encoder().encode
WHOLE: Final = 0
"""The slice of a window of the calendar."""
SETTLE: Final = b"""
local call = cmsgpack.unpack(ARGV[1])
local who, dead, place, width, window, lives, items = unpack(call, 1, 7)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function plain(key)
  local raw = redis.pcall('GET', key)
  if type(raw) ~= 'string' then return nil end
  local fine, value = pcall(cmsgpack.unpack, raw)
  return fine and type(value) == 'table' and value or nil
end

local function slices_of(value, first, since)
  local found, sum = {}, 0
  if value and value[1] == since then
    for at = first, #value - 1, 2 do
      if width == 0 or value[at] * width + width + window > now then
        found[#found + 1] = {value[at], value[at + 1]}
        sum = sum + value[at + 1]
      end
    end
  end
  return found, sum
end

local function add(found, slice, amount)
  for _, one in ipairs(found) do
    if one[1] == slice then
      one[2] = one[2] + amount
      return
    end
  end
  found[#found + 1] = {slice, amount}
end

local function of_bucket(state, slice, amount)
  if width == 0 then
    local before = state[place]
    state[place] = math.max(0, before + amount)
    return state[place] - before
  end
  local slices = state[place]
  for at = 1, #slices - 1, 2 do
    if slices[at] == slice then
      local before = slices[at + 1]
      slices[at + 1] = math.max(0, before + amount)
      return slices[at + 1] - before
    end
  end
  if amount < 0 then return 0 end
  local last = #slices
  if last == 0 or slices[last - 1] < slice then
    slices[last + 1], slices[last + 2] = slice, amount
  else
    slices[last] = slices[last] + amount
  end
  return amount
end

local function kept_as(value, slices)
  table.sort(slices, function(one, other) return one[1] < other[1] end)
  for _, one in ipairs(slices) do
    if one[2] > 0 then value[#value + 1], value[#value + 2] = one[1], one[2] end
  end
  return value
end

if dead == 1 then redis.call('SET', KEYS[1], cmsgpack.pack({9007199254740991, 0}), 'PX', 3600000) end
local answer = {}
for index, item in ipairs(items) do
  local since, expected, least, most, used = unpack(item, 1, 5)
  local bucket, mine, kept = KEYS[3 * index - 1], KEYS[3 * index], KEYS[3 * index + 1]
  local state, changed = plain(bucket), 0
  local own, before = plain(mine), plain(kept)
  local took, sum = slices_of(own, 2, since)
  local names = before and before[1] == since and type(before[2]) == 'table' and before[2] or {}
  local done = 0
  local there = state and state[place + 1] == since
  if there and width == 0 and type(state[place]) ~= 'number' then state[place] = 0 end
  if there and width > 0 and type(state[place]) ~= 'table' then state[place] = {} end
  local again = false
  for _, one in ipairs(names) do again = again or one == who end
  if again then
    done = 1
  elseif there and (expected < 0 or expected == sum) then
    done = 1
    local more, truly = sum - most, {}
    for at = 1, #used - 1, 2 do truly[used[at]] = used[at + 1] end
    for _, one in ipairs(took) do
      local gone = math.min(more, one[2] - (truly[one[1]] or 0))
      if gone > 0 then
        local less = of_bucket(state, one[1], -gone)
        one[2], more, changed = one[2] - gone, more - gone, changed + less
      end
    end
    if dead == 1 and sum < least then
      local slice = width == 0 and 0 or math.floor(now / width)
      changed = of_bucket(state, slice, least - sum)
      add(took, slice, least - sum)
    end
    if changed ~= 0 then redis.call('SET', bucket, cmsgpack.pack(state), 'KEEPTTL') end
    if dead == 1 then
      local all = slices_of(before, 3, since)
      for _, one in ipairs(took) do add(all, one[1], one[2]) end
      names[#names + 1] = who
      redis.call('SET', kept, cmsgpack.pack(kept_as({since, names}, all)), 'PX', lives)
      redis.call('DEL', mine)
    elseif changed ~= 0 then
      redis.call('SET', mine, cmsgpack.pack(kept_as({since}, took)), 'KEEPTTL')
    end
  end
  answer[2 * index - 1], answer[2 * index] = done, -changed
end
return answer
"""
"""Settles what one process took of buckets of one limit.
    KEYS[1] the process; then for each bucket: the bucket, what this process took of it, what its replica has settled
    ARGV[1] MessagePack: [who, dead, place, width, window, lives, items]:
        dead    1: it has ended, and nothing of it counts from now on but what it used; 0: only what it took too much comes back
        place   of the budget in the bucket's array; width, window: of a rolling window's slices and all of it, microseconds; 0 for others
        lives   until when the budget counts, in milliseconds
        items   for each bucket [since, expected, least, most, used]: since when the budget counts there; what the process must have taken
                still, -1 for whatever it is; what it used at least and at most, as the log says; and that by slices: slice, amount, ...
The answer: for each bucket whether that is done (it is not where something has changed meanwhile), and how much came back (below 0: was
charged). Done twice, it changes nothing: the replica's entry names the processes that are settled."""


class Took(Struct, frozen=True):
    """What one process took of one bucket. since: as the bucket has it, microseconds. slices: in units; one, WHOLE, for the calendar."""

    since: int
    slices: Mapping[int, int]

    @property
    def units(self) -> int:
        return sum(self.slices.values())


class Item(Struct, frozen=True):
    """What the log says of one process and bucket, in units. since: of the bucket. expected: what it must have taken still; None for
    whatever it is. used: by slices. most: as used, if what is in doubt is, too; least: without that."""

    bucket: bytes
    since: int
    used: Mapping[int, int]
    least: int
    most: int
    expected: int | None = None


def read_took(raw: bytes | None, meter: Meter, now: int, *, settled: bool = False) -> Took | None:
    """raw: the value of its key. now: microseconds since the epoch by the clock of Redis. settled: it is what a replica has settled."""
    try:
        found: Any = None if raw is None else _DECODE(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    first = 2 if settled else 1
    if not isinstance(found, list) or len(found) < first or not isinstance(found[0], int):
        return None
    ticks = Ticks(meter)
    numbers = [one for one in found[first:] if isinstance(one, int) and one >= 0]
    pairs = zip(numbers[::2], numbers[1::2], strict=False)
    live = ticks.drain == 0
    slices = {number: amount * ticks.scale for number, amount in pairs if live or (number + 1) * ticks.begin + ticks.end > now}
    return Took(found[0], slices)


def argument(who: str, meter: Meter, place: int, items: Sequence[Item], now: int, *, dead: bool) -> bytes:
    """The argument of SETTLE. place: of the meter in its limit. now: by the clock of Redis."""
    ticks = Ticks(meter)
    ends = ticks.turn(now) - now if ticks.calendar else ticks.begin + ticks.end
    lines = []
    for one in items:
        used = [value for slice, units in sorted(one.used.items()) for value in (slice, ticks.of(units))]
        expected = -1 if one.expected is None else ticks.of(one.expected)
        lines.append([one.since, expected, ticks.of(one.least), ticks.of(one.most), used])
    rolling = ticks.drain < 0
    return _ENCODE([who, int(dead), 4 + 3 * place, ticks.begin if rolling else 0, ticks.end if rolling else 0, ends // 1000 + 1, lines])
