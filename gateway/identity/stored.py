"""The data plane's cache of the store's API keys: bounded, and kept current by the feed, so that most requests need no look-up elsewhere.

Known keys, and unknown ones for a few seconds, are cached under the SHA-256 of the whole key. A key that is not cached is asked for once,
however many requests bring it at the same time. A change (revoked, rotated, updated) drops the key at once; an answer that was under way
at that moment is discarded, and the store is asked again.

A key cannot be guessed, so unknown ones are only a load, which the store bears by answering many at once (gateway.store.key_finder). A peer
that keeps presenting them waits a little for each further one; nobody is turned away, because a valid key from the same address cannot be
told from the others before it is looked up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import GatehouseError, Overloaded, StoreUnavailable
from gateway.core.network import Networks, Rules
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.throttle import Buckets, neighbourhood
from gateway.core.types import Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.people import UNBOUNDED, WITHDRAWN, People, Rights, Subject, entitle_key, entitle_personal

log = logging.getLogger("gatehouse.identity")

Find = Callable[[bytes, str], Awaitable[KeyRecord | None]]
"""(SHA-256 of the key, the key) -> its record in whatever state, or None for an unknown key. Raises StoreUnavailable."""

CAPACITY = 65536
NEGATIVE_SECONDS = 5.0
MAX_FLIGHTS = 4096
"""Unknown keys that are looked up at the same time: each is a connection's, and there are as many of these by default. Further ones are
turned away (503)."""
MAX_TRIES = 5
"""How often the store is asked again when a change overtook its answer."""
GUESSES = 32
"""Unknown keys that one peer may present in a row; it gets one more each `GUESS_SECONDS`. Beyond these, the store is asked after a wait of
`SLOW_SECONDS`."""
GUESS_SECONDS = 0.25
SLOW_SECONDS = 0.1
PEERS = 4096
USED_SECONDS = 60.0


class Entry:
    """One known key. principal: with the rights of the tenant or the user; None: the key does not count. It holds while `rights` is valid.
    `used`: since `reported` (monotonic), when its use was last reported. personal: the record of a user's own key."""

    __slots__ = ("base", "digest", "gone", "networks", "personal", "principal", "reported", "rights", "used")

    def __init__(self, digest: bytes, record: KeyRecord, networks: Rules | None) -> None:
        self.digest, self.networks = digest, networks
        self.base = principal_of(record)
        self.personal = record if record.user else None
        self.principal: Principal | None = None
        self.rights = WITHDRAWN
        self.used = self.gone = False
        self.reported = float("-inf")

    def withdraw(self) -> None:
        """The key itself has changed: whoever still holds this asks again."""
        self.rights, self.gone = WITHDRAWN, True

    @property
    def subject(self) -> Subject:
        """Whose rights count."""
        return self.base.tenant, self.base.user, ()

    def entitle(self, rights: Rights) -> None:
        self.rights = rights
        self.principal = entitle_key(self.base, rights.record) if self.personal is None else entitle_personal(self.personal, rights.record)


