"""Failed logins: how many are allowed, and from whom. One rule for every way to log in and for both listeners:

What nobody can guess (keys, tokens, certificates) is always checked, and only failures are counted: a valid credential gets in, whatever
else comes from the same address. What can be guessed (a password) is counted before it is checked, by account and address, by account, and
by address; a password that was right before, and an account that has logged in from there before, are not held up by others' failures.

Addresses count by neighbourhood: an IPv6 subscriber has 2^64 of them. All tables are bounded; what is forgotten first is the name that has
failed least recently, which gives it a full budget again and so locks nobody out.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from gateway.core.clock import Clock

SIZE: Final = 10_000
"""Names in a table."""
PAIR: Final = (5, 60.0)
"""Failures of one account at one address: so many at once, and one more in each of these periods (seconds)."""
ACCOUNT: Final = (20, 20.0)
"""Of one account, from wherever: several addresses' worth, so that a single one cannot use it up."""
PEER: Final = (50, 1.0)
"""Of one address, whatever the account."""
SITE: Final = (400, 0.125)
"""Of one IPv6 site (a /48), which is what a customer of a hosting company gets."""
FAMILIAR_SECONDS: Final = 30 * 86400.0
"""How long it is remembered that an account has logged in from an address, and with which password."""


def neighbourhood(address: str, prefix: int = 64) -> str:
    """As what an address is counted: itself, but IPv6 addresses by their /64, which one subscriber has to itself."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    shift = 128 - prefix
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(parsed) >> shift << shift, prefix)))


class Buckets:
    """A budget for each name, in a bounded table (GCRA: one number a name, the moment at which its bucket is full again).

    burst: how many at once. seconds: until there is one more.
    """

    def __init__(self, clock: Clock, burst: int, seconds: float, size: int = SIZE) -> None:
        self._clock, self._seconds, self._size = clock, seconds, size
        self._room = (burst - 1) * seconds
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, name: Hashable) -> float:
        """Seconds until there is one to take; 0.0 if there is."""
        full_at = self._full_at.get(name) if self._full_at else None
        return 0.0 if full_at is None else max(0.0, full_at - self._clock.monotonic() - self._room)

    def full(self, name: Hashable) -> bool:
        """Whether nothing was taken lately."""
        full_at = self._full_at.get(name)
        return full_at is None or full_at <= self._clock.monotonic()

    def take(self, name: Hashable) -> None:
        """Takes one, whether there is one or not; what is owed is bounded by one bucket."""
        now = self._clock.monotonic()
        full_at = max(now, self._full_at.get(name, 0.0)) + self._seconds
        self._full_at[name] = min(full_at, now + self._room + self._seconds)
        self._full_at.move_to_end(name)
        if len(self._full_at) > self._size:
            self._full_at.popitem(last=False)

    def give_back(self, name: Hashable) -> None:
        full_at = self._full_at.get(name)
        if full_at is not None:
            self._full_at[name] = full_at - self._seconds


Charged = tuple[tuple[Buckets, Hashable], ...]


class Try:
    """One login by password under way. Exactly one of its methods is called when it has ended."""

    __slots__ = ("_account", "_charged", "_proof", "_throttle", "_where")

    def __init__(self, throttle: LoginThrottle, account: str, where: str, proof: bytes, charged: Charged) -> None:
        self._throttle, self._account, self._where, self._proof, self._charged = throttle, account, where, proof, charged

    def succeeded(self) -> None:
        self.abandoned()
        self._throttle.remember(self._account, self._where, self._proof)

    def failed(self) -> None:
        self._throttle.disbelieve(self._account, self._proof)

    def abandoned(self) -> None:
        """Whether the password is right did not come out."""
        for buckets, name in self._charged:
            buckets.give_back(name)


class LoginThrottle:
    """Of logins with a name and a password. For one event loop.

    A login is charged when it begins and refunded when it succeeds, so that many at once are no way around.
    """

    def __init__(self, clock: Clock, size: int = SIZE) -> None:
        self._clock, self._size = clock, size
        self._pairs, self._accounts = Buckets(clock, *PAIR, size), Buckets(clock, *ACCOUNT, size)
        self._peers, self._sites = Buckets(clock, *PEER, size), Buckets(clock, *SITE, size)
        self._familiar: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._right: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def begin(self, account: str, address: str, proof: bytes) -> Try | None:
        """None if this login is to be refused without a check. proof: a keyed hash of name and password."""
        where = neighbourhood(address)
        right = self._right.get(account)
        known = right is not None and right[0] == proof and right[1] > self._clock.monotonic()
        asked: list[tuple[Buckets, Hashable]] = [(self._pairs, (account, where))]
        if self._familiar.get((account, where), 0.0) <= self._clock.monotonic():
            asked += [(self._accounts, account), (self._peers, where)]
            if ":" in where:
                asked.append((self._sites, neighbourhood(address, 48)))
        if not known and any(buckets.wait(name) > 0.0 for buckets, name in asked):
            return None
        for buckets, name in asked:
            buckets.take(name)
        return Try(self, account, where, proof, tuple(asked))

    def remember(self, account: str, where: str, proof: bytes) -> None:
        """This account has logged in from there with this password."""
        until = self._clock.monotonic() + FAMILIAR_SECONDS
        self._familiar[account, where] = until
        self._familiar.move_to_end((account, where))
        self._right[account] = (proof, until)
        self._right.move_to_end(account)
        if len(self._familiar) > self._size:
            self._familiar.popitem(last=False)
        if len(self._right) > self._size:
            self._right.popitem(last=False)

    def disbelieve(self, account: str, proof: bytes) -> None:
        """This password is not right any more, if it ever was."""
        right = self._right.get(account)
        if right is not None and right[0] == proof:
            del self._right[account]
