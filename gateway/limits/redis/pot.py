"""A process's side of one bucket in Redis: what was last heard of it, and what it may do by itself while Redis is away.

What is inherited from Bucket is the view for headers and errors: debts as of the last answer, as if its moment were 0.
"""

from __future__ import annotations

from typing import Final

from gateway.limits.bucket import Bucket, Shape
from gateway.limits.counter import ALERTS
from gateway.limits.redis.hand import Hand
from gateway.limits.redis.meters import MOST, NEVER, PS, SESSION, Ticks
from gateway.limits.redis.names import took_of
from gateway.transport.redis.resp import word_of

PINNED: Final = 10_000_000
"""Microseconds for which a pot is kept after it was heard of."""
HINT: Final = 20_000
CROWDED_HINT: Final = 5_000
"""For so many microseconds at most after a refusal, the same is refused without asking again."""
LOWER: Final = 10
"""Percent of a budget that must come back before a share is told of again: what is reserved comes and goes."""
CROWDED, OVER, SHORT = 1, 2, 4
"""What an answer says of a bucket: all slots are taken; the session has lasted too long; there was too little."""


class Terms:
    """What all pots of one limit share. It follows the limit's settings, and windows of the calendar. wire: how the script is told of it.
    turn: changes when pots must adapt. budget_at: which of the amounts is a budget; -1 for none. leased: shares may be taken in advance."""

    __slots__ = ("_units", "_until", "budget_at", "calendar", "leased", "meters", "shape", "turn", "wire")

    def __init__(self, shape: Shape, now: int) -> None:
        self.shape = shape
        self.turn = 0
        self._build(now)

    def follow(self, now: int) -> None:
        """now: microseconds since the epoch, by the clock of Redis."""
        if self._units is not self.shape.units or now >= self._until:
            self._build(now)

    def _build(self, now: int) -> None:
        shape = self.shape
        self.turn += 1
        self.leased = shape.spec.precision == "leased" and not shape.concurrent and not shape.wall_ps
        self._units, self._until = shape.units, NEVER
        self.meters = [Ticks(meter) for meter in shape.meters]
        self.calendar, self.budget_at = False, -1
        for index, meter in enumerate(self.meters):
            if meter.meter.budget is not None:
                self.budget_at = index
            if meter.calendar:
                self.calendar = True
                self._until = min(self._until, meter.turn(now))
        wire = [shape.concurrent, shape.wall_ps // PS, 1 if shape.enforce else 0]
        for meter in self.meters:
            wire += (meter.unit, meter.drain, meter.burst, meter.begin, meter.end)
        self.wire = wire

    def ticks(self, units: list[int]) -> list[int]:
        found: list[int] = []
        for index, meter in enumerate(self.meters):
            found.append(meter.of(units[index]))
        return found


class Pot(Bucket):
    """word: its key as a word of a command. debts, seen: as last heard, in ticks of `meters`, and microseconds of our own clock.
    full_house: all slots are taken; ended: the session has lasted too long; waits: until a window lets the last request pass, in
    microseconds. asked: requests that Redis has not decided yet. told: Redis may believe that this process holds slots. short_until: until
    then what costs at least `short_costs` is refused without asking. share: the part of a budget, of ALERTS, that was last told of here.
    hand: what was taken in advance. took: see `took_by`.

    While Redis is away, `own` are the debts that count here, scaled by the number of processes; `base` what they were at `base_at`, when
    that began, in the outage of this number; `empty_at` when each was 0 at last.
    """

    __slots__ = (
        "asked",
        "base",
        "base_at",
        "call",
        "debts",
        "empty_at",
        "ended",
        "full_house",
        "hand",
        "index",
        "meters",
        "outage",
        "own",
        "own_at",
        "seen",
        "share",
        "short_costs",
        "short_until",
        "terms",
        "told",
        "took",
        "turn",
        "waits",
        "word",
    )

    def __init__(self, terms: Terms, shape: Shape, key: tuple[str, ...], word: bytes) -> None:
        super().__init__(shape, key, 0)
        self.terms, self.word, self.turn, self.meters = terms, word, terms.turn, terms.meters
        self.debts: list[int] = [0] * len(terms.meters)
        self.seen = self.asked = self.call = self.index = self.waits = 0
        self.full_house = self.told = self.ended = False
        self.outage = self.own_at = self.base_at = self.short_until = self.share = 0
        self.short_costs: list[int] = []
        self.own: list[int] = [0] * len(terms.meters)
        self.base: list[int] = [0] * len(terms.meters)
        self.empty_at: list[int] = [0] * len(terms.meters)
        self.took = (b"", b"")
        self.hand: Hand | None = Hand(len(terms.meters)) if terms.leased else None

    def took_by(self, holder: bytes) -> bytes:
        """The key of what a process took of its budget, as a word."""
        known, word = self.took
        if known != holder:
            word = word_of(took_of(self.word.split(b"\r\n", 2)[1], holder))
            self.took = holder, word
        return word

    def crowded(self) -> bool:
        return self.full_house

    def over(self, now: int) -> bool:
        return self.ended

    def wait(self, index: int, now: int) -> int:
        """Picoseconds until an amount that time does not refill is there again, as far as Redis said."""
        return self.waits * PS if self.shape.meters[index].budget is not None and self.waits else 1 << 62

    def free(self, now: int) -> bool:
        """Nobody uses it, so nothing is lost by forgetting it while Redis is there. now: microseconds of our own clock."""
        return self.in_use == 0 and self.asked == 0 and not self.told and self.seen + PINNED <= now

    def drained(self, now: int, redis_now: int) -> bool:
        """Whether all that was last heard has drained away since, so that a new pot is as good while Redis is away, too. now: microseconds
        of our own clock; redis_now: the same moment by the clock of Redis."""
        self.follow(redis_now)
        elapsed = now - self.seen
        if self.ended and elapsed < SESSION:
            return False
        for index, meter in enumerate(self.meters):
            debt = self.debts[index]
            if debt > 0 and not meter.lapsed(elapsed) and (meter.drain <= 0 or debt > elapsed * meter.drain):
                return False
        return True

    def follow(self, now: int) -> None:
        """Adapts to other settings of the limit, and to another window. now: microseconds since the epoch, by the clock of Redis."""
        terms = self.terms
        before = self.meters
        terms.follow(now)
        if self.turn != terms.turn:
            self.turn, self.units, self.meters = terms.turn, self.shape.units, terms.meters
            for index, (old, new) in enumerate(zip(before, terms.meters, strict=True)):
                if new.calendar and old.begin != new.begin:
                    self.share = 0
                    self.debts[index] = self.own[index] = self.base[index] = 0
                elif old.unit != new.unit:
                    for debts in (self.debts, self.own, self.base):
                        debts[index] = min(MOST, -(-debts[index] * new.unit // old.unit))
            self.short_until = 0
            self.hand = Hand(len(terms.meters)) if terms.leased else None

    def heard(self, now: int, flags: int, waits: int, debts: list[int]) -> None:
        """What Redis says of it."""
        self.seen, self.debts, self.waits = now, debts, waits
        self.full_house, self.ended = flags & CROWDED != 0, flags & OVER != 0
        self._show(debts)

    def _show(self, debts: list[int]) -> None:
        cells = self.cells
        for index, meter in enumerate(self.terms.meters):
            cells[index].full = meter.shown(debts[index])

    def show_hand(self) -> None:
        """What is in hand counts as left."""
        hand = self.hand
        assert hand is not None
        cells = self.cells
        for index, meter in enumerate(self.terms.meters):
            left = self.debts[index] - hand.amounts[index]
            cells[index].full = meter.shown(left) if left > 0 else 0

    def nearly_spent(self) -> bool:
        """Whether more of the budget is used than was told of here, after `heard`; `share` says how much."""
        index = self.terms.budget_at
        used, burst = self.debts[index] * 100, self.terms.meters[index].burst
        share = self.share
        if share and used < (share - LOWER) * burst:
            self.share = share = 0  # another window, or it was made full again
        if used < ALERTS[0] * burst:
            return False
        for one in ALERTS:
            if used >= one * burst and one > self.share:
                self.share = one
        return self.share > share

    def window(self, now: int) -> int:
        """How long what was told of the budget counts, in microseconds. now: since the epoch, by the clock of Redis."""
        meter = self.terms.meters[self.terms.budget_at]
        return meter.end - now if meter.calendar else meter.end

    def refused(self, costs: list[int]) -> None:
        """Remembers what a refusal says about the requests to come, after `heard`. A bucket that had enough says nothing. costs: ticks."""
        wait = CROWDED_HINT if self.full_house else HINT if self.ended else 0
        for meter, debt, cost in zip(self.terms.meters, self.debts, costs, strict=True):
            if (over := debt + cost - meter.burst) > 0:
                wait = max(wait, min(HINT, -(-over // meter.drain) if meter.drain > 0 else HINT))
        if wait:
            self.short_until = self.seen + wait
            self.short_costs = [0] * len(costs) if self.full_house or self.ended else costs

    def hopeless(self, costs: list[int]) -> bool:
        """Whether a request would be refused as the one before it was, until `short_until`. costs: ticks."""
        return all(cost >= short for cost, short in zip(costs, self.short_costs, strict=True))

    # --- while Redis is away: this process has one part in `parts` of everything. Its debts are counted `parts` times as large.

    def fits(self, now: int, outage: int, parts: int, costs: list[int]) -> bool:
        """Whether this process may admit a request by itself. Changes no amount. costs: ticks."""
        self.advance(now, outage)
        slots = self.shape.concurrent
        self.full_house = slots > 0 and self.in_use >= max(1, slots // parts)
        fits, over = not (self.full_house or self.ended), []
        meters = self.terms.meters
        for meter, debt, cost in zip(meters, self.own, costs, strict=True):
            over.append(debt + scaled(meter, cost, parts) - _whole(meter, parts))
            if over[-1] > 0:
                fits = False
        if fits:
            left = [max(0, meter.burst - debt) // parts for meter, debt in zip(meters, self.own, strict=True)]
            self._show([meter.burst - one for meter, one in zip(meters, left, strict=True)])
        else:  # so that the wait that is told is this process's
            self._show([meter.burst - cost + one for meter, cost, one in zip(meters, costs, over, strict=True)])
        return fits

    def take_own(self, parts: int, costs: list[int]) -> list[int]:
        """Charges what `fits` allowed, and returns what that is in ticks."""
        charged = []
        for index, meter in enumerate(self.terms.meters):
            price = scaled(meter, costs[index], parts)
            self.own[index] = min(MOST, self.own[index] + price)
            charged.append(price // parts)
        return charged

    def correct_own(self, now: int, outage: int, parts: int, amounts: list[int]) -> None:
        """Charges more, or gives back."""
        self.advance(now, outage)
        for index, amount in enumerate(amounts):
            self.own[index] = max(0, min(MOST, self.own[index] + amount * parts))

    def advance(self, now: int, outage: int) -> None:
        """Lets the time pass. now: microseconds of our own clock."""
        if self.outage != outage:
            self.outage, self.own_at = outage, self.seen
            elapsed = now - self.seen
            self.own = [0 if meter.lapsed(elapsed) else debt for meter, debt in zip(self.meters, self.debts, strict=True)]
            self.ended = self.ended and elapsed < SESSION
            self._drain(now)
            self.base, self.base_at = list(self.own), now
        else:
            self._drain(now)

    def _drain(self, now: int) -> None:
        elapsed, self.own_at = now - self.own_at, now
        if elapsed > 0:
            for index, meter in enumerate(self.terms.meters):
                if meter.drain > 0:
                    self.own[index] -= elapsed * meter.drain
                    if self.own[index] <= 0:
                        self.own[index], self.empty_at[index] = 0, now

    def carried(self, now: int, outage: int, parts: int) -> list[int]:
        """What Redis must be told after an outage: what was admitted here meanwhile and has not drained away. It counts as heard from Redis
        from now on, for the next outage and for deciding whether this pot may be forgotten."""
        self.advance(now, outage)
        elapsed = now - self.base_at
        found: list[int] = []
        debts: list[int] = []
        for meter, debt, base in zip(self.terms.meters, self.own, self.base, strict=True):
            left = max(0, base - elapsed * meter.drain) if meter.drain > 0 else base
            more = max(0, -(-(debt - left) // parts))
            found.append(more)
            debts.append(min(MOST, left + more))
        self.debts, self.seen = debts, now
        return found

    def drained_since(self, now: int) -> int:
        """Since when time has refilled what was admitted here, and not what was used before the outage: the earliest of all meters. Redis
        has refilled the same for others, who have come back before."""
        found = now
        for index, meter in enumerate(self.terms.meters):
            if meter.drain > 0 and self.own[index] > 0:
                found = min(found, max(self.base_at - (-self.base[index] // meter.drain), self.empty_at[index]))
        return found


def scaled(meter: Ticks, cost: int, parts: int) -> int:
    """What a cost in ticks is here: at most the whole part, so that what fits into the limit fits into an unused part of it."""
    return min(cost * parts, _whole(meter, parts))


def _whole(meter: Ticks, parts: int) -> int:
    """The debt of a part that is empty. A part is one unit at least."""
    return max(meter.burst, meter.unit * parts)
