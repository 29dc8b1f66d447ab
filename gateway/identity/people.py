"""What the store says of callers: the models of their tenant, their groups and roles there, whether their own keys count.

Like a key's record (gateway.identity.stored) it is asked for once and remembered, in a bounded table. A change of the store drops it, and
whoever holds it sees that it is no longer `valid`; an answer that was under way at that moment is discarded, and the store is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import GatehouseError, Overloaded, StoreUnavailable
from gateway.core.people import WITHHELD, PersonRecord, Seen, full_name, own_keys
from gateway.core.ports import Authenticator
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Peer, Principal, Scope
from gateway.core.waiting import Maybe
from gateway.identity.credentials import invalid_credentials

log = logging.getLogger("gatehouse.identity")

Subject = tuple[str, str, tuple[str, ...]]
"""(tenant, user, the groups that the login said); user "" for a tenant's keys."""
Find = Callable[[str, str, tuple[str, ...]], Awaitable[PersonRecord]]
"""(tenant, user, groups) -> what the store says. Raises StoreUnavailable."""

KINDS: Final = ("tenants", "users", "groups", "logins")
"""Kinds of changes of the store that may change what is remembered here."""
CAPACITY: Final = 65536
MAX_FLIGHTS: Final = 256
"""Questions under way. Further callers who are not remembered are turned away (503)."""
MAX_TRIES: Final = 5
MAX_SEEN: Final = 4096
"""Users whose logins wait to be reported; of more, the next login counts."""


class Era:
    """The time between two changes that concern all callers of a tenant. Ending it drops all of them at once, however many."""

    __slots__ = ("lasts",)

    def __init__(self) -> None:
        self.lasts = True


class Rights:
    """What the store said of one subject. It counts for as long as it is `valid`."""

    __slots__ = ("_era", "_live", "record")

    def __init__(self, record: PersonRecord, valid: bool = True, era: Era | None = None) -> None:
        self.record, self._live, self._era = record, valid, era or Era()

    @property
    def valid(self) -> bool:
        return self._live and self._era.lasts

    def withdraw(self) -> None:
        self._live = False


UNBOUNDED: Final = Rights(PersonRecord())
"""Of callers that no store says anything of."""
WITHDRAWN: Final = Rights(PersonRecord(), valid=False)
"""Of what must be asked for again."""


class Flight:
    """One question under way. id: the user's full name. stale: what it asks about has changed meanwhile."""

    __slots__ = ("id", "stale", "waiting")

    def __init__(self, id: str) -> None:
        self.id, self.stale = id, False
        self.waiting: list[asyncio.Future[Rights]] = []

    def join(self) -> asyncio.Future[Rights]:
        future: asyncio.Future[Rights] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future


