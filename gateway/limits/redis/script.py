"""What Redis runs: one script that settles, renews and decides everything that a process has gathered, in one call.

EVALSHA and not FCALL: a script is named by the hash of its text, so gateways of different versions use one Redis without knowing of each
other, nothing has to be installed or cleaned up, and it works wherever scripts do (Redis 6.2, Valkey, services that refuse FUNCTION). What
a function would give, that it is still there after a failover, costs one more round trip here: the answer NOSCRIPT means that nothing has
happened, and the call is repeated with EVAL.

The call:
    KEYS[1] the process. KEYS[2], ... the buckets; then, for each of `budgets`, what this process took of it.
    ARGV[1] MessagePack: [who, epoch, number, hold, shapes, notes, holds, asks, takes, keep, budgets], all but `who` whole numbers below
    2^53:
        epoch       of the connection; after a later one was heard, calls of an earlier one do nothing (the answer is STALE)
        number      of the notes; those of a number that was done are not done again. 0: there are none
        hold        for how long a slot belongs to the process without being renewed, microseconds
        shapes      for each bucket [slots, how long a session may last, whether it is enforced, then for each meter: unit, drain, burst,
                    begin, end]: see gateway.limits.redis.meters
        notes       flat: bucket, taken_at, slots given back, amount of each meter; for each settlement. Slots below 0: what one of so many
                    processes admitted by itself and has not drained away; it counted one part of what drains from `taken_at` on.
                    `taken_at` below 0: this was admitted then, and too late for anybody to use
        holds       flat: bucket, slots, whether that is all; for each bucket of which the process holds slots. If it is not all, they are
                those that this must know of: it has forgotten some if it counts fewer
        asks        flat: number of buckets, then for each bucket its number and the amount of each meter; for each request
        takes       flat: bucket, for how many requests a share is wanted, then for each meter: what is left of the process's share, what it
                    gives back of it, how much it wants; for each share that is taken in advance
        keep        for how long a share is out without being told of, microseconds
        budgets     flat: bucket, number of the meter; for each bucket that counts a budget
The answer, MessagePack: [now, for each request 1 or 0, then for each of its buckets: 1 if all slots are taken + 2 if the session has lasted
too long + 4 if it had too little of anything; how long until a window lets it pass; and each meter's debt; then for each share: what is
given of each meter, and each meter's debt]. Times are microseconds.

What a request used counts in the window in which it was admitted: a budget is charged nothing by settlements of reservations from before
its window began, or before it was made full again.

What a process took of a budget, less what it gave back, is kept beside the bucket: MessagePack of [since when the budget counts, slice,
amount, slice, amount, ...]; a window of the calendar is one slice, 0. So what a process that is killed had reserved can be told from what
others used (gateway.limits.redis.took). What comes back to a rolling window comes back to the slice in which it was taken.

What an answer admitted that came too late comes back less what has drained since: if the bucket would have been full without it, it was
not refilled, and others have had that since.

What drains counts once: while processes come back from an outage one after the other, those that are back have the whole of it, and the
others still count their parts. So what these admitted since the bucket was full at last is charged whole.

A bucket is a string: MessagePack of [when it was written, {process: [slots, until]}, since, then for each meter: debt, idle since, unit;
then, where shares are out, {process: [until, amount of each meter]}]. A share was charged when it was given, and the debt of a bucket does
not fall below what is out: so it refills up to its burst minus that, and whoever takes from it and whoever uses a share admit no more than
burst + rate x time together. Since nobody tells of a share that expired, the debt of a moment is found from those that were out until then.
The debt of a rolling window is the list of its slices: [number, amount, number, amount, ...]. The time to live of a bucket is the time
until it would be full and unused, so that it means the same whether it is there or not. All numbers are whole and below 2^53, so the
doubles of Lua count exactly. After the clock has stepped back (it is another master's) no bucket waits for it: what was written in its
future counts as written now. Everything is decided before anything is written: a Redis that takes no writes (READONLY, OOM) fails the
first one, and then nothing has happened. A call without requests always writes, so that it shows whether that works.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

LUA: Final = b"""
local call = cmsgpack.unpack(ARGV[1])
local who, epoch, number, hold, shapes, notes, holds, asks, takes, keep, budgets = unpack(call, 1, 11)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local raws = redis.call('MGET', unpack(KEYS))

