"""API keys of the store, as the data plane keeps them: a bounded cache that the feed corrects, so that a request asks nobody.

Known keys and, for seconds, unknown ones are remembered under the SHA-256 of the whole key. A key that is not remembered is
asked for once, however many requests bring it at the same time. A change (revoked, rotated, updated) drops the key at once;
an answer that was under way meanwhile is not believed and asked for again. Guessing costs the guesser: a peer that keeps
presenting unknown keys is put off before the store is asked.
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
"""(SHA-256 of the key, the key) to the record, whatever its state; None: there is no such key. Raises StoreUnavailable."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CAPACITY = 65536
NEGATIVE_SECONDS = 5.0
MAX_FLIGHTS = 64
"""Unknown keys that are asked for at the same time; more than that are put off (503)."""
MAX_TRIES = 5
"""How often an answer that was overtaken by a change is asked for again."""
GUESSES = 32
"""Unknown keys that one peer may present in a row; it gets one more each `GUESS_SECONDS`."""
GUESS_SECONDS = 0.25
PEERS = 4096
USED_SECONDS = 60.0


class Entry:
    """One known key. `used`: a request has used it since that was last reported, at `reported` (monotonic)."""

    __slots__ = ("digest", "networks", "principal", "reported", "used")

    def __init__(self, digest: bytes, principal: Principal, networks: tuple[Network, ...]) -> None:
        self.digest, self.principal, self.networks = digest, principal, networks
        self.used = False
        self.reported = float("-inf")


class Flight:
    """One question under way, with a future for each request that waits: one that leaves cancels its own only. Futures and not a
    Signal, as both a Driver and a task can await them.

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
        """Whether nothing has happened since the question that would make this answer an old one."""
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
        """Of each key that is remembered, its secrets: a rotated key has several for a while."""
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._flights: dict[bytes, Flight] = {}
        self._used: list[Entry] = []
        self._guesses = Guesses(self._clock)

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._known)

    # --- asked by the authenticator

    def remembered(self, digest: bytes, peer: Peer) -> Principal | None:
        """The principal of an active key that is remembered and may be used from there; the path of nearly every request."""
        entry = self._known.get(digest)
        if entry is None:
            return None
        self._known.move_to_end(digest)
        return self._judge(entry, peer)

    def lookup(self, digest: bytes, key: str, peer: Peer) -> Maybe[Principal | None]:
        """The principal of an active key that may be used from there; None: not so, and not why. Raises Overloaded, StoreUnavailable."""
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
        except Exception as error:  # noqa: BLE001 - boundary: whoever waits must hear of any failure, and is refused
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
        """A key was created, updated, rotated, revoked or deleted, here or on another machine: what is remembered of it is dropped."""
        made = action in ("created", "rotated")  # there is a secret that was not there before
        if made:
            self._unknown.clear()
        for digest in self._digests.pop(id, ()):
            self._known.pop(digest, None)
        for flight in self._flights.values():
            flight.changed.add(id)
            flight.made = flight.made or made

    def clear(self) -> None:
        """Changes were missed: nothing that is remembered may be trusted, nor an answer that is under way."""
        dropped = len(self._known)
        self._known.clear()
        self._digests.clear()
        self._unknown.clear()
        for flight in self._flights.values():
            flight.missed = True
        log.warning("changes of API keys were missed: %d keys are looked up anew when they are used", dropped)

    def take_used(self, interval: float = USED_SECONDS) -> dict[str, float]:
        """Ids of the keys that were used since they were last reported, with the time now (seconds since the epoch); each at most
        once in `interval` seconds."""
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
    """How many unknown keys each peer may still present: a small bucket for each, in a bounded table."""

    def __init__(self, clock: Clock, peers: int = PEERS) -> None:
        self._clock, self._peers = clock, peers
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when the bucket would be full again (GCRA)

    def allow(self, address: str) -> bool:
        free_at = self._free_at.get(_neighbourhood(address)) if self._free_at else None
        return free_at is None or free_at - self._clock.monotonic() <= (GUESSES - 1) * GUESS_SECONDS

    def wrong(self, address: str) -> None:
        """One more unknown key came from there."""
        where, now = _neighbourhood(address), self._clock.monotonic()
        self._free_at[where] = max(now, self._free_at.get(where, 0.0)) + GUESS_SECONDS
        self._free_at.move_to_end(where)
        if len(self._free_at) > self._peers:
            self._free_at.popitem(last=False)


def principal_of(record: KeyRecord) -> Principal:
    """`expires` is the first moment at which the key ends for whatever reason."""
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
    """An IPv6 peer has at least a /64 to itself."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def _inside(address: str, networks: tuple[Network, ...]) -> bool:
    """Whether a peer's address (an IPv4 one may come mapped into IPv6) lies in one of the networks. What is no address does not."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)
