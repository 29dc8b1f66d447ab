"""The control process's side of limits over several workers: it owns the buckets, decides what workers cannot decide by themselves, and
hands out leases, so that they seldom have to ask.

A worker asks for whole requests: from all buckets or none. Nobody waits at a bucket that is empty; but while other workers hold what is
missing, it is recalled from them first, for RECALL seconds at most. A lease grows while a worker asks often and shrinks while it gives
back unused shares; it is never more than what is left in the bucket, divided by twice the number of workers. So near the limit nothing is
leased ahead, and every request is decided here, in the order of arrival.

Guarantees: gateway.limits.account (rates); a slot belongs to the worker that holds it until it gives it back or is gone. Plain calls, in
one thread; messages are sent through `send(worker, message)`. Times are picoseconds of the monotonic clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from gateway.core.clock import Clock
from gateway.core.messages import Message
from gateway.core.pauses import Pauses
from gateway.core.specs import LimitSpec
from gateway.limits.account import Account, Lease, unsure
from gateway.limits.bucket import SECOND
from gateway.limits.lease_messages import BookState, Corrected, Decided, Granted, LeaseCall, LeaseRecall, LeaseReply, Part, Returned, Wanted
from gateway.limits.lease_parties import Party, Waiting
from gateway.limits.lease_state import BucketView, level, restore, state, view
from gateway.limits.registry import BucketRegistry
from gateway.limits.stock import Need, Restock
from gateway.limits.ticker import Ticker

log = logging.getLogger("gatehouse.limits")

LEASE: Final = 1 * SECOND
"""How long a share may be used after it was granted."""
RECALL: Final = SECOND // 20
"""How long a request waits for what others give back."""
CONTENDED: Final = 1 * SECOND
"""For so long after workers competed for a bucket, nothing of it is leased ahead, and no worker keeps a slot that it does not use."""
RECALL_AGAIN: Final = CONTENDED * 3 // 4
OFTEN: Final = SECOND // 20
SELDOM: Final = SECOND // 5
"""A lease doubles when the worker asks again within OFTEN, and halves after SELDOM."""
SLOTS_AHEAD: Final = 8
"""The most slots that are granted ahead at once."""
SWEEP: Final = 0.25
"""Seconds between two looks at leases that may have expired."""
REFILLS: Final = 5
"""How often the store is asked for one request: others may take what it said is there."""


class LeaseBook:
    """See the module. restock: the way to the store, which counts durable amounts; without it they are counted here. later: calls back
    after so many seconds; without it, the owner calls `sweep` at least every 50 ms."""

    def __init__(
        self,
        send: Callable[[str, Message], object],
        *,
        clock: Clock | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        capacity: int = 100_000,
        restock: Restock | None = None,
    ) -> None:
        self._send, self._later, self._restock = send, later, restock
        self._ticker = Ticker(clock)
        self.registry = BucketRegistry(capacity, Account, durable=restock is not None)
        self._workers: dict[str, Party] = {}
        self._waiting: dict[Waiting, None] = {}
        self._listed: deque[tuple[int, Account, Lease]] = deque()
        self._next_lease = 0
        self._armed = self._hurried = False
        self._pauses = Pauses(SWEEP, 0.0)

    def __len__(self) -> int:
        return len(self.registry)

    @property
    def waiting(self) -> int:
        """Requests for which shares were recalled."""
        return len(self._waiting)

    def now(self) -> int:
        """In whole nanoseconds, as times are told: otherwise a refund could seem to be older than its own charge."""
        return self._ticker.now_in_nanos()

    # --- workers

    def joined(self, worker: str) -> None:
        """A new worker: it holds nothing."""
        self.gone(worker)
        self._workers[worker] = Party(worker)

    def gone(self, worker: str) -> None:
        """A worker has ended: its slots are free, and what it held of rates counts as used. Unknown ones are ignored."""
        found = self._workers.pop(worker, None)
        if found is None:
            return
        now = self.now()
        for waiting in [waiting for waiting in self._waiting if waiting.worker is found]:
            del self._waiting[waiting]
            for account in waiting.accounts:
                account.undecided -= 1
        if any([account.left_by(worker, now) for account in found.accounts]):
            unsure(bucket for _, bucket in self.registry.all())
        for shape in found.limits.values():
            shape.pins -= 1
        self._retry(now)
        self._flush()

    def heard(self, worker: str, call: LeaseCall) -> None:
        """Everything that a worker says. Unknown workers are ignored."""
        known = self._workers.get(worker)
        if known is None:
            return
        now = self.now()
        self.registry.look(now)
        known.silent = False
        self._name(known, call)
        for returned in call.returned:
            if returned.limit in known.limits:  # it may answer a recall of a limit that it has dropped meanwhile
                self._returned(known, returned, now)
        for corrected in call.corrected:
            if corrected.limit in known.limits:
                self._corrected(known, corrected, now)
        if self._waiting and (call.returned or call.corrected):
            self._retry(now)
        if call.wanted:
            self._decide_all(known, call.wanted, now)
        self._drop(known, call.dropped)
        self._flush()

    def sweep(self) -> None:
        """Ends waits whose time is over, and forgets leases that have expired."""
        now = self.now()
        stood = self._pauses.since(now / SECOND)
        for waiting in list(self._waiting):
            if stood:  # this process did, and workers are still to be heard that were to give something back
                waiting.until = now + RECALL
            elif waiting.asked_from and waiting.until <= now:
                self._give_up(waiting, now)
        while self._listed and self._listed[0][0] <= now:
            _, account, lease = self._listed.popleft()
            self._expire(account, lease, now)
        self._retry(now)
        self._flush()

    def _flush(self) -> None:
        for worker in self._workers.values():
            if worker.recalls:
                recalls, worker.recalls = worker.recalls, []
                self._send(worker.name, LeaseRecall(recalls))
            if worker.decided or worker.granted:
                reply = LeaseReply(worker.decided, worker.granted)
                worker.decided, worker.granted = [], []
                self._send(worker.name, reply)
        self._arm()

    def _arm(self) -> None:
        if self._later is None:
            return
        if not self._armed and not self._hurried:
            self._pauses.begin(self.now() / SECOND)
        if self._waiting and not self._hurried:
            self._hurried = True
            self._later(RECALL / SECOND / 2, self._due_soon)
        if self._listed and not self._armed:
            self._armed = True
            self._later(SWEEP, self._due)

    def _due(self) -> None:
        self._armed = False
        self.sweep()

    def _due_soon(self) -> None:
        self._hurried = False
        self.sweep()

    def _name(self, worker: Party, call: LeaseCall) -> None:
        for number, spec, version in call.limits:
            shape = self.registry.shape(spec, version, self.now())
            if worker.limits.get(number) is not shape:
                worker.limits[number] = shape
                shape.pins += 1

    def _drop(self, worker: Party, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (dropped := worker.limits.pop(number, None)) is not None:
                dropped.pins -= 1

    def _account(self, worker: Party, limit: int, key: tuple[str, ...], now: int) -> Account:
        account = self.registry.bucket(worker.limits[limit], key, now)
        assert isinstance(account, Account)
        account.settle(now)
        return account

    # --- what comes back

    def _returned(self, worker: Party, returned: Returned, now: int) -> None:
        account = self._account(worker, returned.limit, returned.key, now)
        lease = account.leases.get(worker.name)
        if returned.recalled:
            for waiting in self._waiting:
                waiting.asked_from.discard((account, worker.name))
        if lease is None:
            return
        if returned.recalled:
            lease.recalled = False
        if any(returned.back):
            lease.size //= 2
        self._report(account, lease, returned.lease, now, returned.spent)
        self._put_back(account, lease, returned.lease, now, returned.back)
        account.put_back_slots(lease, min(returned.slots, lease.slots))
        self._lease(worker, account, now)

    def _report(self, account: Account, lease: Lease, number: int, now: int, spent: list[int]) -> None:
        if number == lease.number and now < lease.expires:
            account.used_up(lease, [min(one, have) for one, have in zip(spent, lease.amounts, strict=False)])

    def _put_back(self, account: Account, lease: Lease, number: int, now: int, back: list[int]) -> None:
        if number == lease.number and now < lease.expires:
            account.put_back(lease, [min(one, have) for one, have in zip(back, lease.amounts, strict=False)])

    def _corrected(self, worker: Party, corrected: Corrected, now: int) -> None:
        account = self._account(worker, corrected.limit, corrected.key, now)
        if len(corrected.reserved) == len(corrected.actual) == len(account.out):
            account.adjust(self._ticker.heard(corrected.taken_at), now, corrected.reserved, corrected.actual)

    # --- decisions

    def _decide_all(self, worker: Party, requests: Sequence[Wanted], now: int) -> None:
        asked: dict[Account, list[tuple[Wanted, int]]] = {}
        refused: set[Account] = set()
        for wanted in requests:
            accounts = self._brought(worker, wanted, now)
            costs = [_costs(account, part) for account, part in zip(accounts, wanted.parts, strict=True)]
            waiting = Waiting(worker, wanted, accounts, costs, now + RECALL)
            if self._fits(waiting, now):
                self._admit(waiting, now)
                for index, account in enumerate(accounts):
                    asked.setdefault(account, []).append((wanted, index))
            else:
                refused.update(accounts)
                self._without(waiting, now)
        for account, places in asked.items():
            if account not in refused:
                self._grant_ahead(worker, account, places, now)

    def _brought(self, worker: Party, wanted: Wanted, now: int) -> list[Account]:
        """The buckets of a request, after what the worker reported with it and handed back for it."""
        accounts = []
        for part in wanted.parts:
            account = self._account(worker, part.limit, part.key, now)
            lease = account.leases.get(worker.name)
            if lease is not None:
                self._report(account, lease, part.lease, now, part.spent)
                self._put_back(account, lease, part.lease, now, part.left)
                account.put_back_slots(lease, min(part.slot, lease.slots))
                self._lease(worker, account, now)
            account.undecided += 1
            accounts.append(account)
        return accounts

    def _fits(self, waiting: Waiting, now: int) -> bool:
        for account, costs in zip(waiting.accounts, waiting.costs, strict=True):
            if account.shape.enforce and not account.admits(now, costs):
                return False
        return True

    def _admit(self, waiting: Waiting, now: int) -> None:
        charged = []
        for account, costs in zip(waiting.accounts, waiting.costs, strict=True):
            charged.append(account.shape.enforce or account.admits(now, costs) or account.owes(now, costs, self._restock))
            if charged[-1]:
                account.admit(self._lease(waiting.worker, account, now) if account.shape.concurrent else None, now, costs)
        self._decided(waiting, True, now, charged)

    def _without(self, waiting: Waiting, now: int) -> None:
        """There is too little: takes more from the store where that helps, then recalls it from other workers, then refuses."""
        if self._restock is not None and waiting.refills < REFILLS and (needs := self._needs(waiting, now)):
            waiting.refilling = True
            waiting.refills += 1
            self._waiting[waiting] = None
            self._restock.ask(needs, partial(self._refilled, waiting))
            return
        if not waiting.recalled:
            waiting.recalled = True
            waiting.until = now + RECALL
            self._recall(waiting, now)
        if waiting.asked_from:
            self._waiting[waiting] = None
        else:
            self._waiting.pop(waiting, None)
            self._refuse(waiting, now)

    def _needs(self, waiting: Waiting, now: int) -> list[Need]:
        needs: list[Need] = []
        for account, costs in zip(waiting.accounts, waiting.costs, strict=True):
            if account.shape.enforce and not account.admits(now, costs) and not account.lacking(now, costs, needs):
                return []
        return needs

    def _refilled(self, waiting: Waiting) -> None:
        """The store has answered, or it has not."""
        waiting.refilling = False
        if waiting in self._waiting:
            self._retry(self.now())
            self._flush()

    def _refuse(self, waiting: Waiting, now: int) -> None:
        """Says no, and gives the worker back what it had handed in for buckets that have enough."""
        self._decided(waiting, False, now)
        worker, wanted = waiting.worker, waiting.wanted
        for index, (account, costs, part) in enumerate(zip(waiting.accounts, waiting.costs, wanted.parts, strict=True)):
            if (any(part.left) or part.slot) and now >= account.contended_until and account.admits(now, costs):
                self._grant(worker, account, wanted.id, index, now, part.left, part.slot)

    def _decided(self, waiting: Waiting, admitted: bool, now: int, charged: list[bool] | None = None) -> None:
        levels = [level(account, now, charged is None or charged[index]) for index, account in enumerate(waiting.accounts)]
        for account in waiting.accounts:
            account.undecided -= 1
        waiting.worker.decided.append(Decided(waiting.wanted.id, admitted, self._ticker.told(now), levels))

    def _recall(self, waiting: Waiting, now: int) -> None:
        """Recalls from the other workers what a request is short of; nothing, if that cannot be all of it."""
        found: list[tuple[Account, Lease]] = []
        for account, cost in zip(waiting.accounts, waiting.costs, strict=True):
            if not account.shape.enforce or account.admits(now, cost):
                continue
            holders = self._holders(waiting.worker, account, cost, now)
            if not holders:
                return
            found += [(account, lease) for lease in holders]
        for account, lease in found:
            account.contended_until = now + CONTENDED
            if not lease.recalled:
                other = self._workers[lease.worker]
                number = other.number_of(account.shape)
                if number is None:
                    continue
                lease.recalled, lease.recalled_at = True, now
                other.recalls.append((number, account.key))
            waiting.asked_from.add((account, lease.worker))

    def _holders(self, worker: Party, account: Account, costs: list[int], now: int) -> list[Lease]:
        """Leases of other workers that may have what a request is short of. One that was recalled lately has nothing: what it holds is in
        use, and comes back by itself."""
        short, crowded = account.short_of_amounts(now, costs), account.crowded()
        return [
            lease
            for lease in account.leases.values()
            if ((short and lease.any()) or (crowded and lease.slots))
            and lease.worker != worker.name
            and not self._workers[lease.worker].silent
            and (lease.recalled or lease.recalled_at < 0 or now - lease.recalled_at >= RECALL_AGAIN)
        ]

    def _retry(self, now: int) -> None:
        """Decides those that waited, in their order, as far as it is possible now."""
        for waiting in list(self._waiting):
            for account in waiting.accounts:
                account.settle(now)
            waiting.asked_from = {(a, name) for a, name in waiting.asked_from if name in self._workers}
            if self._fits(waiting, now):
                del self._waiting[waiting]
                self._admit(waiting, now)
            elif not waiting.asked_from and not waiting.refilling:
                self._without(waiting, now)

    def _give_up(self, waiting: Waiting, now: int) -> None:
        for _, name in waiting.asked_from:
            if name in self._workers:
                self._workers[name].silent = True
        waiting.asked_from.clear()

    # --- leases

    def _lease(self, worker: Party, account: Account, now: int) -> Lease:
        """What a worker holds of a bucket; `_expire` will look at it."""
        lease = account.leases.get(worker.name)
        if lease is None:
            lease = account.leases[worker.name] = Lease(worker.name, now, len(account.out))
            worker.accounts[account] = None
        if not lease.listed:
            lease.listed = True
            self._listed.append((now + LEASE, account, lease))
        return lease

    def _expire(self, account: Account, lease: Lease, now: int) -> None:
        """Forgets a lease of which nothing is left, unless the worker has asked lately."""
        if account.leases.get(lease.worker) is not lease:
            return
        account.settle(now)
        last = max(lease.expires if lease.any() else 0, lease.asked_at + LEASE)
        if last > now:
            self._listed.append((max(last, now + LEASE), account, lease))
            return
        lease.listed = False
        if not lease.slots:
            del account.leases[lease.worker]
            del self._workers[lease.worker].accounts[account]

    def _grant_ahead(self, worker: Party, account: Account, places: list[tuple[Wanted, int]], now: int) -> None:
        """Leases what the worker is likely to need next, after it was admitted `places` times."""
        known = account.leases.get(worker.name)
        first = known is None or (known.asked_at == now and not known.size)
        lease = self._lease(worker, account, now)
        gap, lease.asked_at = now - lease.asked_at, now
        if len(places) > 1 or (gap <= OFTEN and not first):
            lease.size = max(2 * lease.size, len(places), 1)
        elif gap > SELDOM:
            lease.size //= 2
        if not lease.size or now < account.contended_until:
            return
        share = 2 * len(self._workers)
        have, slots = account.left(now)
        lease.size = min(lease.size, 1 << 40)
        wanted, place = places[-1]
        amounts: list[int] = []
        for index, left in enumerate(have):
            each = -(-sum(one.parts[at].costs[index] for one, at in places) // len(places))
            amounts.append(max(0, min(lease.size * each, left // share) - lease.amounts[index]) if each else 0)
            if each and not amounts[-1] and not lease.amounts[index]:
                amounts = [0] * len(have)  # one without the other helps nobody
                break
        ahead = min(lease.size, slots // share, SLOTS_AHEAD) if slots > 0 else 0
        self._grant(worker, account, wanted.id, place, now, amounts, ahead)

    def _grant(self, worker: Party, account: Account, id: int, part: int, now: int, amounts: list[int], slots: int) -> None:
        left, slots_left = account.left(now)
        amounts = [min(want, max(0, have)) for want, have in zip(amounts, left, strict=True)] if amounts else [0] * len(left)
        slots = min(slots, max(0, slots_left))
        if not (any(amounts) or slots):
            return
        lease = self._lease(worker, account, now)
        if not lease.any():
            self._next_lease += 1
            lease.number = self._next_lease
        lease.expires = account.good_until(now + LEASE)
        account.hand_out(lease, now, amounts, slots)
        worker.granted.append(Granted(id, part, lease.number, self._ticker.told(lease.expires), amounts, slots))

    # --- to be seen, and handed over

    def views(self) -> Iterator[BucketView]:
        """The state of every bucket that is not full and unused, or was used lately."""
        now = self.now()
        for key, bucket in self.registry.all():
            yield view(bucket, key, now)

    def view(self, limit: LimitSpec, key: tuple[str, ...]) -> BucketView | None:
        """The state of one bucket; None for one that is full and unused."""
        bucket = self.registry.known(self.registry.shape(limit), key)
        return None if bucket is None else view(bucket, key, self.now())

    def hand_over(self) -> BookState:
        """Everything that the next image of this process must know. Requests that wait for a recall are decided by what is there."""
        now = self.now()
        for waiting in list(self._waiting):
            waiting.asked_from.clear()
        self._retry(now)
        self._flush()
        accounts = []
        for key, account in self.registry.all():
            assert isinstance(account, Account)
            account.settle(now)
            if not account.idle(now):
                accounts.append(state(account, key, now))
                for cell in account.cells:
                    if cell.stock is not None:
                        cell.stock.hand = 0  # it is the next one's now, even if this process goes on
        workers = {worker.name: [(number, shape.spec) for number, shape in worker.limits.items()] for worker in self._workers.values()}
        return BookState(self._ticker.told(now), self._next_lease, accounts, workers)

    def take_over(self, handed: BookState) -> None:
        """Goes on where another book ended. Before any worker has joined this one; its workers are known afterwards."""
        at = self._ticker.heard(handed.at)
        self._next_lease = handed.next_lease
        for name, limits in handed.workers.items():
            self.joined(name)
            self._name(self._workers[name], LeaseCall(limits=[(number, spec, 0) for number, spec in limits]))
        for given in handed.accounts:
            account = self.registry.bucket(self.registry.shape(given.limit), given.key, at)
            assert isinstance(account, Account)
            restore(account, given, at, {held.worker: self._lease(self._workers[held.worker], account, at) for held in given.leases})
        self._arm()


def _costs(account: Account, part: Part) -> list[int]:
    """What a request costs of each amount: at most the whole of it. A worker may know other settings of the limit."""
    return [min(cost, meter.burst) for cost, meter in zip(part.costs, account.shape.meters, strict=True)]
