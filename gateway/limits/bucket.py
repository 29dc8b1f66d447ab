"""Buckets: what is left of every amount that one limit counts, for one caller. All amounts of a limit are one vector.

A rate is one number, the time at which it would be full again (GCRA, the "virtual scheduling" of ITU-T I.371), in whole picoseconds
(`ps`) of the monotonic clock. A rate of `rate` units in `per` seconds makes one unit cost per/rate, rounded up to a picosecond: what is
admitted is never more than burst + rate x time, and nothing drifts. If the "full again" time is past, the rate is full. Otherwise the
time until then is the debt, and the level is burst minus debt. It is negative after an exchange that cost more than was reserved.

A bound on a session is the same number on a clock that stands still: one unit costs 1, and nothing comes back.

An amount that must outlast the process, or be counted once over replicas, is taken in blocks from the store: then the block in hand
(gateway.limits.stock) decides, and the number only says how much there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Usage
from gateway.limits.meter import MILLISECOND, MONEY, SECOND, TOKENS, Meter, meters_of
from gateway.limits.stock import Need, Restock, Stock

__all__ = ["MILLISECOND", "SECOND", "Amounts", "Bucket", "Shape"]

MICRO: Final = 1_000_000
PLACES: Final = "queued"
"""In a layout: these buckets count places of queues. policies.limits makes them limits of their own."""
FORGET: Final = 86_400 * SECOND
"""A session without a request for so long has ended."""


class Amounts:
    """What one request costs, before it has run. of: by kind (REQUESTS and so on), tokens as they come. least: tokens that the prompt has
    for certain, none as long as they are still to be counted. certain: what these cost. currency: of the money."""

    __slots__ = ("certain", "completion", "currency", "least", "model", "of", "prompt", "raw")

    def __init__(self, request: InferenceRequest, raw: int, prompt: int, completion: int) -> None:
        self.model, self.raw = request.model, raw
        self.prompt, self.completion = prompt, completion
        self.least = prompt if request.most == 0 or request.counted > 0 else 0
        elements = prompt if request.operation == "infer" else 0
        price = request.price
        if price is None:
            self.currency = ""
            self.of = [1, prompt + completion, request.size, elements, 0]
            self.certain = 0
        else:
            self.currency = price.currency
            self.of = [1, prompt + completion, request.size, elements, price.bound(prompt, completion)]
            self.certain = price.bound(self.least, 0)


def bounded(request: InferenceRequest, buckets: Sequence[Bucket], now: int, amounts: Amounts) -> Amounts:
    """What to reserve for a prompt that could be counted: the most that it can have, where that leaves half of every amount. Otherwise what
    was guessed, and the request is told that it is to be counted."""
    if request.counted > 0:
        return amounts
    most = Amounts(request, amounts.raw, max(request.most, amounts.prompt), amounts.completion)
    if not request.cautious:
        for bucket in buckets:
            if not bucket.roomy(now, amounts, most):
                request.unsure = True
                return amounts
    return most


class Weights:
    """What a token of each kind counts, in millionths. The largest counts for a token whose kind is not known yet."""

    __slots__ = ("cached", "completion", "completion_most", "prompt", "prompt_most", "reasoning")

    def __init__(self, spec: LimitSpec) -> None:
        given = spec.weights
        self.prompt, self.completion = round(given.prompt * MICRO), round(given.completion * MICRO)
        self.cached = self.prompt if given.cached is None else round(given.cached * MICRO)
        self.reasoning = self.completion if given.reasoning is None else round(given.reasoning * MICRO)
        self.prompt_most, self.completion_most = max(self.prompt, self.cached), max(self.completion, self.reasoning)

    def bound(self, prompt: int, completion: int) -> int:
        """The most that so many tokens can count, rounded up."""
        return -(-(prompt * self.prompt_most + completion * self.completion_most) // MICRO)

    def of(self, usage: Usage) -> int:
        """What the tokens that were used count, rounded up."""
        prompt, completion = max(usage.prompt_tokens, 0), max(usage.completion_tokens, 0)
        cached, reasoning = min(max(usage.cached_tokens, 0), prompt), min(max(usage.reasoning_tokens, 0), completion)
        total = (prompt - cached) * self.prompt + cached * self.cached
        total += (completion - reasoning) * self.completion + reasoning * self.reasoning
        return -(-total // MICRO)


class Shape:
    """What all buckets of one limit share. It follows the limit's settings: `units` is another object after they have changed, and a bucket
    that still has the former one adapts.

    number: what a worker calls it towards the control process, 0 before it does. told: the settings that it was told. pins: while there are
    any, it is kept without a bucket. stored: this process counts durable amounts in the store. layout: what is counted, in this order; it
    never changes. counts_tokens: or money. wall_ps: how long a session lasts. changed: when its settings changed.
    """

    __slots__ = (
        "changed",
        "concurrent",
        "counts_tokens",
        "durable",
        "enforce",
        "layout",
        "meters",
        "name",
        "number",
        "on_failure",
        "pins",
        "requests_at",
        "spec",
        "stored",
        "tokens_at",
        "told",
        "units",
        "version",
        "wall_ps",
        "weights",
    )

    def __init__(self, spec: LimitSpec, version: int = 0, durable: bool = False) -> None:
        self.name = spec.name
        self.number = self.pins = 0
        self.told: LimitSpec | None = None
        self.stored = durable
        self.respec(spec, version, 0)
        self.layout = layout_of(spec)

    def respec(self, spec: LimitSpec, version: int, now: int) -> None:
        """The limit's settings from now on. They count the same amounts."""
        self.spec, self.version, self.changed = spec, version, now
        self.concurrent, self.enforce, self.on_failure = spec.concurrent or spec.queued or 0, spec.enforce, spec.on_failure
        self.meters: list[Meter] = meters_of(spec)
        self.units: tuple[tuple[int, int], ...] = tuple((meter.unit, meter.burst) for meter in self.meters)
        names = [meter.shown for meter in self.meters]
        self.requests_at = names.index(b"requests") if b"requests" in names else -1
        self.tokens_at = names.index(b"tokens") if b"tokens" in names else -1
        self.counts_tokens = any(meter.what in (TOKENS, MONEY) for meter in self.meters)
        self.durable = self.stored and any(meter.durable for meter in self.meters)
        given = spec.weights
        plain = given.prompt == given.completion == 1.0 and given.cached in (None, 1.0) and given.reasoning in (None, 1.0)
        self.weights: Weights | None = None if plain else Weights(spec)
        self.wall_ps = int(spec.session.wall_time * SECOND) if spec.session is not None and spec.session.wall_time is not None else 0

    def costs(self, amounts: Amounts) -> list[int]:
        """What a request takes of each amount. An estimate beyond the burst takes the whole burst; the rest is charged at settlement.

        Raises LimitExceeded for what is certain to be more than the burst: it could never pass.
        """
        return [self._cost(meter, amounts) for meter in self.meters]

    def _cost(self, meter: Meter, amounts: Amounts) -> int:
        what = meter.what
        if what == TOKENS and self.weights is not None:
            cost = self.weights.bound(amounts.prompt, amounts.completion)
        elif what == MONEY and meter.currency != amounts.currency:
            cost = 0
        else:
            cost = amounts.of[what]
        if cost <= meter.burst:
            return cost
        self._never(meter, amounts)
        return meter.burst

    def _never(self, meter: Meter, amounts: Amounts) -> None:
        what = meter.what
        least = amounts.of[what]
        if what == TOKENS:
            least = amounts.least if self.weights is None else self.weights.bound(amounts.least, 0)
        elif what == MONEY:
            least = amounts.certain
        if least > meter.burst and self.enforce:
            raise meter.never(self.name, least)

    def charges(self, usage: Usage, costs: list[int], currency: str) -> list[int]:
        """What an exchange that took `costs` has cost."""
        return [self.charge(meter, usage, costs[index], currency) for index, meter in enumerate(self.meters)]

    def charge(self, meter: Meter, usage: Usage, cost: int, currency: str) -> int:
        """The same of one amount."""
        what = meter.what
        if what == TOKENS:
            if self.weights is not None:
                return self.weights.of(usage)
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            return (prompt if prompt > 0 else 0) + (completion if completion > 0 else 0)
        if what == MONEY:
            return usage.cost if meter.currency == (usage.currency or currency) else 0  # of a fallback's price, where one has answered
        return cost


