"""The state of a LeaseBook's buckets: to be looked at, and handed over to the next image of the control process."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.specs import LimitSpec
from gateway.limits.account import Account, Lease
from gateway.limits.bucket import Bucket
from gateway.limits.lease_messages import MAX_DEBT, AccountState, LeaseState


class Held(NamedTuple):
    """What one worker holds of a bucket."""

    worker: str
    requests: int
    tokens: int
    slots: int


class BucketView(NamedTuple):
    """The state of one bucket. requests_left, tokens_left: not used, in the bucket or with a worker; None where not limited. slots: that
    workers hold. held: what of it is with which worker."""

    limit: LimitSpec
    key: tuple[str, ...]
    requests_left: int | None
    tokens_left: int | None
    slots: int
    held: tuple[Held, ...]


def view(account: Bucket, key: tuple[str, ...], now: int) -> BucketView:
    """A bucket of the book as it is now."""
    assert isinstance(account, Account)
    account.settle(now)
    requests, tokens, _ = account.left(now)
    held = tuple(Held(lease.worker, lease.requests, lease.tokens, lease.slots) for lease in account.leases.values())
    return BucketView(
        account.shape.spec,
        key,
        None if requests < 0 else requests + account.requests_out,
        None if tokens < 0 else tokens + account.tokens_out,
        account.in_use,
        tuple(one for one in held if one.requests or one.tokens or one.slots),
    )


def state(account: Account, key: tuple[str, ...], now: int) -> AccountState:
    """A bucket of the book, to be handed over."""
    return AccountState(
        account.shape.spec,
        key,
        _near(account.requests_full - now),
        _near(account.tokens_full - now),
        _near(account.requests_idle - now),
        _near(account.tokens_idle - now),
        [
            LeaseState(lease.worker, lease.number, lease.requests, lease.tokens, lease.slots, _near(lease.expires - now), lease.size)
            for lease in account.leases.values()
        ],
    )


def restore(account: Account, given: AccountState, at: int, leases: dict[str, Lease]) -> None:
    """Makes a new bucket what `state` has noted at `at`. leases: one for each of its leases, still empty, by worker."""
    account.requests_full, account.tokens_full = at + given.requests_debt, at + given.tokens_debt
    account.requests_idle, account.tokens_idle = at + given.requests_idle, at + given.tokens_idle
    for held in given.leases:
        lease = leases[held.worker]
        lease.number, lease.expires, lease.size = held.lease, at + held.expires_in, held.size
        lease.requests, lease.tokens, lease.slots = held.requests, held.tokens, held.slots
        account.requests_out += held.requests
        account.tokens_out += held.tokens
        account.in_use += held.slots


def _near(time: int) -> int:
    return max(-MAX_DEBT, min(time, MAX_DEBT))
