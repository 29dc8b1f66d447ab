"""The state of a LeaseBook's buckets: to be looked at, and handed over to the next image of the control process."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.specs import LimitSpec
from gateway.limits.account import Account, Lease
from gateway.limits.bucket import Bucket
from gateway.limits.lease_messages import MAX_DEBT, AccountState, LeaseState, Level, StockState


class Held(NamedTuple):
    """What one worker holds of a bucket, by the name of each amount."""

    worker: str
    amounts: dict[str, int]
    slots: int


class BucketView(NamedTuple):
    """The state of one bucket. left: of each amount, by its name, what is not used, in the bucket or with a worker. slots: that workers
    hold.
    held: what of it is with which worker."""

    limit: LimitSpec
    key: tuple[str, ...]
    left: dict[str, int]
    slots: int
    held: tuple[Held, ...]


def view(account: Bucket, key: tuple[str, ...], now: int) -> BucketView:
    """A bucket of the book as it is now."""
    assert isinstance(account, Account)
    account.settle(now)
    names = [meter.name for meter in account.shape.meters]
    left = {name: account.shape.meters[index].level(account.debt(index, now)) + account.out[index] for index, name in enumerate(names)}
    held = tuple(Held(lease.worker, dict(zip(names, lease.amounts, strict=True)), lease.slots) for lease in account.leases.values())
    return BucketView(account.shape.spec, key, left, account.in_use, tuple(one for one in held if one.slots or any(one.amounts.values())))


def level(account: Account, now: int, charged: bool) -> Level:
    """A bucket as a worker is told of it after a decision."""
    debts, waits, away = [], [], False
    for index, meter in enumerate(account.shape.meters):
        debts.append(max(0, min(account.debt(index, now), MAX_DEBT)))
        wait = MAX_DEBT
        if (stock := account.cells[index].stock) is not None:
            wait = max(0, min(stock.wait_until - now, MAX_DEBT))
            away = away or (now < stock.down_until and (account.shape.on_failure == "closed" or not stock.heard))
        waits.append(wait if meter.frozen else 0)
    return Level(debts, waits, account.crowded(), account.over(now), away, charged)


def state(account: Account, key: tuple[str, ...], now: int) -> AccountState:
    """A bucket of the book, to be handed over."""
    meters, cells = account.shape.meters, account.cells
    return AccountState(
        account.shape.spec,
        key,
        [_near(cell.full if meters[index].frozen else cell.full - now) for index, cell in enumerate(cells)],
        [_near(cell.idle_at - now) for cell in cells],
        [
            LeaseState(lease.worker, lease.number, list(lease.amounts), lease.slots, _near(lease.expires - now), lease.size)
            for lease in account.leases.values()
        ],
        {
            index: StockState(stock.hand, stock.left, stock.window, _near(stock.until - now), _near(stock.begun - now))
            for index, cell in enumerate(cells)
            if (stock := cell.stock) is not None
        },
        _near(account.since - now),
        _near(account.used - now),
    )


def restore(account: Account, given: AccountState, at: int, leases: dict[str, Lease]) -> None:
    """Makes a new bucket what `state` has noted at `at`. leases: one for each of its leases, still empty, by worker."""
    for index, meter in enumerate(account.shape.meters):
        cell = account.cells[index]
        cell.full = given.debts[index] if meter.frozen else at + given.debts[index]
        cell.idle_at = at + given.idle[index]
    account.since, account.used = at + given.since, at + given.used
    for index, cell in enumerate(account.cells):
        if (stock := cell.stock) is not None and (kept := given.stocks.get(index)) is not None:
            stock.hand, stock.left, stock.window = kept.hand, kept.left, kept.window
            stock.until, stock.begun = at + kept.good_for, at + kept.begun
            stock.heard = stock.window >= 0
            account.begun[index] = stock.begun
    for held in given.leases:
        lease = leases[held.worker]
        lease.number, lease.expires, lease.size = held.lease, at + held.expires_in, held.size
        lease.amounts, lease.slots = list(held.amounts), held.slots
        for index, amount in enumerate(held.amounts):
            account.out[index] += amount
        account.in_use += held.slots


def _near(time: int) -> int:
    return max(-MAX_DEBT, min(time, MAX_DEBT))