def layout_of(spec: LimitSpec) -> tuple[str, ...]:
    """What a limit counts, in the order of its buckets' vectors. Buckets outlast a change of a limit only if this stays the same."""
    found = tuple(meter.name for meter in meters_of(spec))
    return found if spec.queued is None else (*found, PLACES)


class Cell:
    """One amount of one bucket. full: when it would be full again (picoseconds; for one that time does not refill, how much is used).
    idle_at: the last time at which a charge found it full: a reservation made before that was refilled already, and must not be refunded
    again. stock: the block in hand, where the store counts the amount."""

    __slots__ = ("full", "idle_at", "stock")

    def __init__(self, stock: Stock | None = None) -> None:
        self.full = self.idle_at = 0
        self.stock = stock


class Bucket:
    """The state of one limit for one key.

    cells: of each amount. in_use: exchanges under way. units: what a unit of each cost when these numbers were made. since, used: first and
    last use of a session. key: whose it is.
    """

    __slots__ = ("cells", "in_use", "key", "shape", "since", "units", "used")

    def __init__(self, shape: Shape, key: tuple[str, ...] = (), now: int = 0) -> None:
        self.shape, self.key = shape, key
        self.in_use = 0
        self.units = shape.units
        self.since = self.used = now
        stored = shape.durable
        self.cells: list[Cell] = [Cell(Stock(shape.name, meter.name, key) if stored and meter.durable else None) for meter in shape.meters]

    @property
    def full(self) -> list[int]:
        """Of each amount, when it would be full again."""
        return [cell.full for cell in self.cells]

    @full.setter
    def full(self, times: list[int]) -> None:
        for cell, time in zip(self.cells, times, strict=True):
            cell.full = time

    def adapt(self) -> None:
        """The limit's settings have changed: what was used then stays used, wherever it is counted from now on."""
        now = self.shape.changed
        stored = self.shape.durable
        before, self.units = self.units, self.shape.units
        for index, meter in enumerate(self.shape.meters):
            unit, burst = before[index]
            cell = self.cells[index]
            if cell.stock is not None:
                cell.stock.adapt(meter.burst - burst)
            if meter.frozen:
                continue
            debt = cell.full - now
            if debt > 0 and unit != meter.unit:
                cell.full = now + -(-debt * meter.unit // unit)
            if not (stored and meter.durable):
                cell.stock = None  # what was in hand goes back by itself
            elif cell.stock is None:
                cell.stock = Stock(self.shape.name, meter.name, self.key)
                cell.stock.hand = min(0, (now - cell.full) // meter.unit)  # owed to the store

    def admits(self, now: int, costs: list[int]) -> bool:
        """Whether a request that costs this fits now. Changes nothing."""
        shape = self.shape
        if self.units is not shape.units:
            self.adapt()
        if shape.concurrent and self.in_use >= shape.concurrent:
            return False
        if shape.wall_ps and now - self.since > shape.wall_ps:
            return False
        for meter, cell, cost in zip(shape.meters, self.cells, costs):  # noqa: B905 - `strict` is no plain loop, compiled
            stock = cell.stock
            if stock is not None:
                if not stock.covers(now, cost):
                    return False
            elif cell.full + cost * meter.unit > (meter.burst_ps if meter.frozen else now + meter.burst_ps):
                return False
        return True

    def roomy(self, now: int, amounts: Amounts, most: Amounts) -> bool:
        """Whether half of each amount is left after `most`; of those of which `amounts` takes as much, whether it is not all that there can
        be. Changes nothing."""
        shape = self.shape
        if not shape.counts_tokens:
            return True
        costs, highest = shape.costs(amounts), shape.costs(most)
        for index, meter in enumerate(shape.meters):
            cost = highest[index]
            if cost != costs[index]:
                if 2 * (max(self.debt(index, now), 0) + cost * meter.unit) > meter.burst_ps:
                    return False
            elif cost >= meter.burst and meter.what in (TOKENS, MONEY):
                return False
        return True

    def take(self, now: int, costs: list[int]) -> None:
        """Charges what `admits` allowed."""
        self.in_use += 1
        self.used = now
        self.charge(now, costs)

    def charge(self, now: int, costs: list[int]) -> None:
        """Takes this much of each amount, whether it is there or not."""
        for meter, cell, cost in zip(self.shape.meters, self.cells, costs):  # noqa: B905 - as in `admits`
            stock = cell.stock
            if stock is not None:
                stock.take(cost)
            if meter.frozen:
                cell.full += cost
            else:
                full = cell.full
                if full <= now:
                    full = cell.idle_at = now
                cell.full = full + cost * meter.unit

    def give_back(self, taken_at: int, costs: list[int]) -> None:
        """Undoes the `take` of `taken_at`."""
        self.in_use -= 1
        self.refund(taken_at, costs)

    def refund(self, taken_at: int, costs: list[int]) -> None:
        """Puts back what was taken then and not used, unless time has refilled it meanwhile. So burst + rate x time bounds what is admitted
        since it was taken, not what is admitted between two later moments."""
        cells = self.cells
        for index, meter in enumerate(self.shape.meters):
            cost, cell = costs[index], cells[index]
            if cost:
                stock = cell.stock
                if stock is not None:
                    stock.give_back(taken_at, cost)
                if cell.idle_at <= taken_at:
                    cell.full -= cost * meter.unit

    def correct(self, taken_at: int, now: int, costs: list[int], charges: list[int]) -> None:
        """Ends a `take` of `costs` that turned out to cost `charges`."""
        self.in_use -= 1
        self.settle_up(taken_at, now, costs, charges)

    def finish(self, taken_at: int, now: int, costs: list[int], usage: Usage, currency: str) -> None:
        """The same for what was used; `Shape.charges` says what that costs."""
        self.in_use -= 1
        shape = self.shape
        if self.units is not shape.units:
            self.adapt()
        for meter, cell, cost in zip(shape.meters, self.cells, costs):  # noqa: B905 - as in `admits`
            more = shape.charge(meter, usage, cost, currency) - cost
            if more != 0:
                _settle(cell, meter, taken_at, now, more)

    def settle_up(self, taken_at: int, now: int, costs: list[int], charges: list[int]) -> None:
        """Charges what was used beyond the reservation of `taken_at`, and puts back what was not used of it."""
        if self.units is not self.shape.units:
            self.adapt()
        cells = self.cells
        for index, meter in enumerate(self.shape.meters):
            more = charges[index] - costs[index]
            if more != 0:
                _settle(cells[index], meter, taken_at, now, more)

    def lacking(self, now: int, costs: list[int], needs: list[Need]) -> bool:
        """Adds what the store could help with. False: something else refuses this, too, or the store cannot help."""
        shape = self.shape
        if not shape.durable or self.crowded() or self.over(now):
            return False
        for index, meter in enumerate(shape.meters):
            cell, cost = self.cells[index], costs[index]
            stock = cell.stock
            if stock is None:
                if cell.full + cost * meter.unit > (meter.burst_ps if meter.frozen else now + meter.burst_ps):
                    return False
            elif not stock.covers(now, cost):
                if not stock.may_have(now, cost):
                    return False
                needs.append(Need(stock, meter, cost, shape.on_failure, self.outside(index)))
        return True

    def owes(self, now: int, costs: list[int], restock: Restock | None) -> bool:
        """For a limit that is not enforced: whether an amount is lacking here that the store may still have. Nobody waits for it: what is
        taken is owed to the store, which is asked for more."""
        needs: list[Need] = []
        if restock is None or not self.lacking(now, costs, needs):
            return False
        for need in needs:
            restock.want(need)
        return True

    def reset(self, now: int) -> None:
        """Makes everything full again, apart from what is under way: that is not charged when it ends, and frees its slot."""
        for index, meter in enumerate(self.shape.meters):
            cell = self.cells[index]
            cell.full = self.outside(index) if meter.frozen else now + self.outside(index) * meter.unit
            cell.idle_at = now
            if cell.stock is not None:
                cell.stock.reset(now)
        self.since = self.used = now

    def outside(self, index: int) -> int:
        """What others hold of an amount."""
        return 0

    def debt(self, index: int, now: int) -> int:
        """How far an amount is from full: picoseconds, or units of one that time does not refill."""
        meter, cell = self.shape.meters[index], self.cells[index]
        stock = cell.stock
        if stock is not None and stock.heard:
            return max(0, meter.burst - stock.hand - stock.left) * meter.unit
        return cell.full if meter.frozen else cell.full - now

    def wait(self, index: int, now: int) -> int:
        """Picoseconds until an amount that time does not refill is there again: never, as far as this bucket knows."""
        return 1 << 62

    def over(self, now: int) -> bool:
        """Whether a session has lasted as long as it may."""
        return self.shape.wall_ps > 0 and now - self.since > self.shape.wall_ps

    def crowded(self) -> bool:
        """Whether as many exchanges are under way as may be."""
        return self.shape.concurrent > 0 and self.in_use >= self.shape.concurrent

    def idle(self, now: int) -> bool:
        """Full and unused, so nothing is lost by forgetting it: a new bucket starts full."""
        if self.in_use:
            return False
        for index, meter in enumerate(self.shape.meters):
            cell = self.cells[index]
            if cell.stock is not None:
                if not cell.stock.empty():
                    return False
            elif meter.frozen:
                if cell.full and now - self.used < FORGET:
                    return False
            elif cell.full > now:
                return False
        return not self.shape.wall_ps or now - self.used >= FORGET


def _settle(cell: Cell, meter: Meter, taken_at: int, now: int, more: int) -> None:
    """Charges so much beyond the reservation of `taken_at`; less than 0: puts it back, unless time has refilled it meanwhile."""
    stock = cell.stock
    if more > 0:
        if stock is not None:
            stock.take(more)
        if not meter.frozen and cell.full <= now:
            cell.full = cell.idle_at = now
        cell.full += more * meter.unit
        return
    if stock is not None:
        stock.give_back(taken_at, -more)
    if cell.idle_at <= taken_at:
        cell.full += more * meter.unit
