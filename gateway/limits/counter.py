"""The store's side of an amount: the state of one counter, as kept in a row, and how it changes when a process asks. Pure.

Processes take blocks. A block is charged when it is handed out, and what is not used comes back later. What a killed process had not used
comes back once the audit log says what it did use (`settled`); therefore budgets note who took how much (`by`). There are three kinds:

- A window of the calendar: the sum of the window. Blocks are valid until it ends.
- A rolling window: sums of slices of a sixtieth of it. A slice counts until its last moment, plus the life of a block, has left the window,
  so no window of this length ever has more used than the amount.
- A rate: the time at which it would be full again, as in gateway.limits.bucket but by the database's clock, and what each process holds. It
  refills only up to the burst minus what is held, so what is left and what is held are together never more than the burst. So between any
  two moments no more than burst + rate x time is admitted, whatever happens to a process: what it held when its time was over counts as
  used then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from gateway.core.specs import BudgetSpec
from gateway.limits.meter import SECOND, Meter
from gateway.limits.windows import span

State = dict[str, Any]
LIFE: Final = 20.0
"""Seconds that a block of a rate or of a rolling window is good for."""
SLICES: Final = 60
ALERTS: Final = (50, 80, 100)
"""Percent of a budget."""
ALMOST: Final = 80
"""From this percentage of a budget on, a refusal means that it is spent."""
AHEAD: Final = 8
"""At most this share of what is left, divided by the number of replicas, is handed out in advance."""
TWICE: Final = 2
"""A rate's past, even a debt, is forgotten after so many times as long as it takes to fill from empty."""
KEPT: Final = 86_400.0 * 7
"""Seconds for which the row of a window is kept after it has ended."""


class Ask(Struct, frozen=True):
    """A process's report and request. holder: the process, as `REPLICA:INCARNATION`. replicas: how many there are. window: the window of
    what it gives `back`. owed: what it used without having it. held: what it still holds. need: the least that helps. want: enough for all
    that wait. ahead: what it would like beyond that. first: no earlier process of the replica has anything left to be settled
    (`settled`)."""

    limit: str
    meter: Meter
    key: tuple[str, ...]
    holder: str
    replicas: int = 1
    window: int = -1
    back: int = 0
    owed: int = 0
    held: int = 0
    need: int = 0
    want: int = 0
    ahead: int = 0
    first: bool = False


class Given(Struct, frozen=True):
    """The answer. left: what else is left. window: for the next Ask. seconds: how long the block is valid. wait: seconds until the least
    that was needed will be there. crossed: the highest of ALERTS, in percent, that the budget passed with this; 0: none. Each is reported
    to one process, once in a window."""

    granted: int
    left: int
    window: int
    seconds: float
    wait: float = 0.0
    crossed: int = 0


def counted(state: State | None, ask: Ask, now: float) -> tuple[State, Given]:
    """The counter's new state, and the answer. now: seconds since the epoch by the clock of the database."""
    meter = ask.meter
    if meter.budget is None:
        return _rate(state or {}, ask, int(now * 1_000_000) * 1_000_000, now)
    if isinstance(meter.budget.window, str):
        return _calendar(state or {}, ask, meter.budget, now)
    return _rolling(state or {}, ask, meter.budget.window.rolling, now)


def used(state: State | None, meter: Meter, now: float) -> int:
    """What is used of the amount now, with what processes hold."""
    return meter.burst - counted(state, Ask("", meter, (), ""), now)[1].left


def by_replica(state: State, replica: str) -> int:
    """What the processes of one replica took of a window of the calendar, minus what they gave back. What no process is known to have taken
    counts as this replica's."""
    others = sum(int(units) for name, units in state.get("by", {}).items() if replica_of(name) != replica)
    return int(state.get("used", 0)) - others


def replica_of(holder: str) -> str:
    return holder.rpartition(":")[0]