class People:
    """For one event loop. capacity: subjects that are remembered."""

    def __init__(
        self, find: Find, tasks: TaskOwner, *, clock: Clock | None = None, capacity: int = CAPACITY, max_flights: int = MAX_FLIGHTS
    ) -> None:
        self._find, self._tasks = find, tasks
        self.clock: Clock = clock or SystemClock()
        self._capacity, self._max_flights = capacity, max_flights
        self._known: OrderedDict[Subject, Rights] = OrderedDict()
        self._eras: dict[str, Era] = {}
        self._subjects: dict[str, dict[str, set[Subject]]] = {}
        """Those remembered, by tenant and by the user's full name."""
        self._flights: dict[Subject, Flight] = {}
        self._seen: dict[tuple[str, str], Seen] = {}

    def __len__(self) -> int:
        """Remembered subjects, with those that have been dropped and were not asked for since."""
        return len(self._known)

    # --- asked by those who authenticate

    def rights(self, subject: Subject) -> Maybe[Rights]:
        """Raises Overloaded, StoreUnavailable."""
        found = self._known.get(subject)
        if found is not None and found.valid:
            self._known.move_to_end(subject)
            return found
        flight = self._flights.get(subject)
        if flight is None:
            if len(self._flights) >= self._max_flights:
                raise Overloaded("Too many callers are being looked up.", retry_after=1.0)
            flight = self._flights[subject] = Flight(full_name(subject[1], subject[0]))
            self._tasks.spawn(self._fly(flight, subject), name="find person")
        return flight.join()

    def over(self, authenticator: Authenticator) -> Authenticator:
        """The same way to log in, whose callers have the groups, roles and bounds that the store gives them."""
        return Entitled(authenticator, self)

    async def _fly(self, flight: Flight, subject: Subject) -> None:
        """Always ends the flight."""
        try:
            rights = Rights(await self._ask(flight, subject), era=self._eras.setdefault(subject[0], Era()))
        except asyncio.CancelledError:
            self._end(flight, subject, StoreUnavailable("The gateway is shutting down."))
            raise
        except Exception as error:  # noqa: BLE001 - boundary: those waiting must learn of any failure, and are refused
            if not isinstance(error, GatehouseError):
                log.error("a caller could not be looked up (%s)", type(error).__name__)
                error = StoreUnavailable("The caller could not be looked up.")
            self._end(flight, subject, error)
            return
        self._remember(subject, flight.id, rights)
        del self._flights[subject]
        for future in flight.waiting:
            if not future.done():
                future.set_result(rights)

    def _end(self, flight: Flight, subject: Subject, error: GatehouseError) -> None:
        del self._flights[subject]
        for future in flight.waiting:
            if not future.done():
                future.set_exception(error)

    async def _ask(self, flight: Flight, subject: Subject) -> PersonRecord:
        for _ in range(MAX_TRIES):
            flight.stale = False
            record = await self._find(*subject)
            if not flight.stale:
                return record
        raise StoreUnavailable("What is known of the caller changes too often.", retry_after=1.0)

    def _remember(self, subject: Subject, id: str, rights: Rights) -> None:
        self._known[subject] = rights
        self._known.move_to_end(subject)
        self._subjects.setdefault(subject[0], {}).setdefault(id, set()).add(subject)
        if len(self._known) > self._capacity:
            oldest, forgotten = self._known.popitem(last=False)
            forgotten.withdraw()  # no change would reach it any more
            users, id = self._subjects.get(oldest[0], {}), full_name(oldest[1], oldest[0])
            if id in users:
                users[id].discard(oldest)
                if not users[id]:
                    del users[id]
            if not users:
                self._subjects.pop(oldest[0], None)
                self._eras.pop(oldest[0], None)

    # --- told by the feed

    def changed(self, kind: str, name: str) -> None:
        """A tenant, user or group was made, changed or deleted, or a user has logged in with other groups; here or on another machine."""
        if kind in ("users", "logins"):
            self._drop(name.rpartition("@")[2], name)
        else:
            self._drop(name.rpartition("@")[2] if kind == "groups" else name, None)

    def _drop(self, tenant: str, id: str | None) -> None:
        """Forgets a user, by the full name, or all callers of a tenant."""
        if id is None:
            if (era := self._eras.pop(tenant, None)) is not None:
                era.lasts = False
            self._subjects.pop(tenant, None)
        else:
            for subject in self._subjects.get(tenant, {}).pop(id, ()):
                self._known.pop(subject).withdraw()
        for subject, flight in self._flights.items():
            if subject[0] == tenant and id in (None, flight.id):
                flight.stale = True

    def clear(self) -> None:
        """Changes were missed: nothing that is remembered counts any more."""
        for era in self._eras.values():
            era.lasts = False
        self._eras.clear()
        self._known.clear()
        self._subjects.clear()
        for flight in self._flights.values():
            flight.stale = True

    # --- logins

    def saw(self, principal: Principal) -> None:
        """Notes that a person has logged in, to be reported. Who acts for somebody else does not log them in, and a gateway token is no
        new login. The moment is the one in which the credential was issued: an older one does not bring back what it said."""
        who = (principal.tenant, principal.user)
        if (
            not principal.user
            or principal.agent
            or principal.kind == "gateway_token"
            or (who not in self._seen and len(self._seen) >= MAX_SEEN)
        ):
            return
        login = principal.login
        self._seen[who] = Seen(
            tenant=principal.tenant,
            user=principal.user,
            method=principal.kind,
            issuer="" if login is None else login.issuer,
            groups=principal.groups,
            roles=principal.roles,
            time=self.clock.wall() if login is None or login.issued is None else login.issued,
        )

    def take_seen(self) -> list[Seen]:
        """The logins since it was asked last, one for each user."""
        seen, self._seen = self._seen, {}
        return list(seen.values())


