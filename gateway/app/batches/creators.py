"""Who made a batch, as it stands now: looked up again for each of its lines, from the same sources as at a login.

A key of the store or of the configuration has exactly the rights that it has at that moment; when it has ended, so have its batches,
whoever has its id by then. Of somebody who logged in otherwise, the groups and roles of the login are those of the moment when the batch
was made, and what the store adds and takes away is that of now; a token that is revoked ends its batches, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.batches import Creator
from gateway.core.clock import Clock
from gateway.core.errors import NotFound, PermissionDenied, StoreUnavailable
from gateway.core.network import Networks
from gateway.core.snapshot import Snapshot
from gateway.core.storage import KeyRecord
from gateway.core.types import Principal
from gateway.identity.api_key import static_principal
from gateway.identity.people import People, Rights, entitle_key, entitle_login, entitle_personal
from gateway.identity.revocations import Revocations
from gateway.identity.stored import principal_of

KINDS: Final = ("oidc", "ldap", "local_user", "mtls")
"""Logins besides API keys that may make a batch. A token of the gateway's own is short-lived and may be withdrawn one by one."""
KEPT_SECONDS: Final = 5.0
MOST: Final = 1024
TRIES: Final = 5
COMPARED: Final = (
    *("agent", "bounds", "expires", "groups", "id", "kind", "limits", "made", "models", "networks", "operations", "personal", "priority"),
    *("reach", "roles", "scopes", "session", "tenant", "user"),
)
"""Attributes of a Principal that make it another one. By name: the compiled class has no list of them."""


class _Known:
    __slots__ = ("principal", "rights", "snapshot", "until")

    def __init__(self, principal: Principal, rights: Rights | None, snapshot: Snapshot, until: float) -> None:
        self.principal, self.rights, self.snapshot, self.until = principal, rights, snapshot, until


class Creators:
    """The creators of batches, in the process that runs the lines. key: finds a key of the store by its id; raises NotFound. current: the
    Snapshot in force."""

    def __init__(
        self,
        key: Callable[[str], Awaitable[KeyRecord]],
        people: People,
        current: Callable[[], Snapshot],
        networks: Networks,
        clock: Clock,
        revocations: Revocations,
    ) -> None:
        self._key, self._people, self._current, self._networks, self._clock = key, people, current, networks, clock
        self._revocations = revocations
        self._known: dict[Creator, _Known] = {}

    def forget(self) -> None:
        """A key or a caller's rights have changed, or may have."""
        self._known.clear()

    async def of(self, creator: Creator) -> Principal:
        """The creator as a caller with priority `batch`. The same object while nothing has changed, so that remembered decisions apply.
        Raises PermissionDenied where the credential has ended; StoreUnavailable, Overloaded."""
        revoked = self._revocations
        if revoked.active and any(revoked.refuses(*one) for one in creator.tokens()):
            raise ended()
        now, known, snapshot = self._clock.monotonic(), self._known.get(creator), self._current()
        if known is None or now >= known.until or known.snapshot is not snapshot or (known.rights is not None and not known.rights.valid):
            principal, rights = await self._found(creator, snapshot)
            self._admit(principal, creator.address, snapshot)
            principal.priority = "batch"
            if known is not None and _same(known.principal, principal):
                principal = known.principal
            if len(self._known) >= MOST:
                self._known.clear()
            known = self._known[creator] = _Known(principal, rights, snapshot, now + KEPT_SECONDS)
        expires = known.principal.expires
        if expires is not None and expires <= self._clock.wall():
            raise ended()
        return known.principal

    async def _found(self, creator: Creator, snapshot: Snapshot) -> tuple[Principal, Rights | None]:
        if creator.kind != "api_key":
            login = _login(creator)
            rights = await self._rights(creator.tenant, creator.user, creator.groups)
            entitled = entitle_login(login, rights.record)
            return (_login(creator) if entitled is login else entitled), rights
        if not creator.made:
            for spec in snapshot.spec.identity.api_keys.static:
                if spec.id == creator.id and spec.tenant == creator.tenant:
                    return static_principal(spec), None
        try:
            record = await self._key(creator.id)
        except NotFound:
            raise ended() from None
        if not creator.made_with(record):
            raise ended()
        if not self._admits(record.cidrs, creator.address):
            raise PermissionDenied("The key that made the batch may not be used from where it was made.", code="creator_stopped")
        rights = await self._rights(record.tenant, record.user, ())
        found = entitle_personal(record, rights.record) if record.user else entitle_key(principal_of(record), rights.record)
        if found is None:
            raise ended()
        return found, rights

    def _admit(self, principal: Principal, address: str, snapshot: Snapshot) -> None:
        """As gateway.identity.networked does for a login. Raises PermissionDenied."""
        given = snapshot.spec.network.tenants.get(principal.tenant, ())
        if not self._admits(principal.networks, address) or not self._admits(given, address):
            raise PermissionDenied("The tenant may not be used from where the batch was made.", code="creator_stopped")

    def _admits(self, networks: tuple[str, ...], address: str) -> bool:
        rules = self._networks.rules(networks)
        return rules is None or rules.admits(address)

    async def _rights(self, tenant: str, user: str, groups: tuple[str, ...]) -> Rights:
        for _ in range(TRIES):
            found = self._people.rights((tenant, user, groups))
            rights = found if isinstance(found, Rights) else await found
            if rights.valid:
                return rights
        raise StoreUnavailable("What is known of the caller changes too often.", retry_after=1.0)


def _login(creator: Creator) -> Principal:
    return Principal(
        creator.id,
        creator.tenant,
        creator.kind,
        creator.models,
        roles=creator.roles,
        operations=creator.operations,
        limits=creator.limits,
        user=creator.user,
        groups=creator.groups,
        scopes=creator.scopes,
        agent=creator.agent,
        session=creator.session,
        reach=creator.reach,
    )


def _same(one: Principal, other: Principal) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in COMPARED)


def ended() -> PermissionDenied:
    return PermissionDenied("The credential that made the batch has ended.", code="creator_stopped")
