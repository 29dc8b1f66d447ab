"""Where a host name leads: A and AAAA records, or the services of SRV records (RFC 1035, RFC 3596, RFC 2782).

Asked with dnspython in a thread, because reading an answer of thousands of records would hold the event loop. Every question has a
deadline, and what an answer may cost is bounded: by the size of a message (64 KiB), and by `max_addresses`. dnspython checks that an answer
belongs to its question, follows aliases to a bound, and turns to TCP where an answer was cut off.
"""

from __future__ import annotations

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


class Unresolved(GatehouseError):
    """A name could not be resolved; the message says why."""


class Resolved(Struct, frozen=True):
    """places: in order; none: the name exists without such records, or does not exist. ttl: seconds. left_out: how many places there were
    beyond `max_addresses`."""

    places: tuple[HostPort, ...]
    ttl: float
    left_out: int = 0


class Names:
    """Asks the servers of one `DnsSpec`. Blocks; call it in a thread."""

    def __init__(self, dns: DnsSpec) -> None:
        self._spec = dns
        self._resolver: Any = import_module("dns.resolver")
        self._errors: Any = import_module("dns.exception")

    def resolve(self, host: str, port: int) -> Resolved:
        """Raises Unresolved. port: of addresses; those of services have their own."""
        asked = self._made()
        if self._spec.records == "srv":
            return self._services(asked, host)
        found, ttl = self._addresses(asked, host)
        return self._bounded({HostPort(address, port) for address in found}, ttl)

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
        except self._errors.DNSException as error:
            raise Unresolved(f"{kind} of {name}: {_sentence(error)}") from None
        except (OSError, ValueError, RecursionError) as error:  # a name that cannot be asked for, an answer that makes no sense
            raise Unresolved(f"{kind} of {name}: {type(error).__name__}") from None
        return list(answer), min(float(answer.rrset.ttl), MOST_TTL) if answer.rrset is not None else NEGATIVE_TTL

    def _addresses(self, asked: Any, host: str) -> tuple[list[str], float]:
        """IPv4 and IPv6. One kind that cannot be asked for does not take the other away. Raises Unresolved if there is neither."""
        found: list[str] = []
        ttls: list[float] = []
        failure: Unresolved | None = None
        for kind in ("A", "AAAA"):
            try:
                records, ttl = self._ask(asked, host, kind)
            except Unresolved as error:
                failure = error
                continue
            found += [str(record.address) for record in records]
            if records:
                ttls.append(ttl)
        if failure is not None and not found:
            raise failure
        return found, min(ttls, default=NEGATIVE_TTL)

    def _services(self, asked: Any, name: str) -> Resolved:
        """The targets of the lowest priority, each with its addresses, its port and its weight. "." as the only target: no service."""
        records, ttl = self._ask(asked, name, "SRV")
        records = [record for record in records if str(record.target) != "."]
        if not records:
            return Resolved((), ttl)
        first = min(record.priority for record in records)
        chosen = sorted((str(r.target), int(r.port), int(r.weight)) for r in records if r.priority == first)
        places: set[HostPort] = set()
        failure: Unresolved | None = None
        for target, port, weight in chosen[: self._spec.max_addresses]:
            try:
                found, shorter = self._addresses(asked, target)
            except Unresolved as error:
                failure = error
                continue
            ttl = min(ttl, shorter) if found else ttl
            places |= {HostPort(address, port, weight) for address in found if 0 < port < 65536}
        if failure is not None and not places:
            raise failure
        return self._bounded(places, ttl, len(chosen) - self._spec.max_addresses)

    def _bounded(self, places: Iterable[HostPort], ttl: float, beyond: int = 0) -> Resolved:
        ordered = sorted(places)
        most = self._spec.max_addresses
        return Resolved(tuple(ordered[:most]), ttl, max(0, len(ordered) - most) + max(0, beyond))


def _sentence(error: Exception) -> str:
    """What dnspython says, in one line that cannot be long."""
    return " ".join(str(error).split())[:200]