class Entitled:
    """A way to log in, with the rights that the store gives. Life: that of the way to log in."""

    def __init__(self, authenticator: Authenticator, people: People) -> None:
        self._authenticate, self._people, self.inner = authenticator.authenticate, people, authenticator
        self._known: OrderedDict[Principal, tuple[Principal, Rights]] = OrderedDict()

    async def start(self) -> None:
        start = getattr(self.inner, "start", None)
        if start is not None:
            await start()

    async def aclose(self) -> None:
        aclose = getattr(self.inner, "aclose", None)
        if aclose is not None:
            await aclose()

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        found = self._authenticate(headers, peer)
        if found is None:
            return None
        return self._entitled(found) if isinstance(found, Principal) else self._wait(found)

    async def _wait(self, answer: Awaitable[Principal | None]) -> Principal | None:
        found = await answer
        if found is None:
            return None
        entitled = self._entitled(found)
        return entitled if isinstance(entitled, Principal) else await entitled

    def _entitled(self, login: Principal) -> Maybe[Principal]:
        known = self._known.get(login)
        if known is not None and known[1].valid:
            return known[0]
        if known is None:
            if "@" in login.tenant:  # no tenant's name has one: `NAME@TENANT` would name two users
                log.warning("a login was refused: the name of its tenant has an '@'")
                raise invalid_credentials()
            self._people.saw(login)
        rights = self._people.rights((login.tenant, login.user, login.groups))
        return self._keep(login, rights) if isinstance(rights, Rights) else self._arrived(login, rights)

    async def _arrived(self, login: Principal, answer: Awaitable[Rights]) -> Principal:
        for _ in range(MAX_TRIES):
            rights = await answer
            if rights.valid:
                return self._keep(login, rights)
            again = self._people.rights((login.tenant, login.user, login.groups))
            if isinstance(again, Rights):
                return self._keep(login, again)
            answer = again
        raise StoreUnavailable("What is known of the caller changes too often.", retry_after=1.0)

    def _keep(self, login: Principal, rights: Rights) -> Principal:
        entitled = entitle_login(login, rights.record)
        self._known[login] = (entitled, rights)
        self._known.move_to_end(login)
        if len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return entitled


def entitle_login(login: Principal, record: PersonRecord) -> Principal:
    """The caller with the groups, roles and bounds that the store adds; the same object where it adds none."""
    groups, roles = _union(login.groups, record.groups), _union(login.roles, record.roles)
    scopes = _scopes(groups, record)
    bounds = (*login.bounds, *_tenant_bound(record), *((scopes,) if scopes else ()))
    models = login.models or tuple(model for scope in scopes for model in scope.models)
    if (models, groups, roles, bounds, record.networks) == (login.models, login.groups, login.roles, login.bounds, login.networks):
        return login
    return login.entitled(models, groups, roles, bounds, record.networks)


def entitle_key(key: Principal, record: PersonRecord) -> Principal:
    """A tenant's key with the tenant's bound; the same object where there is none."""
    bounds = _tenant_bound(record)
    if not bounds and not record.networks:
        return key
    return key.entitled(key.models, key.groups, key.roles, bounds, record.networks)


def entitle_personal(key: KeyRecord, record: PersonRecord) -> Principal | None:
    """A user's own key: at most what the user may do, and what the key says. None when it does not count (any more)."""
    if record.made is None or key.created < record.made:  # nobody inherits the keys of one who had the same name before
        return None
    groups, roles = _union(record.groups, record.login_groups), _union(record.roles, record.login_roles)
    rule = own_keys([rules.own_keys for group in groups if (rules := record.rules.get(group)) is not None and rules.own_keys is not None])
    if rule is None:
        return None
    ends = [key.ends(), (key.created if key.issued is None else key.issued) + rule.life]
    if rule.login_within is not None:
        ends.append((record.last_login or 0.0) + rule.login_within)
    scopes = _scopes(groups, record)
    found = Principal(
        id=key.id,
        tenant=key.tenant,
        kind="api_key",
        models=tuple(model for scope in scopes for model in scope.models),
        priority=key.priority,
        roles=tuple(role for role in roles if role not in WITHHELD or role in key.roles),
        expires=min(end for end in ends if end is not None),
        limits=key.limits,
        user=key.user,
        groups=groups,
        bounds=((Scope(key.models, key.operations),), *_tenant_bound(record), *((scopes,) if scopes else ())),
        personal=True,
    )
    found.networks, found.made = record.networks, key.created
    return found


def _tenant_bound(record: PersonRecord) -> tuple[tuple[Scope, ...], ...]:
    return () if record.models is None or "*" in record.models else ((Scope(record.models),),)


def _scopes(groups: tuple[str, ...], record: PersonRecord) -> tuple[Scope, ...]:
    found = (record.rules.get(group) for group in groups)
    return tuple(Scope(rules.models, rules.operations) for rules in found if rules is not None and rules.models)


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return (*first, *(item for item in second if item not in first)) if second else first
