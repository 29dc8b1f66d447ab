"""What a worker holds of all buckets, and its conversation with the control process about them.

Requests that wait are asked for in one message for each turn of the loop. An unused share goes back shortly before its lease ends, an
unused slot after LOOK at most; both at once when they are recalled. Corrections (tokens that were reserved and not used) go with the next
message, after NOTE at most. Nothing here is lost if a message is late: the control process counts what it has handed out as used until it
hears otherwise.

While the control process is away (it is being replaced, or it hangs), what is held can still be used until its lease ends. Then requests
wait for WAIT seconds and fail with 503; once one has failed so, others fail at once until there is an answer again. They wait longer where
the control process has said that another program takes its place (`wait_longer`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, Overloaded
from gateway.core.messages import Message
from gateway.core.pauses import Pauses
from gateway.core.ports import Reservation
from gateway.core.specs import LimitSpec
from gateway.core.types import Usage
from gateway.core.waiting import Signal
from gateway.limits import headers
from gateway.limits.bucket import SECOND, Amounts, Bucket, Shape
from gateway.limits.exceeded import exceeded, longest_wait, shortages
from gateway.limits.lease_messages import Corrected, Decided, Granted, LeaseCall, LeaseRecall, LeaseReply, Level, Part, Returned, Wanted
from gateway.limits.meter import REQUESTS
from gateway.limits.registry import BucketRegistry
from gateway.limits.share import Share
from gateway.limits.ticker import Ticker

log = logging.getLogger("gatehouse.limits")

WAIT: Final = 5.0
"""Seconds after which a request that was not decided fails."""
MAX_WAITING: Final = 10_000
"""Requests that may wait at once."""
NOTE: Final = 0.01
"""Seconds after which a correction is sent by itself."""
LOOK: Final = SECOND * 3 // 4
BEFORE: Final = SECOND // 4
"""How long before the end of a lease its unused share goes back."""
SWEEP: Final = 0.05
GENEROUS: Final = 1 * SECOND
HINT: Final = SECOND // 50
CROWDED_HINT: Final = SECOND // 200
"""For so long at most after a refusal, the same is refused without asking again."""
CENTRAL: Final = -1
"""The `turn` of what the control process has charged itself."""


class LeasedHeld:
    """A reservation in the shares of a worker: what was taken of each, when, and in which of its turns. not_enforced: limits that would
    have refused."""

    __slots__ = ("_settled", "_shares", "asked", "costs", "headers", "not_enforced", "shares", "taken_at", "turns")

    def __init__(
        self,
        owner: Shares,
        asked: Amounts,
        shares: Sequence[Share],
        costs: Sequence[list[int]],
        turns: Sequence[int],
        taken_at: int,
        headers: bytes,
        not_enforced: tuple[str, ...] = (),
    ) -> None:
        self._shares, self.asked, self.shares, self.costs, self.turns = owner, asked, shares, costs, turns
        self.taken_at, self.headers, self.not_enforced, self._settled = taken_at, headers, not_enforced, False

    @property
    def counts_tokens(self) -> bool:
        """Whether any of these buckets counts tokens, or money."""
        return any([share.shape.counts_tokens for share in self.shares])

    def settle(self, usage: Usage | None) -> None:
        """Charges the actual usage, or refunds all (None). A second call does nothing."""
        if self._settled:
            return
        self._settled = True
        self._shares.settle(self, usage)


class _Asked:
    """A request that the control process decides. signal: None once nobody waits for it any more."""

    __slots__ = ("amounts", "costs", "shares", "signal", "until", "would")

    def __init__(
        self,
        shares: tuple[Share, ...],
        costs: list[list[int]],
        signal: Signal[Reservation],
        until: int,
        amounts: Amounts,
        would: tuple[str, ...],
    ) -> None:
        self.shares, self.costs, self.until, self.amounts, self.would = shares, costs, until, amounts, would
        self.signal: Signal[Reservation] | None = signal


class Shares:
    """See the module. learn, noted: as of a LocalLimiter. send: sends a message to the control process and never waits. soon, later: the
    loop's call_soon and call_later."""

    def __init__(
        self,
        send: Callable[[Message], object],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
        *,
        clock: Clock | None = None,
        capacity: int = 32_768,
        wait: float = WAIT,
        learn: Callable[[str, int, Usage], None] | None = None,
        noted: Callable[[str], None] | None = None,
    ) -> None:
        self._send, self._soon, self._later = send, soon, later
        self.ticker = Ticker(clock)
        self.registry = BucketRegistry(capacity, _share)
        self.learn, self.noted = learn, noted
        self._generation = self.registry.generation
        self._wait = int(wait * SECOND)
        self._asked: dict[int, _Asked] = {}
        self._late: dict[int, _Asked] = {}
        self._decided_id = 0
        self._last_id = self._last_number = self._try_at = 0
        self._numbers: dict[int, Shape] = {}
        self._new: list[tuple[int, LimitSpec, int]] = []
        self._wanted: list[Wanted] = []
        self._returned: list[Returned] = []
        self._corrected: list[Corrected] = []
        self._listed: deque[tuple[int, Share]] = deque()
        self._flushing = self._noting = self._sweeping = False
        self._lost = False
        self._patient_until = 0
        self._pauses = Pauses(SWEEP, 0.0)

    @property
    def waiting(self) -> int:
        """Requests that the control process has not decided yet, those included that have failed meanwhile."""
        return len(self._asked) + len(self._late)

    def now(self) -> int:
        return self.ticker.now()

    # --- asking

    def ask(
        self, shares: tuple[Share, ...], costs: list[list[int]], now: int, amounts: Amounts, would: tuple[str, ...]
    ) -> Signal[Reservation]:
        """Completes with the reservation. Raises or fails with LimitExceeded, Overloaded. would: limits that are not enforced and would
        refuse this."""
        hinted = False
        for share, cost in zip(shares, costs, strict=True):
            if now >= share.short_until:
                share.taken = share.ended = share.away = False
            elif not _less(cost, share.short_costs):
                hinted = True
        if hinted and longest_wait(shares, costs, now) is not None:
            raise exceeded(shares, costs, now)
        if self._lost or len(self._asked) >= MAX_WAITING or (self._late and now < self._try_at):
            raise _away()
        self._try_at = now + SECOND
        self._last_id += 1
        parts = [self._part(share, cost, now) for share, cost in zip(shares, costs, strict=True)]
        self._wanted.append(Wanted(self._last_id, parts))
        signal: Signal[Reservation] = Signal()
        self._asked[self._last_id] = _Asked(shares, costs, signal, now + self._wait, amounts, would)
        self._flush_soon()
        self._arm()
        return signal

    def _part(self, share: Share, costs: list[int], now: int) -> Part:
        """Takes what is left of a share out of it, as far as this request needs it."""
        share.waiting += 1
        if now >= share.expires:
            share.forget()
        left = [min(cost, amount) for cost, amount in zip(costs, share.amounts, strict=True)]
        slot = 1 if share.shape.concurrent and share.in_use < share.slots else 0
        spent = share.spent()
        share.amounts = [amount - one for amount, one in zip(share.amounts, left, strict=True)]
        share.slots -= slot
        share.out = list(share.amounts)
        share.turn += 1
        return Part(self._number(share.shape), share.key, costs, share.lease, spent, left, slot)

    def _number(self, shape: Shape) -> int:
        if not shape.number:
            self._last_number += 1
            shape.number = self._last_number
            self._numbers[shape.number] = shape
        if shape.told is not shape.spec:
            shape.told = shape.spec
            self._new.append((shape.number, shape.spec, shape.version))
        return shape.number

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        dropped: list[int] = []
        if self._generation != self.registry.generation:
            self._generation = self.registry.generation
            dropped = [number for number, shape in self._numbers.items() if not self.registry.has_shape(shape)]
            for number in dropped:
                shape = self._numbers.pop(number)
                shape.number, shape.told = 0, None
        if not (self._wanted or self._returned or self._corrected or dropped):
            return
        call = LeaseCall(self._new, dropped, self._returned, self._corrected, self._wanted)
        self._new, self._returned, self._corrected, self._wanted = [], [], [], []
        if not self._lost:
            self._send(call)

    def _note(self) -> None:
        """Corrections wait a little for others."""
        if not self._noting:
            self._noting = True
            self._later(NOTE, self._noted)

    def _noted(self) -> None:
        self._noting = False
        self._flush()

    # --- settling

    def settle(self, held: LeasedHeld, usage: Usage | None) -> None:
        """Ends a reservation; called once for each by the reservation itself. usage: None for what was not served."""
        now = self.now()
        if usage is not None and self.learn is not None:
            self.learn(held.asked.model, held.asked.raw, usage)
        for index, share in enumerate(held.shares):
            costs, turn = held.costs[index], held.turns[index]
            charges = [0] * len(costs) if usage is None else share.shape.charges(usage, costs, held.asked.currency)
            if share.end(turn, held.taken_at, now, costs, charges):
                self._corrected.append(Corrected(self._number(share.shape), share.key, self.ticker.told(held.taken_at), costs, charges))
                self._note()
            if share.shape.concurrent and now < share.generous_until and share.slots > share.in_use:
                self._give(share, [0] * len(share.amounts), share.slots - share.in_use)
                self._flush_soon()

    def _give(self, share: Share, back: list[int], slots: int, recalled: bool = False) -> None:
        spent = share.spent()
        share.amounts = [amount - one for amount, one in zip(share.amounts, back, strict=True)]
        share.slots -= slots
        share.out = list(share.amounts)
        share.turn += 1
        self._returned.append(Returned(self._number(share.shape), share.key, share.lease, spent, back, slots, recalled))

    # --- hearing

    def heard(self, message: LeaseReply) -> None:
        """Decisions and new shares. Everything is noted before the first request goes on."""
        done: list[tuple[Signal[Reservation], Reservation | None, GatehouseError | None]] = []
        places: dict[int, _Asked] = {}
        unwanted: list[LeasedHeld] = []
        for decided in message.decided:
            asked = self._asked.pop(decided.id, None) or self._late.pop(decided.id, None)
            if asked is None:
                continue
            places[decided.id] = asked
            self._decided_id = max(self._decided_id, decided.id)
            held, error = self._decided(asked, decided)
            if asked.signal is not None:
                done.append((asked.signal, held, error))
            elif held is not None:
                unwanted.append(held)
        for granted in message.granted:
            asked = places.get(granted.id)
            if asked is not None:
                self._granted(asked.shares[granted.part], granted)
        for held in unwanted:
            held.settle(None)
        for signal, reservation, error in done:
            if error is not None:
                signal.fail(error)
            elif reservation is not None:
                if signal.awaited:
                    signal.set(reservation)
                else:
                    reservation.settle(None)  # the client has left meanwhile

    def _decided(self, asked: _Asked, decided: Decided) -> tuple[LeasedHeld | None, GatehouseError | None]:
        at = self.ticker.heard(decided.at)
        taken: list[Share] = []
        costs: list[list[int]] = []
        for share, cost, level in zip(asked.shares, asked.costs, decided.levels, strict=True):
            share.waiting -= 1
            _seen(share, level, at)
            if not decided.admitted:
                continue
            if not level.charged:
                asked.would = (*asked.would, share.shape.name)
                continue
            taken.append(share)
            costs.append(cost)
            share.in_use += 1
            if share.shape.concurrent:
                share.slots += 1
                share.peak = max(share.peak, share.in_use)
                self._list(share, at + LOOK)
        if decided.admitted:
            for name in asked.would:
                if self.noted is not None:
                    self.noted(name)
            found = headers.line(taken[0], at) if len(taken) == 1 else headers.lines(taken, at)
            return LeasedHeld(self, asked.amounts, taken, costs, [CENTRAL] * len(taken), at, found, asked.would), None
        for share, cost in zip(asked.shares, asked.costs, strict=True):
            self._hint(share, cost, at)
        return None, exceeded(asked.shares, asked.costs, at)

    def _hint(self, share: Share, costs: list[int], at: int) -> None:
        """Remembers what a refusal says about the requests to come."""
        if not share.shape.enforce:
            return
        short = shortages(share, costs, at)
        if not short:
            return
        share.short_until = at + min(max(one.wait_ps for one in short), HINT)
        share.short_costs = [0] * len(costs)
        for index, meter in enumerate(share.shape.meters):
            if len(short) == 1 and short[0].meter is meter and meter.what != REQUESTS:
                share.short_costs[index] = costs[index]
        if share.taken:
            share.short_until, share.short_costs = at + CROWDED_HINT, [0] * len(costs)
            share.generous_until = at + GENEROUS

    def _granted(self, share: Share, granted: Granted) -> None:
        if granted.lease and granted.lease != share.lease:
            share.forget()
            share.lease = granted.lease
        share.amounts = [amount + one for amount, one in zip(share.amounts, granted.amounts, strict=True)]
        share.out = [amount + one for amount, one in zip(share.out, granted.amounts, strict=True)]
        share.slots += granted.slots
        share.expires = self.ticker.heard(granted.expires)
        self._list(share, share.expires - BEFORE)

    def recalled(self, message: LeaseRecall) -> None:
        """Others are short: gives back what is not in use."""
        now = self.now()
        for number, key in message.buckets:
            shape = self._numbers.get(number)
            share = None if shape is None else self.registry.known(shape, key)
            if not isinstance(share, Share):
                self._returned.append(Returned(number, key, recalled=True))
                continue
            if now >= share.expires:
                share.forget()
            slots = max(0, share.slots - share.in_use) if share.shape.concurrent else 0
            self._give(share, list(share.amounts), slots, True)
            share.generous_until = now + GENEROUS
        self._flush_soon()

    def wait_longer(self, seconds: float) -> None:
        """For so long no request fails because it is not decided."""
        self._patient_until = self.now() + int(seconds * SECOND)

    def lost(self) -> None:
        """The control process is gone for good: what waits fails, and so does what would have to ask."""
        self._lost = True
        asked, self._asked = self._asked, {}
        for one in asked.values():
            if one.signal is not None:
                one.signal.fail(_away())

    # --- looking after what is held

    def _list(self, share: Share, due: int) -> None:
        if not share.listed:
            share.listed = True
            self._listed.append((due, share))
            self._arm()

    def _arm(self) -> None:
        if not self._sweeping and (self._asked or self._late or self._listed):
            self._sweeping = True
            self._pauses.begin(self.now() / SECOND)
            self._later(SWEEP, self._swept)

    def _swept(self) -> None:
        self._sweeping = False
        self._pauses.since(self.now() / SECOND)
        self.sweep()
        self._arm()

    def sweep(self) -> None:
        """Fails what has waited too long, and gives back what was not used. After a pause of this process, requests wait for a while
        longer: the control process may have stood still, too."""
        now = self.now()
        while self._asked and now >= self._patient_until and not self._pauses.resting(now / SECOND):
            id, asked = next(iter(self._asked.items()))
            if asked.until > now:
                break
            del self._asked[id]
            self._late[id] = asked
            signal, asked.signal = asked.signal, None
            if signal is not None:
                signal.fail(_away())
        if self._late:
            self._forget_lost(now)
        for _ in range(len(self._listed)):
            if self._listed[0][0] > now:
                break
            _, share = self._listed.popleft()
            share.listed = False
            self._look(share, now)
        self._flush()

    def _forget_lost(self, now: int) -> None:
        """Forgets requests that will never be decided: later ones were, a while ago."""
        for id, asked in list(self._late.items()):
            if id < self._decided_id and asked.until + self._wait <= now:
                del self._late[id]
                for share in asked.shares:
                    share.waiting -= 1

    def _look(self, share: Share, now: int) -> None:
        if now >= share.expires:
            share.forget()
        concurrent = share.shape.concurrent
        slots = share.slots - max(share.in_use, share.peak) if concurrent else 0
        share.peak = share.in_use
        if any(share.amounts) and share.expires - now <= BEFORE:
            self._give(share, list(share.amounts), max(0, slots))
        elif slots > 0:
            self._give(share, [0] * len(share.amounts), slots)
        if any(share.amounts):
            self._list(share, min(max(share.expires - BEFORE, now + SECOND // 20), now + LOOK))
        elif share.slots:
            self._list(share, now + LOOK)


def _share(shape: Shape, key: tuple[str, ...], now: int) -> Bucket:
    return Share(shape, key, now)


def _less(costs: list[int], others: list[int]) -> bool:
    """Whether any of the costs is less than the other one."""
    return any(cost < others[index] for index, cost in enumerate(costs))


def _seen(share: Share, level: Level, at: int) -> None:
    """The bucket as the control process sees it, of which this worker's share is taken out already."""
    share.units = share.shape.units
    for index, meter in enumerate(share.shape.meters):
        debt = level.debts[index] - share.amounts[index] * meter.unit
        share.cells[index].full = debt if meter.frozen else at + debt
        share.waits[index] = at + level.waits[index]
    share.taken, share.ended, share.away = level.crowded, level.ended, level.away


def _away() -> Overloaded:
    return Overloaded("The limits of this key cannot be checked now.", code="limits_unavailable", retry_after=1.0)
