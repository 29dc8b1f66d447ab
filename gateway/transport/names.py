"""Where a host name leads: A and AAAA records, or the services of SRV records (RFC 1035, RFC 3596, RFC 2782).

Asked with dnspython in a thread, because reading an answer of thousands of records would hold the event loop. Every question has a
deadline, the questions about all targets of SRV records have one together, and what an answer may cost is bounded: by the size of a
message (64 KiB), and by `max_addresses`. dnspython checks that an answer belongs to its question, follows aliases to a bound, and turns to
TCP where an answer was cut off.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from gateway.core.errors import GatehouseError
from gateway.core.host_port import HostPort
from gateway.core.specs.fleet import DnsSpec

NEGATIVE_TTL: Final = 0.0
"""The TTL of an answer without records: the name is asked for again as soon as the bounds allow."""
MOST_TTL: Final = 86400.0
SILENCES: Final = 2
"""Questions without an answer after which a kind of addresses is not asked for again in the same look at SRV records."""
TARGETS: Final = 6.0
"""Times the timeout of one question that the targets of SRV records take together."""
FAMILIES: Final = {"A": 4, "AAAA": 6}


class Unresolved(GatehouseError):
    """A name could not be resolved; the message says why."""


class Silent(Unresolved):
    """No server answered in time."""


class Resolved(Struct, frozen=True):
    """places: in order; none: the name exists without such records, or does not exist. ttl: seconds. left_out: how many places there were
    beyond `max_addresses`. unknown: the IP versions of which addresses may be missing, because a question for them had no answer; why:
    which, and what became of it."""

    places: tuple[HostPort, ...]
    ttl: float
    left_out: int = 0
    unknown: frozenset[int] = frozenset()
    why: str = ""


class _Found:
    """What one look has found so far."""

    def __init__(self) -> None:
        self.ttl = MOST_TTL
        self.unknown: set[int] = set()
        self.failure: Unresolved | None = None
        self.silences = dict.fromkeys(FAMILIES, 0)

    def missed(self, kind: str, failure: Unresolved) -> None:
        self.unknown.add(FAMILIES[kind])
        self.failure = failure
        self.silences[kind] += isinstance(failure, Silent)


class Names:
    """Asks the servers of one `DnsSpec`. Blocks; call it in a thread."""

    def __init__(self, dns: DnsSpec) -> None:
        self._spec = dns
        self._resolver: Any = import_module("dns.resolver")
        self._errors: Any = import_module("dns.exception")

    def resolve(self, host: str, port: int) -> Resolved:
        """Raises Unresolved. port: of addresses; those of services have their own."""
        asked, found = self._made(), _Found()
        if self._spec.records == "srv":
            return self._services(asked, host, found)
        addresses = self._addresses(asked, host, found)
        return self._bounded({HostPort(address, port) for address in addresses}, found)

    def _made(self) -> Any:
        """A resolver without a cache. The machine's servers are read anew, as they change with its networks."""
        servers = self._spec.servers
        try:
            made = self._resolver.Resolver(configure=not servers)
        except self._errors.DNSException as error:
            raise Unresolved(f"the machine names no servers: {error}") from None
        made.cache = None
        made.lifetime = self._spec.timeout
        made.timeout = max(0.1, self._spec.timeout / 2)  # so that a second server is asked when the first is silent
        if servers:
            ways = [server.rpartition(":") for server in servers]
            server_of = import_module("dns.nameserver").Do53Nameserver
            made.nameservers = [server_of(way[0].removeprefix("[").removesuffix("]"), int(way[2])) for way in ways]
        return made

    def _ask(self, asked: Any, name: str, kind: str) -> tuple[list[Any], float]:
        """The records and their ttl; none where the name has none."""
        nothing = (self._resolver.NXDOMAIN, self._resolver.NoAnswer)
        try:
            answer = asked.resolve(name, kind, search=not self._spec.servers)
        except nothing:
            return [], NEGATIVE_TTL
        except self._errors.Timeout as error:
            raise Silent(f"{kind} of {name}: {_sentence(error)}") from None
        except self._errors.DNSException as error:
            raise Unresolved(f"{kind} of {name}: {_sentence(error)}") from None
        except (OSError, ValueError, RecursionError) as error:  # a name that cannot be asked for, an answer that makes no sense
            raise Unresolved(f"{kind} of {name}: {type(error).__name__}") from None
        return list(answer), min(float(answer.rrset.ttl), MOST_TTL) if answer.rrset is not None else NEGATIVE_TTL

    def _addresses(self, asked: Any, host: str, found: _Found) -> list[str]:
        """Those of both kinds, as far as they are known."""
        addresses: list[str] = []
        for kind in FAMILIES:
            if found.silences[kind] >= SILENCES:
                continue  # already said to be unknown
            try:
                records, ttl = self._ask(asked, host, kind)
            except Unresolved as error:
                found.missed(kind, error)
                continue
            addresses += [str(record.address) for record in records]
            if records:
                found.ttl = min(found.ttl, ttl)
        return addresses

    def _services(self, asked: Any, name: str, found: _Found) -> Resolved:
        """The targets of the lowest priority, each with its addresses, its port and its weight. "." as the only target: no service."""
        records, ttl = self._ask(asked, name, "SRV")
        records = [record for record in records if str(record.target) != "."]
        if not records:
            return Resolved((), ttl)
        first = min(record.priority for record in records)
        chosen = sorted((str(r.target), int(r.port), int(r.weight)) for r in records if r.priority == first)
        places: set[HostPort] = set()
        due = time.monotonic() + TARGETS * self._spec.timeout
        found.ttl = ttl
        for target, port, weight in chosen[: self._spec.max_addresses]:
            if time.monotonic() >= due:
                for kind in FAMILIES:
                    found.missed(kind, Unresolved(f"{kind} of {target}: its turn did not come in time"))
                break
            places |= {HostPort(address, port, weight) for address in self._addresses(asked, target, found) if 0 < port < 65536}
        return self._bounded(places, found, len(chosen) - self._spec.max_addresses)

    def _bounded(self, places: Iterable[HostPort], found: _Found, beyond: int = 0) -> Resolved:
        """Raises Unresolved where nothing is known."""
        ordered, most, failure = sorted(places), self._spec.max_addresses, found.failure
        if failure is not None and not ordered:
            raise failure
        left_out = max(0, len(ordered) - most) + max(0, beyond)
        ttl = found.ttl if ordered else NEGATIVE_TTL
        return Resolved(tuple(ordered[:most]), ttl, left_out, frozenset(found.unknown), "" if failure is None else failure.message)


def _sentence(error: Exception) -> str:
    """What dnspython says, in one line that cannot be long."""
    return " ".join(str(error).split())[:200]
