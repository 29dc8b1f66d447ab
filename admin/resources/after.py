"""The store as it will be once several writes and deletions are done together: what a check of one of them has to look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from admin.context import ResourceCheck, RoleBook
from admin.operation import Call
from admin.permissions import Permitted
from admin.resource import Tenants, within
from gateway.core.errors import NotFound
from gateway.core.people import parts
from gateway.core.storage import ControlStore, KeyRecord, Page, Resource

Body = tuple[str, dict[str, Any]]
ACCESS: Final = ("tenants", "roles", "models")
"""Kinds that a role or a binding may name."""


@dataclass
class Afterwards:
    """resources: of the kinds that are written, all there will be, by name. keys: the same; None: no key is written. written: the bodies of
    the new and the changed ones. gone: kind and name of what is deleted."""

    resources: dict[str, dict[str, Resource]]
    keys: Mapping[str, KeyRecord] | None = None
    written: list[Body] = field(default_factory=list)
    gone: list[tuple[str, str]] = field(default_factory=list)

    def call(self, call: Call, going: Resource | None = None) -> Call:
        """The call, with ports that answer as they will then. going: the one whose deletion is looked at; it can still be read."""
        ports = dataclasses.replace(
            call.ports,
            store=cast(ControlStore, _Store(call.store, self, going)),
            roles=cast(RoleBook, _Roles(call, self)),
            check=_Check(call.ports.check, self),
        )
        return dataclasses.replace(call, ports=ports, asked={})

    def beside(self, kind: str) -> list[Body]:
        """What is written with a resource of this kind, itself included."""
        return self.access if kind in ("roles", "bindings") else self.written

    @cached_property
    def access(self) -> list[Body]:
        return [one for one in self.written if one[0] in ACCESS]

    @cached_property
    def bodies(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The roles and bindings among what is written, by kind and name."""
        found: dict[str, dict[str, dict[str, Any]]] = {"roles": {}, "bindings": {}}
        for kind, body in self.written:
            if kind in found:
                found[kind][str(body["name"])] = body
        return found

    @cached_property
    def overlooked(self) -> frozenset[str]:
        """Bindings that are no longer as they are now."""
        return frozenset((*self.bodies["bindings"], *(name for kind, name in self.gone if kind == "bindings")))


class _Store:
    """A ControlStore that reads what will be. Lists are one page."""

    def __init__(self, now: ControlStore, then: Afterwards, going: Resource | None) -> None:
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
            raise NotFound(f"There is no {name!r} among the {kind}.")
        return known[name]

    async def list(
        self, kind: str, *, tenant: Tenants = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[Resource]:
        known = self._then.resources.get(kind)
        if known is None:
            return await self._now.list(kind, tenant=tenant, prefix=prefix, limit=limit, cursor=cursor)
        found = [one for name, one in known.items() if name.startswith(prefix) and within(one.tenant, tenant)]
        return Page(tuple(sorted(found, key=lambda one: one.name)))

    async def list_keys(self, *, tenant: Tenants = None, **others: Any) -> Page[KeyRecord]:
        if self._then.keys is None:
            return await self._now.list_keys(tenant=tenant, **others)
        return Page(tuple(key for key in self._then.keys.values() if within(key.tenant, tenant)))

    async def members(self, group: str, *, limit: int = 100, cursor: str | None = None) -> Page[Resource]:
        known = self._then.resources.get("users")
        if known is None:
            return await self._now.members(group, limit=limit, cursor=cursor)
        name, tenant = parts(group)
        return Page(tuple(one for one in known.values() if one.tenant == tenant and name in one.body.get("groups", ())))


class _Roles:
    """A RoleBook that knows the roles and bindings there will be. What callers hold is what they hold now."""

    def __init__(self, call: Call, then: Afterwards) -> None:
        self._now, self._matches, self._then = call.ports.roles, call.ports.matches, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    async def permitted(self, role: str) -> Permitted | None:
        if (body := self._then.bodies["roles"].get(role)) is not None:
            return self._now.meaning(role, body["permissions"], body["confined"])
        return None if ("roles", role) in self._then.gone else await self._now.permitted(role)

    async def naming(self, kind: str, name: str, tenant: str, without: Collection[str] = ()) -> str | None:
        for binding, body in self._then.bodies["bindings"].items():
            if f"{kind}/{name}" in body["subjects"] and self._matches(body["tenant"], tenant):
                return binding
        return await self._now.naming(kind, name, tenant, self._then.overlooked.union(without))


class _Check:
    """Checks a resource together with all that is written and deleted with it."""

    def __init__(self, now: ResourceCheck, then: Afterwards) -> None:
        self._now, self._then = now, then

    async def __call__(self, kind: str, body: dict[str, Any], beside: Sequence[Body] = (), without: Sequence[tuple[str, str]] = ()) -> None:
        await self._now(kind, body, beside or self._then.beside(kind), self._then.gone)
