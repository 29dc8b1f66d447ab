"""The caller behind an API key's id, and whether the key would be accepted: for operators' questions, without the key itself."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.clock import Clock
from gateway.core.network import Networks
from gateway.core.snapshot import Snapshot
from gateway.core.standing import Standing
from gateway.core.storage import ControlStore, KeyRecord
from gateway.core.types import Principal
from gateway.identity.people import entitle_key, entitle_login, entitle_personal
from gateway.identity.stored import principal_of


class KeyHolders:
    """current: the Snapshot in force."""

    def __init__(self, store: ControlStore, standing: Standing, networks: Networks, current: Callable[[], Snapshot], clock: Clock) -> None:
        self._store, self._standing, self._networks, self._current, self._clock = store, standing, networks, current, clock

    async def stored(self, key: KeyRecord, source: str = "") -> tuple[Principal, str]:
        """As `of` of a key of the store. A user's own key has the user's groups, roles and bounds as they are now."""
        person = await self._store.find_person(key.tenant, key.user, ())
        found = entitle_personal(key, person) if key.user else entitle_key(principal_of(key), person)
        now = self._clock.wall()
        if (state := key.state(now)) != "active":
            return found or principal_of(key), state
        if found is None:
            return principal_of(key), f"not valid: no group of {key.user!r} allows own keys, or the user was deleted since"
        if found.expires is not None and found.expires <= now:
            return found, "expired: its life is over, or its user has not logged in for too long"
        return found, self._refusal(found, key.cidrs, source)

    async def of(self, caller: Principal, source: str = "") -> tuple[Principal, str]:
        """With what the store says of a caller whom the configuration names; and why they would be refused ("" if they would not).
        source: the address that the request comes from; "": any."""
        person = await self._store.find_person(caller.tenant, caller.user, caller.groups)
        found = entitle_login(caller, person)
        return found, self._refusal(found, (), source)

    def _refusal(self, found: Principal, cidrs: tuple[str, ...], source: str) -> str:
        if (stop := self._standing.of(found)) is not None:
            return stop.code
        own = self._current().spec.network.tenants.get(found.tenant, ())
        for who, entries in (("key", cidrs), ("tenant", found.networks), ("tenant", own)):
            rules = self._networks.rules(entries)
            if source and rules is not None and not rules.admits(source):
                return f"not valid from {source}: the {who}'s networks"
        return ""
