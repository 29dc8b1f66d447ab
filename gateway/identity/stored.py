"""The data plane's cache of the store's API keys: bounded, and kept current by the feed, so that most requests need no look-up elsewhere.

Known keys, and unknown ones for a few seconds, are cached under the SHA-256 of the whole key. A key that is not cached is asked for once,
however many requests bring it at the same time. A change (revoked, rotated, updated) drops the key at once; an answer that was under way
at that moment is discarded, and the store is asked again. A peer that keeps presenting unknown keys is turned away before the store is
asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import GatehouseError, Overloaded, StoreUnavailable
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.core.waiting import Maybe

log = logging.getLogger("gatehouse.identity")

Find = Callable[[bytes, str], Awaitable[KeyRecord | None]]
"""(SHA-256 of the key, the key) -> its record in whatever state, or None for an unknown key. Raises StoreUnavailable."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CAPACITY = 65536
NEGATIVE_SECONDS = 5.0
MAX_FLIGHTS = 64
"""Unknown keys that are looked up at the same time. Further ones are turned away (503)."""
MAX_TRIES = 5
"""How often the store is asked again when a change overtook its answer."""
GUESSES = 32
"""Unknown keys that one peer may present in a row; it gets one more each `GUESS_SECONDS`."""
GUESS_SECONDS = 0.25
PEERS = 4096
USED_SECONDS = 60.0


class Entry:
    """One known key. `used`: since `reported` (monotonic), when its use was last reported."""

    __slots__ = ("digest", "networks", "principal", "reported", "used")

    def __init__(self, digest: bytes, principal: Principal, networks: tuple[Network, ...]) -> None:
        self.digest, self.principal, self.networks = digest, principal, networks
        self.used = False
        self.reported = float("-inf")


class Flight:
    """One look-up under way, with a future for each waiting request: one that leaves cancels only its own. Futures instead of a Signal,
    because both a Driver and a task can await them.

    peer: the address of the first that asked. `changed`: ids of keys that changed meanwhile; `made`: whether any key was made
    meanwhile; `missed`: whether changes were missed.
    """

    __slots__ = ("changed", "made", "missed", "peer", "waiting")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.waiting: list[asyncio.Future[Entry | None]] = []
        self.changed: set[str] = set()
        self.made = self.missed = False

    def join(self) -> asyncio.Future[Entry | None]:
        future: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def land(self, entry: Entry | None) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(entry)

    def fail(self, error: Exception) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_exception(error)

    def restart(self) -> None:
        self.changed.clear()
        self.made = self.missed = False

    def believes(self, record: KeyRecord | None) -> bool:
        """Whether the answer is current: no change since the question makes it stale."""
        if self.missed:
            return False
        return not self.made if record is None else record.id not in self.changed


