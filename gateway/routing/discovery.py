"""Which addresses of a name are in use, given what was answered and when. Pure.

an address that is new                    in use at once
an address that is no longer named        in use until it has not been named for LINGER seconds: one odd answer changes nothing
no address, or no such name               all stay until there have been none for `keep` seconds
the name cannot be resolved               all stay, however long that lasts: probes and breakers judge them
one kind of address cannot be resolved    all of that kind stay
other settings for the same name          all stay that may, until something is answered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.host_port import HostPort
from gateway.core.specs.fleet import DnsSpec

LINGER: Final = 10.0
"""Seconds."""
NAMED: Final = float("inf")
MOST_KEPT: Final = 2
"""While old addresses linger, at most so many times `max_addresses` are in use; the oldest go first."""
BACKOFF_DOUBLINGS: Final = 6


class Addresses:
    """The addresses of one name. `places`: those in use, in order."""

    def __init__(self, dns: DnsSpec) -> None:
        self._dns = dns
        self._used: dict[tuple[str, int], tuple[HostPort, float]] = {}
        """Each with the moment since which it has not been named; infinity while it is."""
        self._empty_since: float | None = None
        self._failures = 0
        self.places: tuple[HostPort, ...] = ()

    def take_over(self, former: Addresses, allowed: Callable[[HostPort], bool]) -> None:
        """Begins with what the same name led to by former settings."""
        self._used = {where: known for where, known in former._used.items() if allowed(known[0])}
        self._empty_since = former._empty_since
        self.places = tuple(sorted(place for place, _ in self._used.values()))

    def heard(self, now: float, places: tuple[HostPort, ...], ttl: float, unknown: frozenset[int] = frozenset()) -> float:
        """Takes an answer. unknown: the IP versions of which it may lack addresses. Returns the seconds until the next question."""
        self._failures = 0
        if places:
            self._empty_since = None
            named = {(place.host, place.port): (place, NAMED) for place in places}
            missing = {
                where: (place, since if _version(place) in unknown else min(since, now))
                for where, (place, since) in self._used.items()
                if where not in named
            }
            lingering = [(at, where) for where, (place, at) in missing.items() if now - at < LINGER or _version(place) in unknown]
            room = max(0, MOST_KEPT * self._dns.max_addresses - len(named))
            lingering.sort(reverse=True)
            self._used = {**named, **{where: missing[where] for _, where in lingering[:room]}}
        else:
            self._empty_since = now if self._empty_since is None else self._empty_since
            if now - self._empty_since >= self._dns.keep:
                self._used = {}
        self.places = tuple(sorted(place for place, _ in self._used.values()))
        return self._sooner(now, min(max(ttl, self._dns.min_ttl), self._dns.max_ttl))

    def failed(self) -> float:
        """The name could not be resolved. Returns the seconds until the next question."""
        doublings = min(self._failures, BACKOFF_DOUBLINGS)
        self._failures += 1
        return min(float(self._dns.min_ttl * 2.0**doublings), self._dns.max_ttl)

    def _sooner(self, now: float, wait: float) -> float:
        """Asks again when something that is still in use is due to go."""
        if self._empty_since is not None:
            due = self._empty_since + self._dns.keep if self._used else now + wait
        else:
            due = min((since for _, since in self._used.values()), default=NAMED) + LINGER
        return max(self._dns.min_ttl, min(wait, due - now))


def _version(place: HostPort) -> int:
    return 6 if ":" in place.host else 4