class Flight:
    """One look-up under way, with a future for each waiting request: one that leaves cancels only its own. Futures instead of a Signal,
    because both a Driver and a task can await them.

    peer: where the first that asked is. `changed`: ids of keys that changed meanwhile; `made`: whether any key was made
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

    people: what the store says of tenants and users. networks: what the keys' networks share. capacity: keys that are remembered, and as
    many unknown ones. Memory is about 1 KiB for each known key (docs/store.md).
    """

    def __init__(
        self,
        find: Find,
        tasks: TaskOwner,
        people: People | None = None,
        *,
        networks: Networks | None = None,
        clock: Clock | None = None,
        capacity: int = CAPACITY,
        negative_seconds: float = NEGATIVE_SECONDS,
        max_flights: int = MAX_FLIGHTS,
    ) -> None:
        self._find, self._tasks, self._people = find, tasks, people
        self._networks = networks or Networks()
        self._clock: Clock = clock or SystemClock()
        self._capacity, self._negative_seconds, self._max_flights = capacity, negative_seconds, max_flights
        self._known: OrderedDict[bytes, Entry] = OrderedDict()
        self._digests: dict[str, list[bytes]] = {}
        """The secrets of each cached key. A rotated key has several for a while."""
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._flights: dict[bytes, Flight] = {}
        self._used: list[Entry] = []
        self._guesses = Buckets(self._clock, GUESSES, GUESS_SECONDS, PEERS)

    def __len__(self) -> int:
        """Cached keys."""
        return len(self._known)

    # --- asked by the authenticator

    def remembered(self, digest: bytes, peer: Peer) -> Principal | None:
        """The principal of a cached, active key that may be used from this peer. Nearly every request takes this path."""
        entry = self._known.get(digest)
        if entry is None or not entry.rights.valid:
            return None
        self._known.move_to_end(digest)
        return self._judge(entry, peer)

    def lookup(self, digest: bytes, key: str, peer: Peer) -> Maybe[Principal | None]:
        """The principal of an active key that this peer may use, or None, without a reason. Raises Overloaded, StoreUnavailable."""
        entry = self._known.get(digest)
        if entry is not None:
            self._known.move_to_end(digest)
            return self._judge(entry, peer) if entry.rights.valid else self._renewed(entry, digest, key, peer)
        until = self._unknown.get(digest)
        if until is not None:
            if until > self._clock.monotonic():
                return None
            del self._unknown[digest]
        return self._wait(self._asked(digest, key, peer), digest, key, peer)

    def _asked(self, digest: bytes, key: str, peer: Peer) -> asyncio.Future[Entry | None]:
        flight = self._flights.get(digest)
        if flight is None:
            if len(self._flights) >= self._max_flights:
                raise Overloaded("Too many API keys are being looked up.", retry_after=1.0)
            flight = self._flights[digest] = Flight(neighbourhood(peer.address))
            slow = self._guesses.wait(flight.peer) > 0.0
            self._tasks.spawn(self._fly(flight, digest, key, slow), name="find key")
        return flight.join()

    async def _wait(self, answer: asyncio.Future[Entry | None], digest: bytes, key: str, peer: Peer) -> Principal | None:
        entry = await answer
        return None if entry is None else await self._renewed(entry, digest, key, peer)

    async def _renewed(self, entry: Entry, digest: bytes, key: str, peer: Peer) -> Principal | None:
        """Judges a key by rights that hold now, and by its record as it is then."""
        for _ in range(MAX_TRIES):
            if not entry.rights.valid and not entry.gone:
                found = UNBOUNDED if self._people is None else self._people.rights(entry.subject)
                rights = found if isinstance(found, Rights) else await found
                if not entry.rights.valid and not entry.gone:  # nobody else has done it meanwhile
                    entry.entitle(rights)
            if entry.gone:  # a change has overtaken it
                following = self._known.get(digest) or await self._asked(digest, key, peer)
                if following is None:
                    return None
                entry = following
            elif entry.rights.valid:
                return self._judge(entry, peer)
        raise StoreUnavailable("The key changes too often to be looked up.", retry_after=1.0)

    def _judge(self, entry: Entry, peer: Peer) -> Principal | None:
        principal = entry.principal
        if principal is None or (principal.expires is not None and principal.expires <= self._clock.wall()):
            return None
        if entry.networks is not None and not entry.networks.admits(peer.address):
            return None
        if not entry.used:
            entry.used = True
            self._used.append(entry)
        return principal

    # --- asking the store

    async def _fly(self, flight: Flight, digest: bytes, key: str, slow: bool) -> None:
        """Always ends the flight."""
        try:
            if slow:
                await asyncio.sleep(SLOW_SECONDS)
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
            self._guesses.take(flight.peer)
        flight.land(self._remember(digest, record))

    async def _ask(self, flight: Flight, digest: bytes, key: str) -> KeyRecord | None:
        for _ in range(MAX_TRIES):
            flight.restart()
            record = await self._find(digest, key)
            if flight.believes(record):
                return record
        raise StoreUnavailable("The key changes too often to be looked up.", retry_after=1.0)

    def _remember(self, digest: bytes, record: KeyRecord | None) -> Entry | None:
        """A key that has ended is remembered no longer than an unknown one: where keys come and go, their number has no end."""
        if record is None or record.state(self._clock.wall()) != "active":
            self._unknown[digest] = self._clock.monotonic() + self._negative_seconds
            if len(self._unknown) > self._capacity:
                self._unknown.popitem(last=False)
            return None
        entry = Entry(digest, record, self._networks.rules(record.cidrs))
        self._known[digest] = entry
        self._digests.setdefault(record.id, []).append(digest)
        if len(self._known) > self._capacity:
            _, oldest = self._known.popitem(last=False)
            others = [other for other in self._digests.pop(oldest.base.id, ()) if other != oldest.digest]
            if others:
                self._digests[oldest.base.id] = others
        return entry

    # --- told by the feed

    def changed(self, id: str, action: str) -> None:
        """Drops a key from the cache: it was created, updated, rotated, revoked or deleted, here or on another machine."""
        made = action in ("created", "rotated")  # there is a secret that was not there before
        if made or action == "updated":  # or one that had ended may be good again
            self._unknown.clear()
        for digest in self._digests.pop(id, ()):
            if (entry := self._known.pop(digest, None)) is not None:
                entry.withdraw()
        for flight in self._flights.values():
            flight.changed.add(id)
            flight.made = flight.made or made

    def clear(self) -> None:
        """Changes were missed: drops every cached key and distrusts every answer under way."""
        dropped = len(self._known)
        for entry in self._known.values():
            entry.withdraw()
        self._known.clear()
        self._digests.clear()
        self._unknown.clear()
        for flight in self._flights.values():
            flight.missed = True
        if dropped:
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
            reported[entry.base.id] = wall
        return reported


def principal_of(record: KeyRecord) -> Principal:
    """`expires` is the earliest moment at which the key stops being valid."""
    found = Principal(
        id=record.id,
        tenant=record.tenant,
        kind="api_key",
        models=record.models,
        priority=record.priority,
        roles=record.roles,
        expires=record.ends(),
        operations=record.operations,
        limits=record.limits,
        user=record.user,
    )
    found.made = record.created
    return found
