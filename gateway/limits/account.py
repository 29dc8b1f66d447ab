"""The control process's side of one bucket: the bucket itself, and what each worker holds of it.

What a worker holds is charged when it is handed out, and a rate does not refill beyond burst minus what is out: what is left in it and
what is out are never more than the burst together. So over all workers, between any two moments, no more is admitted than
burst + rate x time, whatever becomes of a worker: what a dead one held counts as used. When a new window begins, what is out counts as
used in it until it comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.limits.bucket import Bucket, Shape

ANY: Final = 1 << 60
"""Nobody knows how much was lost."""


class Lease:
    """What one worker holds of one bucket. amounts: of each amount, until `expires`. `slots`: until it gives them back or is gone.

    number: of the share of amounts; a new one after nothing was left. asked_at: when it last asked. size: how many requests ahead it is
    granted. recalled_at: when it was last asked to give back; `recalled`: it has not answered yet. listed: the book will look at it again.
    """

    __slots__ = ("amounts", "asked_at", "expires", "listed", "number", "recalled", "recalled_at", "size", "slots", "worker")

    def __init__(self, worker: str, now: int, count: int) -> None:
        self.worker = worker
        self.amounts: list[int] = [0] * count
        self.number = self.expires = 0
        self.slots = self.size = 0
        self.asked_at = now
        self.recalled_at = -1
        self.listed = self.recalled = False

    def any(self) -> bool:
        """Whether it holds any amount."""
        return any(self.amounts)


class Account(Bucket):
    """A bucket and its leases. `in_use`: slots that workers hold. out: what they hold of each amount. undecided: requests that are being
    decided. begun: when the window of each stock began, as far as what is out counts in it. lost: what leases held that were not reported
    on any more; it counts as used, though it may not be. Times in picoseconds."""

    __slots__ = ("begun", "contended_until", "leases", "lost", "out", "undecided")

    def __init__(self, shape: Shape, key: tuple[str, ...], now: int = 0) -> None:
        super().__init__(shape, key, now)
        self.leases: dict[str, Lease] = {}
        self.out: list[int] = [0] * len(shape.meters)
        self.begun: list[int] = [0] * len(shape.meters)
        self.lost: list[int] = [0] * len(shape.meters)
        self.contended_until = self.undecided = 0

    def idle(self, now: int) -> bool:
        if self.leases or self.undecided or (self.shape.durable and any(self.lost)):  # what was lost is still to be counted again
            return False
        return super().idle(now)

    def outside(self, index: int) -> int:
        return self.out[index]

    def settle(self, now: int) -> None:
        """Ends the leases that have expired, and cuts what has refilled to what may be in the bucket beside what is out."""
        if self.units is not self.shape.units:
            self.adapt()
        if any(self.out):
            expired: list[tuple[int, Lease]] = []
            for lease in self.leases.values():
                if lease.expires <= now and lease.any():
                    expired.append((lease.expires, lease))
            if len(expired) > 1:
                expired.sort(key=_first)
            for when, lease in expired:
                self._cut(when)
                self.lose(lease)
            self._cut(now)
        if self.shape.durable:
            self._follow_windows()

    def _cut(self, now: int) -> None:
        for index, meter in enumerate(self.shape.meters):
            if self.out[index] and not meter.frozen:
                cell, least = self.cells[index], now + self.out[index] * meter.unit
                if cell.full < least:
                    cell.full, cell.idle_at = least, now

    def _follow_windows(self) -> None:
        """What is out when a new window begins may be used in it."""
        for index, cell in enumerate(self.cells):
            stock = cell.stock
            if stock is not None and stock.begun != self.begun[index]:
                self.begun[index] = stock.begun
                self.lost[index] = 0
                stock.take(self.out[index])

    # --- all of these after `settle`

    def used_up(self, lease: Lease, amounts: list[int]) -> None:
        """The worker has used this much of its lease, or lost it."""
        for index, amount in enumerate(list(amounts)):
            lease.amounts[index] -= amount
            self.out[index] -= amount

    def lose(self, lease: Lease) -> None:
        """Nobody knows what the worker has used of its lease: it counts as all of it."""
        for index, amount in enumerate(lease.amounts):
            self.lost[index] += amount
        self.used_up(lease, lease.amounts)

    def left_by(self, worker: str, now: int) -> bool:
        """The worker is gone: its slots are free. Whether it held anything."""
        self.settle(now)
        lease = self.leases.pop(worker)
        held = lease.slots > 0 or lease.any()
        self.lose(lease)
        self.put_back_slots(lease, lease.slots)
        return held

    def put_back(self, lease: Lease, amounts: list[int]) -> None:
        """The worker has not used this much of its lease, and will not."""
        self.used_up(lease, amounts)
        for index, amount in enumerate(amounts):
            cell = self.cells[index]
            cell.full -= amount * self.shape.meters[index].unit
            if cell.stock is not None:
                cell.stock.hand += amount

    def put_back_slots(self, lease: Lease, slots: int) -> None:
        lease.slots -= slots
        self.in_use -= slots

    def admit(self, lease: Lease | None, now: int, costs: list[int]) -> None:
        """Charges one request that `admits` allowed. lease: takes its slot, where the limit counts them."""
        self.take(now, costs)
        if lease is None:
            self.in_use -= 1
        else:
            lease.slots += 1

    def short_of_amounts(self, now: int, costs: list[int]) -> bool:
        """Whether an amount refuses what costs this, however many are under way."""
        for index, meter in enumerate(self.shape.meters):
            cell = self.cells[index]
            if cell.stock is not None:
                if not cell.stock.covers(now, costs[index]):
                    return True
            elif cell.full + costs[index] * meter.unit > (meter.burst_ps if meter.frozen else now + meter.burst_ps):
                return True
        return False

    def left(self, now: int) -> tuple[list[int], int]:
        """Whole units of each amount, and slots, that can be handed out now; slots are -1 where they are not limited."""
        amounts: list[int] = []
        for index, meter in enumerate(self.shape.meters):
            cell = self.cells[index]
            if cell.stock is not None:
                amounts.append(max(0, cell.stock.hand) if now < cell.stock.until else 0)
            else:
                amounts.append(meter.level(cell.full if meter.frozen else cell.full - now))
        return amounts, max(0, self.shape.concurrent - self.in_use) if self.shape.concurrent else -1

    def good_until(self, until: int) -> int:
        """How long what is handed out now may be used: no longer than the session, or than what it comes from."""
        if self.shape.wall_ps:
            until = min(until, self.since + self.shape.wall_ps)
        for cell in self.cells:
            if cell.stock is not None and cell.stock.until < until:
                until = cell.stock.until
        return until

    def hand_out(self, lease: Lease, now: int, amounts: list[int], slots: int) -> None:
        """Charges what `left` had, for the worker to use later."""
        self.charge(now, amounts)
        for index, amount in enumerate(amounts):
            self.out[index] += amount
            lease.amounts[index] += amount
        lease.slots += slots
        self.in_use += slots
        self.used = now

    def adjust(self, taken_at: int, now: int, reserved: list[int], actual: list[int]) -> None:
        """Settles an exchange whose reservation of `taken_at` was charged here; the slot apart."""
        self.settle_up(taken_at, now, reserved, actual)


def unsure(buckets: Iterable[Bucket]) -> None:
    """A worker was killed that may have had corrections to tell: more may be charged to any of these than was used."""
    for account in buckets:
        if isinstance(account, Account) and account.shape.durable:
            account.lost = [ANY] * len(account.lost)


def _first(pair: tuple[int, Lease]) -> int:
    return pair[0]