def settled(state: State, meter: Meter, holders: Sequence[str], spent: int, now: float) -> tuple[State, int]:
    """Settles what ended processes of one replica really used (in the window of the calendar, or since they began): the rest of what they
    took comes back. Returns the counter and how much came back; less than 0 means that they had used more than they could report. Doing it
    twice changes nothing, since a process may be killed before it has noted that it did."""
    assert meter.budget is not None
    done: list[str] = state.get("settled", [])
    if set(done) & set(holders):
        return state, 0
    state = {**state, "settled": [*done, *holders]}
    by: dict[str, int] = dict(state.get("by", {}))
    if isinstance(meter.budget.window, str):
        number = int(span(meter.budget.window, meter.budget.timezone, now)[0])
        if state.get("window", number) != number:
            return state, 0
        took = sum(by.pop(holder, 0) for holder in holders)
        lost = took - spent
        base = f"{replica_of(holders[0])}:"
        by[base] = by.get(base, 0) + spent
        return {**state, "window": number, "used": max(0, int(state.get("used", 0)) - lost), "by": by}, lost
    lost = sum(by.pop(holder, 0) for holder in holders) - spent
    width = max(1.0, meter.budget.window.rolling / SLICES)
    slices = [[int(n), int(u)] for n, u in state.get("slices", ())] if state.get("width", width) == width else []
    _take_off(slices, lost)
    if lost < 0:
        slices.append([int(now / width), -lost])
    return {**state, "width": width, "slices": slices, "by": by}, lost


def forgiven(now: float) -> State:
    """A counter that is full again: what was used before no longer counts."""
    return {"since": now}


def _kept(state: State, ask: Ask, begin: float) -> State:
    """What stays in the row besides the amounts: when the counter was last made full, if that was after `begin`, and which processes are
    settled, until all are."""
    kept: State = {}
    if (since := float(state.get("since", 0.0))) > begin:
        kept["since"] = since
    if "settled" in state and not ask.first:
        kept["settled"] = state["settled"]
    return kept


def _taken_by(by: Mapping[str, int], ask: Ask, more: int, *, lasting: bool) -> dict[str, int]:
    """What each process took. lasting: what processes took that are settled is kept for their replica."""
    found = dict(by)
    if ask.first:
        replica = replica_of(ask.holder)
        earlier = [name for name in found if name != ask.holder and replica_of(name) == replica]
        took = sum(found.pop(name) for name in earlier)
        if lasting and earlier:
            found[f"{replica}:"] = took
    if ask.holder and more:
        found[ask.holder] = found.get(ask.holder, 0) + more
    return found


def expires(state: State, meter: Meter, now: float) -> float:
    """The moment from which the row can be deleted, because nothing in it counts any more."""
    if meter.budget is None:
        forgiven = float(state.get("since", 0.0)) + TWICE * meter.burst_ps / SECOND
        return max(now, int(state.get("full", 0)) / SECOND, forgiven) + LIFE
    if isinstance(meter.budget.window, str):
        return span(meter.budget.window, meter.budget.timezone, now)[1] + KEPT
    return now + meter.budget.window.rolling * (1 + 2 / SLICES) + LIFE


