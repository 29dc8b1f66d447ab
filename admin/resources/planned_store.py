"""The store as it will be after several writes and deletions that are done together: the checks of each of them read this, not the store.

There may be thousands of each, so a check looks up what it needs and never searches all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from admin.operation import Call
from admin.permissions import Permitted
from admin.ports import ResourceCheck, RoleBook
from admin.resource import Tenants
from gateway.core.errors import NotFound
from gateway.core.people import parts
from gateway.core.storage import ControlStore, KeyRecord, Page, Resource
from gateway.core.write_set import NO_OTHERS, Body, WriteSet

ACCESS: Final = ("tenants", "roles", "models")
"""Kinds to which a role or a binding may refer."""
PAGE: Final = 1000
TOGETHER: Final = "together"
"""The key in `Call.asked` of the PlannedStore, in calls that are checked together with others."""


@dataclass
class PlannedStore:
    """resources: for each kind that is written, all there will be, by name. written: the bodies of new and changed resources. gone: kind
    and name of what is deleted, keys among them."""

    resources: dict[str, dict[str, Resource]]
    written: list[Body] = field(default_factory=list)
    gone: frozenset[tuple[str, str]] = frozenset()
    found: dict[Any, Any] = field(default_factory=dict)
    """What the checks have found out so far and later checks can use."""

    def call(self, call: Call, going: Resource | None = None) -> Call:
        """The call, with ports that answer as they will after the writes. going: the resource whose deletion is checked; it can still be
        read."""
        ports = dataclasses.replace(
            call.ports,
            store=cast(ControlStore, _Store(call.store, self, going)),
            roles=cast(RoleBook, _Roles(call, self)),
            check=_Check(call.ports.check, self),
        )
        return dataclasses.replace(call, ports=ports, asked={TOGETHER: self})

    def write_set(self, kind: str) -> WriteSet:
        """What is written together with a resource of this kind, the resource included."""
        return self.access if kind in ("roles", "bindings") else self.everything

    @cached_property
    def access(self) -> WriteSet:
        return WriteSet([one for one in self.written if one[0] in ACCESS], self.gone)

    @cached_property
    def everything(self) -> WriteSet:
        return WriteSet(self.written, self.gone)

    @cached_property
    def subjects(self) -> dict[str, list[tuple[str, str]]]:
        """The bindings that are written, by subject: (name of the binding, the tenants that it concerns)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, body in self.everything.of("bindings").items():
            for subject in body["subjects"]:
                found.setdefault(subject, []).append((name, body["tenant"]))
        return found

    @cached_property
    def overlooked(self) -> frozenset[str]:
        """Bindings that will be changed or deleted, so that the store's version of them does not count."""
        return frozenset((*self.everything.of("bindings"), *(name for kind, name in self.gone if kind == "bindings")))

    @cached_property
    def owned(self) -> dict[str, dict[str, list[Resource]]]:
        """The resources by kind and tenant, in the order of their names."""
        return {kind: by_tenant(sorted(known.values(), key=lambda one: one.name)) for kind, known in self.resources.items()}

    @cached_property
    def keys_gone(self) -> frozenset[str]:
        return frozenset(id for kind, id in self.gone if kind == "keys")

    @cached_property
    def members(self) -> dict[tuple[str, str], list[Resource]]:
        """Users by the name and the tenant of a group."""
        found: dict[tuple[str, str], list[Resource]] = {}
        for one in self.resources.get("users", {}).values():
            for group in one.body.get("groups", ()):
                found.setdefault((group, one.tenant), []).append(one)
        return found


def shared_findings(call: Call) -> dict[Any, Any] | None:
    """What earlier checks of the same write have found out, for this one to read and add to; None for a check that stands alone."""
    then: PlannedStore | None = call.asked.get(TOGETHER)
    return None if then is None else then.found


def by_tenant(listed: Iterable[Resource]) -> dict[str, list[Resource]]:
    found: dict[str, list[Resource]] = {}
    for one in listed:
        found.setdefault(one.tenant, []).append(one)
    return found


def of_tenants(owned: Mapping[str, Sequence[Resource]], tenants: Tenants) -> list[Resource]:
    """Those of one tenant, of several, or (None) of all."""
    if isinstance(tenants, str):
        return list(owned.get(tenants, ()))
    return [one for tenant in (owned if tenants is None else tenants) for one in owned.get(tenant, ())]


class _Store:
    """A ControlStore that reads what will be. Lists are one page."""

    def __init__(self, now: ControlStore, then: PlannedStore, going: Resource | None) -> None:
        self._now, self._then, self._going = now, then, going

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    async def get(self, kind: str, name: str) -> Resource:
        known = self._then.resources.get(kind)
        if known is None:
            return await self._now.get(kind, name)
        if self._going is not None and (kind, name) == (self._going.kind, self._going.name):
            return self._going
        if name not in known:
            raise NotFound(f"There is no {kind.removesuffix('s')} {name!r}.")
        return known[name]

    async def list(
        self, kind: str, *, tenant: Tenants = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[Resource]:
        known = self._then.resources.get(kind)
        if known is None:
            return await self._now.list(kind, tenant=tenant, prefix=prefix, limit=limit, cursor=cursor)
        found = [one for one in of_tenants(self._then.owned[kind], tenant) if one.name.startswith(prefix)]
        return Page(tuple(found if isinstance(tenant, str) else sorted(found, key=lambda one: one.name)))

    async def list_keys(self, *, tenant: Tenants = None, **others: Any) -> Page[KeyRecord]:
        """Some of those that are left, if there are any. Keys that have ended may be very many: they are not read with the rest."""
        gone = self._then.keys_gone
        if not gone:
            return await self._now.list_keys(tenant=tenant, **others)
        cursor: str | None = None
        while True:
            page = await self._now.list_keys(tenant=tenant, **{**others, "limit": PAGE, "cursor": cursor})
            left = tuple(key for key in page.items if key.id not in gone)
            if left or page.cursor is None:
                return Page(left)
            cursor = page.cursor

    async def members(self, group: str, *, limit: int = 100, cursor: str | None = None) -> Page[Resource]:
        if "users" not in self._then.resources:
            return await self._now.members(group, limit=limit, cursor=cursor)
        return Page(tuple(self._then.members.get(parts(group), ())))


class _Roles:
    """A RoleBook that knows the roles and bindings there will be. What callers hold is what they hold now."""

    def __init__(self, call: Call, then: PlannedStore) -> None:
        self._now, self._matches, self._then = call.ports.roles, call.ports.matches, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    async def permitted(self, role: str) -> Permitted | None:
        if (body := self._then.everything.of("roles").get(role)) is not None:
            return self._now.meaning(role, body["permissions"], body["confined"])
        return None if ("roles", role) in self._then.gone else await self._now.permitted(role)

    async def naming(self, kind: str, name: str, tenant: str, without: Collection[str] = ()) -> str | None:
        for binding, tenants in self._then.subjects.get(f"{kind}/{name}", ()):
            if self._matches(tenants, tenant):
                return binding
        overlooked = self._then.overlooked
        return await self._now.naming(kind, name, tenant, overlooked.union(without) if without else overlooked)


class _Check:
    """Checks a resource together with all that is written and deleted with it."""

    def __init__(self, now: ResourceCheck, then: PlannedStore) -> None:
        self._now, self._then = now, then

    async def __call__(self, kind: str, body: dict[str, Any], writes: WriteSet = NO_OTHERS) -> None:
        await self._now(kind, body, self._then.write_set(kind) if writes is NO_OTHERS else writes)
