"""Takes blocks of durable amounts from the store for those who wait, many in one transaction; gives back what is not used.

One transaction is under way at a time; what is asked meanwhile goes with the next one. A store that fails is left alone for a second. One
that does not answer within PATIENCE is not asked about the same stock again before it has: what is owed is said once, and what it grants
late comes out of what it had left. Meanwhile each limit does what its `on_failure` says. Where nobody knows whether the store did
something, the next start settles this run by the audit log (gateway.app.limits.budget_runs).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError
from gateway.core.tasks import TaskOwner
from gateway.limits.counter import Ask, Given
from gateway.limits.meter import SECOND, Meter
from gateway.limits.stock import Need, Stock
from gateway.limits.ticker import Ticker

log = logging.getLogger("gatehouse.limits")

PATIENCE: Final = 1.0
"""Seconds that a request waits for the store."""
BREATH: Final = 2_000
"""Stocks that are looked at in one turn of the loop."""
BATCH: Final = 500
"""Counters in one transaction."""
LOOK: Final = 2.0
"""Seconds between two looks at what is in hand."""
UNUSED: Final = 5 * SECOND
"""How long a block lies unused before it goes back."""
OFTEN: Final = 1 * SECOND
SELDOM: Final = 10 * SECOND
BELIEVED: Final = 1 * SECOND
"""Seconds for which the store's answer that nothing is left counts; then another replica may have given something back."""
Count = Callable[[Sequence[Ask]], Awaitable[Sequence[Given]]]
"""Asks the store. Raises GatehouseError while it cannot be reached."""


class _Wait:
    """One who waits for the answers about so many stocks."""

    __slots__ = ("left", "retry")

    def __init__(self, left: int, retry: Callable[[], None]) -> None:
        self.left, self.retry = left, retry