def _granted(left: int, ask: Ask) -> int:
    if left < ask.need or left <= 0:
        return 0
    ahead = min(ask.ahead, max(0, left - ask.want) // (AHEAD * max(1, ask.replicas)))
    return min(left, ask.want + ahead)


def _calendar(state: State, ask: Ask, budget: BudgetSpec, now: float) -> tuple[State, Given]:
    assert isinstance(budget.window, str)
    begin, end = span(budget.window, budget.timezone, now)
    if state.get("window") == int(end):  # the clock was put back over its beginning: it has begun, and does not begin again
        begin, end = span(budget.window, budget.timezone, end)
    number = int(begin)
    same = state.get("window", number) == number
    used, more = int(state.get("used", 0)) if same else 0, 0
    if ask.window in (number, -1):
        more = ask.owed - ask.back
        used = max(0, used + more)
    left = max(0, ask.meter.burst - used)
    granted = _granted(left, ask)
    told, crossed = _crossed(used + granted, ask, granted, int(state.get("told", 0)) if same else 0)
    by = _taken_by(state.get("by", {}) if same else {}, ask, more + granted, lasting=True)
    after = {"window": number, "used": used + granted, "told": told, "by": by, **_kept(state, ask, begin)}
    return after, Given(granted, left - granted, number, end - now, end - now, crossed)


def _crossed(used: int, ask: Ask, granted: int, told: int) -> tuple[int, int]:
    """(the highest share that was told of or is now, the one that is new or 0). What is left may be too little for every request, so a
    refusal after ALMOST counts as the whole."""
    most = ask.meter.burst
    if ask.need > 0 and not granted and used * 100 >= ALMOST * most:
        used = most
    share = max((one for one in ALERTS if used * 100 >= one * most), default=0)
    return max(told, share), share if share > told else 0


def _rolling(state: State, ask: Ask, window: float, now: float) -> tuple[State, Given]:
    width = max(1.0, window / SLICES)
    kept = width + window + LIFE
    present = int(now / width)
    slices = [[int(n), int(u)] for n, u in state.get("slices", ()) if state.get("width") == width and n * width + kept > now and u > 0]
    for one in slices:
        one[0] = min(one[0], present)  # the clock was put back: what was noted in its future was noted now
    _take_off(slices, ask.back)
    used = sum(one[1] for one in slices) + ask.owed
    left = max(0, ask.meter.burst - used)
    granted = _granted(left, ask)
    wait, free = 0.0, left - granted
    for number, units in slices:
        if free >= max(1, ask.need):
            break
        free += units
        wait = number * width + kept - now
    if granted or ask.owed:
        if not slices or slices[-1][0] < present:
            slices.append([present, 0])
        slices[-1][1] += granted + ask.owed
    told = int(state.get("told", 0)) if slices[:-1] else 0
    told, crossed = _crossed(used + granted, ask, granted, told)
    by = _taken_by(state.get("by", {}), ask, granted + ask.owed - ask.back, lasting=False)
    after = {"width": width, "slices": slices, "told": told, "by": by, **_kept(state, ask, now - kept)}
    return after, Given(granted, left - granted, 0, LIFE, wait, crossed)


def _take_off(slices: list[list[int]], units: int) -> None:
    """Takes so much off the newest slices."""
    for one in reversed(slices):
        gone = max(0, min(units, one[1]))
        one[1] -= gone
        units -= gone


def _rate(state: State, ask: Ask, now: int, seconds: float) -> tuple[State, Given]:
    meter, unit = ask.meter, ask.meter.unit
    full = int(state.get("full", 0))
    if (before := int(state.get("unit", unit))) != unit and full > now:
        full = now + -(-(full - now) * unit // before)
    back = max(0, int(state.get("at", now)) - now)  # the clock was put back: what was noted in its future was noted now
    full -= back
    held: dict[str, list[int]] = {name: [int(units), int(until) - back] for name, (units, until) in state.get("held", {}).items()}
    for name, (_, until) in sorted(held.items(), key=lambda one: one[1][1]):
        if until <= now:
            full = max(full, until + sum(units for units, _ in held.values()) * unit)
            del held[name]
    full = max(full, now + sum(units for units, _ in held.values()) * unit)
    mine = held.pop(ask.holder, [0, 0])[0]
    full -= min(ask.back, mine) * unit
    full = max(full, now) + ask.owed * unit
    left = max(0, meter.burst_ps - (full - now)) // unit
    granted = _granted(left, ask)
    full += granted * unit
    wait = max(0, full + max(1, ask.need) * unit - meter.burst_ps - now) / SECOND
    if holds := min(mine, ask.held) + granted:
        held[ask.holder] = [holds, now + int(LIFE * SECOND)]
    kept = _kept(state, ask, seconds - TWICE * meter.burst_ps / SECOND)
    return {"full": full, "unit": unit, "at": now, "held": held, **kept}, Given(granted, left - granted, 0, LIFE, wait)