class StoredKeys:
    """Implements gateway.core.ports.KeyStore. For one event loop.

    capacity: keys that are remembered, and as many unknown ones. Memory is about 1 KiB for each known key (docs/store.md).
    """

    def __init__(
        self,
        find: Find,
        tasks: TaskOwner,
        *,
        clock: Clock | None = None,
        capacity: int = CAPACITY,
        negative_seconds: float = NEGATIVE_SECONDS,
        max_flights: int = MAX_FLIGHTS,
    ) -> None:
        self._find, self._tasks = find, tasks
        self._clock: Clock = clock or SystemClock()
        self._capacity, self._negative_seconds, self._max_flights = capacity, negative_seconds, max_flights
        self._known: OrderedDict[bytes, Entry] = OrderedDict()
        self._digests: dict[str, list[bytes]] = {}
        """The secrets of each cached key. A rotated key has several for a while."""
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._flights: dict[bytes, Flight] = {}
        self._used: list[Entry] = []
        self._guesses = Guesses(self._clock)

    def __len__(self) -> int:
        """Cached keys."""
        return len(self._known)

    # --- asked by the authenticator

    def remembered(self, digest: bytes, peer: Peer) -> Principal | None:
        """The principal of a cached, active key that may be used from this peer. Nearly every request takes this path."""
        entry = self._known.get(digest)
        if entry is None:
            return None
        self._known.move_to_end(digest)
        return self._judge(entry, peer)

    def lookup(self, digest: bytes, key: str, peer: Peer) -> Maybe[Principal | None]:
        """The principal of an active key that this peer may use, or None, without a reason. Raises Overloaded, StoreUnavailable."""
        entry = self._known.get(digest)
        if entry is not None:
            self._known.move_to_end(digest)
            return self._judge(entry, peer)
        until = self._unknown.get(digest)
        if until is not None:
            if until > self._clock.monotonic():
                return None
            del self._unknown[digest]
        flight = self._flights.get(digest)
        if flight is None:
            if not self._guesses.allow(peer.address):
                raise Overloaded("Too many unknown API keys were sent from here.", retry_after=1.0)
            if len(self._flights) >= self._max_flights:
                raise Overloaded("Too many API keys are being looked up.", retry_after=1.0)
            flight = self._flights[digest] = Flight(peer.address)
            self._tasks.spawn(self._fly(flight, digest, key), name="find key")
        return self._wait(flight.join(), peer)

    async def _wait(self, answer: asyncio.Future[Entry | None], peer: Peer) -> Principal | None:
        entry = await answer
        return None if entry is None else self._judge(entry, peer)

    def _judge(self, entry: Entry, peer: Peer) -> Principal | None:
        principal = entry.principal
        if principal.expires is not None and principal.expires <= self._clock.wall():
            return None
        if entry.networks and not _inside(peer.address, entry.networks):
            return None
        if not entry.used:
            entry.used = True
            self._used.append(entry)
        return principal

    # --- asking the store

    async def _fly(self, flight: Flight, digest: bytes, key: str) -> None:
        """Always ends the flight."""
        try:
            record = await self._ask(flight, digest, key)
        except asyncio.CancelledError:
            self._flights.pop(digest, None)
            flight.fail(StoreUnavailable("The gateway is shutting down."))
            raise
        except Exception as error:  # noqa: BLE001 - boundary: those waiting must learn of any failure, and are refused
            self._flights.pop(digest, None)
            if not isinstance(error, GatehouseError):
                log.error("a key could not be looked up (%s)", type(error).__name__)
                error = StoreUnavailable("The key could not be looked up.")
            flight.fail(error)
            return
        self._flights.pop(digest, None)
        if record is None:
            self._guesses.wrong(flight.peer)
        flight.land(self._remember(digest, record))

    async def _ask(self, flight: Flight, digest: bytes, key: str) -> KeyRecord | None:
        for _ in range(MAX_TRIES):
            flight.restart()
            record = await self._find(digest, key)
            if flight.believes(record):
                return record
        raise StoreUnavailable("The key changes too often to be looked up.", retry_after=1.0)

    def _remember(self, digest: bytes, record: KeyRecord | None) -> Entry | None:
        if record is None:
            self._unknown[digest] = self._clock.monotonic() + self._negative_seconds
            if len(self._unknown) > self._capacity:
                self._unknown.popitem(last=False)
            return None
        entry = Entry(digest, principal_of(record), tuple(ipaddress.ip_network(network) for network in record.cidrs))
        self._known[digest] = entry
        self._digests.setdefault(record.id, []).append(digest)
        if len(self._known) > self._capacity:
            _, oldest = self._known.popitem(last=False)
            others = [other for other in self._digests.pop(oldest.principal.id, ()) if other != oldest.digest]
            if others:
                self._digests[oldest.principal.id] = others
        return entry

    # --- told by the feed

    def changed(self, id: str, action: str) -> None:
        """Drops a key from the cache: it was created, updated, rotated, revoked or deleted, here or on another machine."""
        made = action in ("created", "rotated")  # there is a secret that was not there before
        if made:
            self._unknown.clear()
        for digest in self._digests.pop(id, ()):
            self._known.pop(digest, None)
        for flight in self._flights.values():
            flight.changed.add(id)
            flight.made = flight.made or made

    def clear(self) -> None:
        """Changes were missed: drops every cached key and distrusts every answer under way."""
        dropped = len(self._known)
        self._known.clear()
        self._digests.clear()
        self._unknown.clear()
        for flight in self._flights.values():
            flight.missed = True
        log.warning("changes of API keys were missed: %d keys are looked up anew when they are used", dropped)

    def take_used(self, interval: float = USED_SECONDS) -> dict[str, float]:
        """Ids of the keys used since the last report, with the current time (seconds since the epoch). Each key is reported at most once in
        `interval` seconds."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        used, self._used = self._used, []
        reported: dict[str, float] = {}
        for entry in used:
            if now - entry.reported < interval:
                self._used.append(entry)  # later
                continue
            entry.used, entry.reported = False, now
            reported[entry.principal.id] = wall
        return reported


class Guesses:
    """How many more unknown keys each peer may present: one small bucket a peer, in a bounded table."""

    def __init__(self, clock: Clock, peers: int = PEERS) -> None:
        self._clock, self._peers = clock, peers
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when the bucket would be full again (GCRA)

    def allow(self, address: str) -> bool:
        free_at = self._free_at.get(_neighbourhood(address)) if self._free_at else None
        return free_at is None or free_at - self._clock.monotonic() <= (GUESSES - 1) * GUESS_SECONDS

    def wrong(self, address: str) -> None:
        """Counts one more unknown key from this peer."""
        where, now = _neighbourhood(address), self._clock.monotonic()
        self._free_at[where] = max(now, self._free_at.get(where, 0.0)) + GUESS_SECONDS
        self._free_at.move_to_end(where)
        if len(self._free_at) > self._peers:
            self._free_at.popitem(last=False)


def principal_of(record: KeyRecord) -> Principal:
    """`expires` is the earliest moment at which the key stops being valid."""
    return Principal(
        id=record.id,
        tenant=record.tenant,
        kind="api_key",
        models=record.models,
        priority=record.priority,
        roles=record.roles,
        expires=record.ends(),
        operations=record.operations,
        limits=record.limits,
    )


def _neighbourhood(address: str) -> str:
    """IPv6 peers count by their /64, which one subscriber has to itself."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def _inside(address: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address lies in one of the networks. IPv4 may arrive mapped into IPv6; anything but an address is in none."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)