class Refills:
    """See the module. replicas: how many processes share the store. alert: hears of a budget (limit, key) that has
    passed so many percent. Life: `start`, `aclose`, which gives everything back."""

    def __init__(
        self,
        count: Count,
        holder: str,
        tasks: TaskOwner,
        *,
        replicas: Callable[[], int] = lambda: 1,
        clock: Clock | None = None,
        alert: Callable[[str, tuple[str, ...], int], None] | None = None,
    ) -> None:
        self._alert = alert
        self._count, self._holder, self._tasks, self._replicas = count, holder, tasks, replicas
        self._ticker = Ticker(clock)
        self._queue: dict[Stock, tuple[Need, list[_Wait]]] = {}
        self._known: dict[Stock, tuple[Meter, str]] = {}
        self._running = self._down = self._unsure = False
        self._late: set[asyncio.Task[Sequence[Given]]] = set()
        self.first = False
        """Whether no earlier process of this replica has anything left to be settled."""

    def now(self) -> int:
        return self._ticker.now()

    def start(self) -> None:
        self._tasks.every(LOOK, self._look, name="limits in hand")

    async def aclose(self) -> None:
        """Gives back everything in hand, as far as the store takes it."""
        if self._late:
            await asyncio.wait(set(self._late), timeout=PATIENCE)
        for stock, (meter, mode) in list(self._known.items()):
            if stock.hand:
                stock.touched = self.now() - UNUSED
                stock.wanted = 0
                self._queue.setdefault(stock, (Need(stock, meter, 0, mode), []))
        if not self._running:
            await self._run()

    @property
    def empty(self) -> bool:
        """Whether nothing is in hand or owed, and the store was heard to have done all that it was asked."""
        return not self._unsure and not self._late and all(stock.empty() for stock in self._known)

    def ask(self, needs: Sequence[Need], retry: Callable[[], None]) -> None:
        """Asks the store for what these lack; then calls back, whatever the answer."""
        waiting = _Wait(len(needs), retry)
        for need in needs:
            self.want(need)
            self._queue[need.stock][1].append(waiting)

    def want(self, need: Need) -> None:
        """Asks the store, without waiting for it."""
        stock = need.stock
        if stock not in self._queue:
            self._queue[stock] = (need, [])
            stock.wanted = 0
            stock.queued = True
        stock.wanted += need.cost
        self._known[stock] = (need.meter, need.mode)
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), name="take from the store")

    async def _run(self) -> None:
        self._running = True
        try:
            while self._queue:
                batch = [self._queue.pop(stock) for stock in list(self._queue)[:BATCH]]
                try:
                    await self._take([need for need, _ in batch])
                finally:
                    for waiting in [one for _, waits in batch for one in waits]:
                        waiting.left -= 1
                        if not waiting.left:
                            waiting.retry()
        finally:
            self._running = False

    async def _take(self, batch: list[Need]) -> None:
        """Asks the store for these, except stocks whose last answer is overdue: what they owe would be reported twice."""
        for need in batch:
            need.stock.queued = False
        batch = [need for need in batch if not need.stock.unheard]
        if not batch:
            return
        now = self.now()
        replicas = max(1, self._replicas())
        asks = [self._ask(need, now, replicas) for need in batch]
        counting = self._tasks.wait(self._count(asks), name="count in the store")
        done, _ = await asyncio.wait({counting}, timeout=PATIENCE)
        if not done:
            self._late.add(counting)
            counting.add_done_callback(partial(self._answered_late, batch, asks, now))
            self._failed(batch, asks, replicas, TimeoutError())
            for need in batch:
                need.stock.unanswered()
            return
        try:
            answers = counting.result()
        except GatehouseError as error:
            self._unsure = True
            self._failed(batch, asks, replicas, error)
            return
        self._heard(batch, asks, answers, now)

    def _heard(self, batch: list[Need], asks: list[Ask], answers: Sequence[Given], sent: int) -> None:
        if self._down:
            self._down = False
            log.info("the store counts limits again")
        now = self.now()
        for need, ask, given in zip(batch, asks, answers, strict=True):
            stock = need.stock
            if given.crossed and self._alert is not None:
                self._alert(stock.limit, stock.key, given.crossed)
            if stock.reset_at > sent:  # nobody knows whether it was asked before the store forgot what was used
                self._unsure = True
                continue
            stock.hand += ask.owed
            until = sent + int(given.seconds * SECOND)
            stock.heard_of(now, given.granted, given.left, given.window, until, now + int(given.wait * SECOND), BELIEVED)

    def _answered_late(self, batch: list[Need], asks: list[Ask], sent: int, counting: asyncio.Task[Sequence[Given]]) -> None:
        """An answer after its deadline: what the store gave is in hand, and what was owed is paid; after an error, neither is known."""
        self._late.discard(counting)
        for need in batch:
            need.stock.down_until = 0
        if counting.cancelled() or counting.exception() is not None:
            self._unsure = True
            return
        for need in batch:
            self._known[need.stock] = (need.meter, need.mode)
        self._heard(batch, asks, counting.result(), sent)

    def _ask(self, need: Need, now: int, replicas: int) -> Ask:
        """What is said of one stock; what goes back is out of hand at once."""
        stock = need.stock
        over = now >= stock.until
        back = 0
        if stock.hand > 0 and (over or (not stock.wanted and now - stock.touched >= UNUSED)):
            back = stock.hand
            stock.hand = 0
        owed = max(0, -stock.hand)
        have = max(0, stock.hand)
        if stock.wanted:
            gap = now - stock.touched
            stock.touched = now
            if gap <= OFTEN:
                stock.size = max(2 * stock.size, stock.wanted)
            elif gap > SELDOM:
                stock.size = 0
        need_units = max(0, need.cost - have)
        want = max(0, stock.wanted - have)
        ahead = min(stock.size, 1 << 50) if stock.wanted else 0
        return Ask(
            stock.limit,
            need.meter,
            stock.key,
            self._holder,
            replicas,
            stock.window,
            back,
            owed,
            have + need.outside,
            need_units,
            want,
            ahead,
            self.first,
        )

    def _failed(self, batch: list[Need], asks: list[Ask], replicas: int, error: Exception) -> None:
        now = self.now()
        if not self._down:
            self._down = True
            log.warning("the store does not count limits now (%s): each limit does as its on_failure says", error or "no answer in time")
        for need, ask in zip(batch, asks, strict=True):
            need.stock.failed(now, need.mode, replicas, BELIEVED)
            if ask.back and not ask.want:
                log.debug("%d of %s may count as used: the store did not confirm that they came back", ask.back, ask.limit)

    async def _look(self) -> None:
        """Gives back what lies unused, pays what is owed, and forgets stocks of which nothing is left."""
        now = self.now()
        for turn, (stock, (meter, mode)) in enumerate(list(self._known.items()), 1):
            if turn % BREATH == 0:
                await asyncio.sleep(0)  # there may be as many as callers
            unused = stock.hand > 0 and (now >= stock.until or now - stock.touched >= UNUSED)
            if (unused or stock.hand < 0) and not stock.queued and not stock.unheard:
                self.want(Need(stock, meter, 0, mode))
            elif stock.empty() and now - stock.touched > SELDOM:
                self._known.pop(stock, None)