local heard, done = 0, 0
if raws[1] then
  local fine, process = pcall(cmsgpack.unpack, raws[1])
  if fine and type(process) == 'table' then
    heard, done = tonumber(process[1]) or 0, tonumber(process[2]) or 0
  end
end
if epoch < heard then
  return redis.error_reply('STALE another connection of this process was heard')
end

local buckets, changed, counts = {}, {}, {}
for at = 1, #budgets, 2 do
  counts[budgets[at]] = {budgets[at + 1], #shapes + 1 + (at + 1) / 2}
end

local function number_at(state, place)
  local value = state[place]
  if type(value) == 'number' and value >= 0 and value < 9007199254740992 and value == math.floor(value) then return value end
  return 0
end

local function slices_of(found, meter, value)
  local base = 5 * meter - 2
  local width, window = found.shape[base + 4], found.shape[base + 5]
  local kept, sum = {}, 0
  if type(value) == 'table' then
    for at = 1, #value - 1, 2 do
      local first, amount = number_at(value, at), number_at(value, at + 1)
      if amount > 0 and first * width + width + window > now then
        kept[#kept + 1], kept[#kept + 2] = first, amount
        sum = sum + amount
      end
    end
  end
  found.slices[meter] = kept
  return sum
end

local function shares_of(found, state, written)
  local gone, sums = {}, {}
  for process, hand in pairs(written) do
    if type(hand) == 'table' then
      local mine = {math.min(number_at(hand, 1), now + keep)}
      for meter = 1, found.count do
        local unit, before, amount = found.shape[5 * meter - 1], number_at(state, 3 * meter + 3), number_at(hand, meter + 1)
        if before > 0 and before ~= unit then amount = math.ceil(amount * unit / before) end
        mine[meter + 1] = amount
        if mine[1] > now then sums[meter] = (sums[meter] or 0) + amount end
      end
      if mine[1] > now then found.hands[process] = mine else gone[#gone + 1] = mine end
    end
  end
  for meter = 1, found.count do
    local drain, out = found.shape[5 * meter], sums[meter] or 0
    local debt = math.max(found.debts[meter], out)
    for _, one in ipairs(gone) do
      local least = out - (now - one[1]) * drain
      for _, other in ipairs(gone) do
        if other[1] >= one[1] then least = least + other[meter + 1] end
      end
      debt = math.max(debt, least)
    end
    found.debts[meter] = debt
  end
end

local function out_of(found, meter)
  local out = 0
  for _, hand in pairs(found.hands) do out = out + hand[meter + 1] end
  return out
end

local function mine_of(found, count)
  local meter, raw, mine = count[1], raws[count[2]], {}
  local width, window = found.shape[5 * meter + 2], found.shape[5 * meter + 3]
  local fine, value = false, nil
  if raw then fine, value = pcall(cmsgpack.unpack, raw) end
  if fine and type(value) == 'table' and number_at(value, 1) == found.idle[meter] then
    for at = 2, #value - 1, 2 do
      local slice, amount = number_at(value, at), number_at(value, at + 1)
      if amount > 0 and (not found.slices[meter] or slice * width + width + window > now) then
        mine[#mine + 1], mine[#mine + 2] = slice, amount
      end
    end
  end
  found.budget, found.key, found.mine = meter, count[2], mine
end

local function i_took(found, meter, slice, amount)
  if found.budget ~= meter or amount == 0 then return end
  local mine = found.mine
  found.taken = true
  for at = #mine - 1, 1, -2 do
    if mine[at] == slice then
      mine[at + 1] = math.max(0, mine[at + 1] + amount)
      return
    end
  end
  if amount > 0 then mine[#mine + 1], mine[#mine + 2] = slice, amount end
end

local function bucket(index)
  local found = buckets[index]
  if found then return found end
  local shape = shapes[index]
  local count = (#shape - 3) / 5
  found = {shape = shape, count = count, debts = {}, idle = {}, slices = {}, held = {}, hands = {}, used = 0, since = now}
  buckets[index] = found
  local state = {}
  local raw = raws[index + 1]
  if raw then
    local fine, value = pcall(cmsgpack.unpack, raw)
    if fine and type(value) == 'table' then
      state = value
      if number_at(state, 3) > 0 then found.since = math.min(state[3], now) end
    end
  end
  local elapsed = now - number_at(state, 1)
  if elapsed < 0 then
    elapsed, changed[index] = 0, true
  end
  for meter = 1, count do
    local base, place = 5 * meter - 2, 3 * meter + 1
    local unit, drain, begin = shape[base + 1], shape[base + 2], shape[base + 4]
    local idle = number_at(state, place + 1)
    if begin == 0 and idle > now then idle = now end
    if drain < 0 then
      found.debts[meter] = slices_of(found, meter, state[place])
    else
      local debt = number_at(state, place) - elapsed * drain
      local before = number_at(state, place + 2)
      if before > 0 and before ~= unit then debt = math.ceil(number_at(state, place) * unit / before) - elapsed * drain end
      if begin > 0 then
        if idle < begin then debt = 0 end
        idle = math.max(idle, begin)
      end
      found.debts[meter] = debt > 0 and debt or 0
    end
    found.idle[meter] = idle
  end
  if counts[index] then mine_of(found, counts[index]) end
  local shares = state[3 * count + 4]
  if type(shares) == 'table' then
    shares_of(found, state, shares)
    changed[index] = true
  end
  if type(state[2]) == 'table' then
    for process, slots in pairs(state[2]) do
      if type(slots) == 'table' and number_at(slots, 2) > now and number_at(slots, 1) > 0 then
        found.held[process] = {slots[1], math.min(slots[2], now + hold)}
        found.used = found.used + slots[1]
      end
    end
  end
  return found
end

local function charge(found, meter, amount)
  local base = 5 * meter - 2
  if found.shape[base + 2] < 0 then
    local slices = found.slices[meter]
    local present = math.floor(now / found.shape[base + 4])
    if #slices == 0 or slices[#slices - 1] < present then
      slices[#slices + 1], slices[#slices + 2] = present, 0
    end
    slices[#slices] = slices[#slices] + amount
    i_took(found, meter, slices[#slices - 1], amount)
  elseif found.debts[meter] == 0 and found.shape[base + 4] == 0 then
    found.idle[meter] = now
  end
  local debt = math.min(found.debts[meter] + amount, 4503599627370496)
  if not found.slices[meter] then i_took(found, meter, 0, debt - found.debts[meter]) end
  found.debts[meter] = debt
end

local function give_back(found, meter, amount, taken_at)
  local slices = found.slices[meter]
  if slices then
    local left, newest = amount, math.floor(taken_at / found.shape[5 * meter + 2])
    for _, last in ipairs({newest, 9007199254740991}) do
      for at = #slices, 2, -2 do
        local gone = slices[at - 1] <= last and math.min(left, slices[at]) or 0
        slices[at], left = slices[at] - gone, left - gone
        i_took(found, meter, slices[at - 1], -gone)
      end
    end
    amount = amount - left
  end
  local debt = math.max(found.debts[meter] - amount, out_of(found, meter), 0)
  if not slices then i_took(found, meter, 0, debt - found.debts[meter]) end
  found.debts[meter] = debt
end

local function wait_of(found, meter, amount)
  local base = 5 * meter - 2
  local drain, begin, finish = found.shape[base + 2], found.shape[base + 4], found.shape[base + 5]
  if drain == 0 and begin > 0 then return math.max(0, finish - now) end
  if drain >= 0 then return 0 end
  local over, wait = found.debts[meter] + amount - found.shape[base + 3], finish
  local slices = found.slices[meter]
  for at = 1, #slices, 2 do
    over, wait = over - slices[at + 1], slices[at] * begin + begin + finish - now
    if over <= 0 then break end
  end
  return wait
end

local function take_slots(found, slots)
  local mine = found.held[who]
  if not mine then
    mine = {0, 0}
    found.held[who] = mine
  end
  if mine[1] + slots < 0 then slots = -mine[1] end
  mine[1], mine[2] = mine[1] + slots, now + hold
  found.used = found.used + slots
  if mine[1] == 0 then found.held[who] = nil end
end

local writes = number > done or epoch > heard or #asks == 0
if number > done then
  done = number
  local at, last = 1, #notes
  while at <= last do
    local index, taken_at, slots = notes[at], notes[at + 1], notes[at + 2]
    local found, late = bucket(index), taken_at < 0
    if late then taken_at = -taken_at end
    if slots > 0 then take_slots(found, -slots) end
    at = at + 3
    for meter = 1, found.count do
      local amount = notes[at]
      at = at + 1
      if slots < 0 and amount > 0 and found.shape[5 * meter] > 0 and found.debts[meter] > 0 then
        local since = math.max(taken_at, found.idle[meter])
        if since < now then amount = amount + math.floor((now - since) * found.shape[5 * meter] / -slots) end
      end
      local earlier = slots >= 0 and found.shape[5 * meter + 2] > 0 and found.idle[meter] > taken_at
      if amount > 0 and not earlier then
        charge(found, meter, amount)
      elseif amount < 0 and found.idle[meter] <= taken_at then
        if late then amount = amount + math.max(0, now - taken_at) * math.max(0, found.shape[5 * meter]) end
        if amount < 0 then give_back(found, meter, -amount, taken_at) end
      end
    end
    changed[index] = true
  end
end

for at = 1, #holds, 3 do
  local index, slots, all = holds[at], holds[at + 1], holds[at + 2]
  local found = bucket(index)
  local mine = found.held[who]
  if all == 1 or not mine or mine[1] < slots then
    take_slots(found, slots - (mine and mine[1] or 0))
  else
    mine[2] = now + hold
  end
  changed[index] = true
end

local place, past = 1, #takes
while place <= past do
  local index = takes[place]
  local found = bucket(index)
  local before, mine, any = found.hands[who], {now + keep}, false
  for meter = 1, found.count do
    mine[meter + 1] = takes[place + 3 * meter - 1]
    if mine[meter + 1] > 0 then any = true end
  end
  found.hands[who] = any and mine or nil
  for meter = 1, found.count do
    local had, rest = before and before[meter + 1] or 0, mine[meter + 1]
    if rest > had then
      charge(found, meter, rest - had)
    else
      give_back(found, meter, math.min(takes[place + 3 * meter], had - rest), now)
    end
  end
  changed[index] = true
  place = place + 2 + 3 * found.count
end

local answer, last = {now}, 1
local at, stop = 1, #asks
while at <= stop do
  local parts = asks[at]
  at = at + 1
  local first, fits, flags, waits = at, true, {}, {}
  for part = 1, parts do
    local found = bucket(asks[at])
    at = at + 1
    local shape, flag, wait = found.shape, 0, 0
    if shape[1] > 0 and found.used >= shape[1] then flag = 5 end
    if shape[2] > 0 and now - found.since > shape[2] then flag = 6 end
    for meter = 1, found.count do
      if found.debts[meter] + asks[at] > shape[5 * meter + 1] then
        if flag < 4 then flag = 4 end
        wait = math.max(wait, wait_of(found, meter, asks[at]))
      end
      at = at + 1
    end
    if flag >= 4 and shape[3] == 1 then fits = false end
    flags[part], waits[part] = flag, wait
  end
  last = last + 1
  answer[last] = fits and 1 or 0
  at = first
  for part = 1, parts do
    local index = asks[at]
    local found = buckets[index]
    local flag = flags[part]
    local taken = fits and flag < 4
    at = at + 1
    if taken then
      changed[index] = true
      if found.shape[1] > 0 then
        take_slots(found, 1)
        if found.used >= found.shape[1] then flag = flag + 1 end
      end
    end
    answer[last + 1], answer[last + 2] = flag, waits[part]
    last = last + 2
    for meter = 1, found.count do
      if taken then charge(found, meter, asks[at]) end
      at = at + 1
      last = last + 1
      answer[last] = found.debts[meter]
    end
  end
end

place = 1
while place <= past do
  local found, batch = bucket(takes[place]), takes[place + 1]
  local holders, part = 1, 1
  for process in pairs(found.hands) do
    if process ~= who then holders = holders + 1 end
  end
  for meter = 1, found.count do
    local wanted = takes[place + 3 * meter + 1]
    if wanted > 0 then
      part = math.min(part, math.max(0, found.shape[5 * meter + 1] - found.debts[meter]) / (2 * holders) / wanted)
    end
  end
  local whole = math.floor(part * batch)
  local mine = found.hands[who] or {now + keep}
  for meter = 1, found.count do
    local given = whole > 0 and math.floor(takes[place + 3 * meter + 1] * whole / batch) or 0
    if given > 0 then
      charge(found, meter, given)
      found.hands[who] = mine
    end
    mine[meter + 1] = (mine[meter + 1] or 0) + given
    answer[last + meter], answer[last + found.count + meter] = given, found.debts[meter]
  end
  last = last + 2 * found.count
  place = place + 2 + 3 * found.count
end

if writes then redis.call('SET', KEYS[1], cmsgpack.pack({epoch, done}), 'PX', 3600000) end
for index in pairs(changed) do
  local found = buckets[index]
  local shape = found.shape
  local state, lives = {now, found.held, found.since}, 0
  for meter = 1, found.count do
    local base, place, debt = 5 * meter - 2, 3 * meter + 1, found.debts[meter]
    local drain, begin, finish = shape[base + 2], shape[base + 4], shape[base + 5]
    state[place], state[place + 1], state[place + 2] = found.slices[meter] or debt, found.idle[meter], shape[base + 1]
    local until_full = 0
    if drain > 0 then
      until_full = math.ceil(debt / drain)
    elseif debt > 0 or begin > 0 and found.idle[meter] > (drain < 0 and now - begin - finish or begin) then
      until_full = drain < 0 and begin + finish or begin > 0 and finish - now or 86400000000
    end
    if until_full > lives then lives = until_full end
  end
  if shape[2] > 0 and lives < 86400000000 then lives = 86400000000 end
  for _, slots in pairs(found.held) do
    if slots[2] - now > lives then lives = slots[2] - now end
  end
  if next(found.hands) then
    state[3 * found.count + 4] = found.hands
    for _, hand in pairs(found.hands) do lives = math.max(lives, hand[1] - now) end
  end
  if lives > 0 then
    redis.call('SET', KEYS[index + 1], cmsgpack.pack(state), 'PX', math.ceil(lives / 1000) + 1)
  elseif raws[index + 1] then
    redis.call('DEL', KEYS[index + 1])
  end
  if found.taken then
    local base, kept = 5 * found.budget - 2, {found.idle[found.budget]}
    for at = 1, #found.mine, 2 do
      if found.mine[at + 1] > 0 then kept[#kept + 1], kept[#kept + 2] = found.mine[at], found.mine[at + 1] end
    end
    local ends = shape[base + 2] < 0 and shape[base + 4] + shape[base + 5] or shape[base + 5] - now
    if #kept > 1 and ends > 0 then
      redis.call('SET', KEYS[found.key], cmsgpack.pack(kept), 'PX', math.ceil(ends / 1000))
    elseif raws[found.key] then
      redis.call('DEL', KEYS[found.key])
    end
  end
end
return cmsgpack.pack(answer)
"""
SHA: Final = sha1(LUA).hexdigest()
