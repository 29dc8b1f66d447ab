"""A bucket in Redis as operators see it: what the script has written (gateway.limits.redis.script), read without changing it. Pure.

What cannot be read counts as nothing, as it does in the script.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.limits.bucket import Shape
from gateway.limits.meter import SECOND
from gateway.limits.redis.hand import KEPT
from gateway.limits.redis.meters import Ticks

_DECODE = msgspec.msgpack.Decoder().decode


class AmountSeen(Struct, frozen=True):
    """used, left: whole units, and of money billionths. resets: seconds until it is full again, or its window ends; None where time alone
    does not tell. ahead: of what is used, that processes have in hand."""

    used: int
    left: int
    resets: float | None
    ahead: int = 0


class BucketSeen(Struct, frozen=True):
    """amounts: in the order of the limit's meters. in_use: slots taken. since: of each meter, since when it counts what it does: its
    window began, it was made full then, or had drained. created: when it was unused at last. written: when it was changed last. All three
    in microseconds since the epoch by the clock of Redis."""

    amounts: tuple[AmountSeen, ...]
    in_use: int
    since: tuple[int, ...] = ()
    written: int = 0
    created: int = 0


def seen(shape: Shape, raw: bytes | None, now: int) -> BucketSeen:
    """raw: the value of its key; None for a bucket that is full and unused. now: microseconds since the epoch by the clock of Redis."""
    state = _state(raw)
    elapsed = max(0, now - _number(state, 0))
    amounts = []
    shares = _shares(shape, state, now)
    for index, meter in enumerate(shape.meters):
        ticks = Ticks(meter)
        end = ticks.turn(now) if ticks.calendar else 0
        debt = _debt(ticks, state, 3 + 3 * index, elapsed, now)
        out, least = _out(shares, index, ticks.drain, now)
        shown = ticks.shown(max(debt, least))
        left = meter.level(shown) if ticks.drain > 0 else max(0, meter.burst - shown)
        resets: float | None = None
        if ticks.drain > 0:
            resets = shown / SECOND
        elif end:
            resets = (end - now) / 1_000_000
        amounts.append(AmountSeen(meter.burst - left, left, resets, out // ticks.unit))
    since = tuple(_number(state, 4 + 3 * index) for index in range(len(shape.meters)))
    return BucketSeen(tuple(amounts), _in_use(state, now), since, _number(state, 0), _number(state, 2))


def _debt(ticks: Ticks, state: list[Any], place: int, elapsed: int, now: int) -> int:
    if ticks.drain < 0:
        return _slices(ticks, state, place, now)
    debt, before = _number(state, place), _number(state, place + 2)
    if before and before != ticks.unit:
        debt = -(-debt * ticks.unit // before)
    if ticks.begin and _number(state, place + 1) < ticks.begin:
        return 0
    return max(0, debt - elapsed * ticks.drain)


def _shares(shape: Shape, state: list[Any], now: int) -> list[tuple[int, list[int]]]:
    """The shares that processes had in hand when it was written: (until when, the amount of each meter)."""
    place = 3 + 3 * len(shape.meters)
    hands = state[place] if place < len(state) and isinstance(state[place], dict) else {}
    found = []
    for hand in hands.values():
        if isinstance(hand, list):
            amounts = [_number(hand, 1 + index) for index in range(len(shape.meters))]
            found.append((min(_number(hand, 0), now + KEPT), amounts))
    return found


def _out(shares: list[tuple[int, list[int]]], index: int, drain: int, now: int) -> tuple[int, int]:
    """(what is out of a meter, below which its debt is not): see gateway.limits.redis.script."""
    out = sum(amounts[index] for until, amounts in shares if until > now)
    least = out
    for until, _ in shares:
        if until <= now:
            before = sum(amounts[index] for other, amounts in shares if other >= until)
            least = max(least, before - (now - until) * drain)
    return out, least


def _slices(ticks: Ticks, state: list[Any], place: int, now: int) -> int:
    kept = state[place] if place < len(state) and isinstance(state[place], list) else []
    numbers = [(_number(kept, at), _number(kept, at + 1)) for at in range(0, len(kept) - 1, 2)]
    return sum(amount for number, amount in numbers if (number + 1) * ticks.begin + ticks.end > now)


def _in_use(state: list[Any], now: int) -> int:
    held = state[1] if len(state) > 1 and isinstance(state[1], dict) else {}
    slots = [one for one in held.values() if isinstance(one, list)]
    return sum(_number(one, 0) for one in slots if _number(one, 1) > now)


def _state(raw: bytes | None) -> list[Any]:
    if raw is None:
        return []
    try:
        found = _DECODE(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _number(state: list[Any], place: int) -> int:
    value = state[place] if place < len(state) else 0
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 53 else 0
