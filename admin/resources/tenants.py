"""Tenants: the owners of keys, bindings and usage. Those of keys in the configuration file exist without being created."""

from __future__ import annotations

import logging
from collections.abc import Collection as Several
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from admin import problems
from admin.operation import Answer, Call
from admin.permissions import FIELDS
from admin.resource import Collection, Metadata, Shapes, Tenant, shapes_of
from admin.resources.planned_store import TOGETHER, PlannedStore, shared_findings
from admin.resources.suspensions import Suspendable, is_suspended, suspended
from gateway.core.caching import Purge
from gateway.core.errors import NotFound, RequestError
from gateway.core.network import parse
from gateway.core.slices import portions
from gateway.core.storage import Resource

log = logging.getLogger("gatehouse.admin")
OWNED: Final = ("users", "groups", "bindings")
"""Kinds of resources that belong to tenants."""
MANY: Final = 500
"""Tenants that are asked for at once."""
PURGED: Final = 500
"""Tenants whose answers one purge takes away: each purge is noted in the store, for other replicas."""
SHOWN: Final = 10
"""Names in a line of the log."""

Pattern = Annotated[str, Meta(min_length=1, max_length=128)]
Networks = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=256)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=256)]


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """models: patterns of the models that its keys may be allowed to use. networks: where its credentials may be used. cost_centre: who
    pays for it, in reports of usage."""

    name: Tenant
    display_name: Annotated[str, Meta(max_length=256)] = ""
    description: Annotated[str, Meta(max_length=4096)] = ""
    models: Patterns = ("*",)
    cost_centre: Annotated[str, Meta(max_length=128)] = ""
    networks: Networks = ()


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    names = {key["tenant"] for key in config["identity"]["api_keys"]["static"]}
    return [msgspec.to_builtins(TenantSettings(name=name)) for name in sorted(names)]


async def check(call: Call, settings: TenantSettings, before: dict[str, Any] | None) -> None:
    """Setting the models of a tenant needs a permission of its own."""
    if list(settings.models) != (before or {}).get("models", ["*"]):
        call.require(FIELDS["tenants", "models"], settings.name)
    if list(settings.networks) != (before or {}).get("networks", []):
        call.require(FIELDS["tenants", "networks"], settings.name)
        check_networks(call, settings.networks, "networks")


def check_networks(call: Call, entries: Sequence[str], param: str) -> None:
    """Raises RequestError for the first entry that is none, or that names a country where nothing knows countries."""
    for index, entry in enumerate(entries):
        try:
            found = parse(entry)
        except ValueError as error:
            raise RequestError(str(error), param=f"{param}[{index}]") from None
        if found.country and call.ports.config.current()["network"]["countries"] is None:
            raise RequestError("a country needs network.countries in the configuration", param=f"{param}[{index}]")


async def unused(call: Call, name: str) -> None:
    """A tenant can be deleted only after its keys and bindings, or a new one of the same name would inherit roles."""
    if name not in await _owning_nothing(call):
        await _nothing_owned(call, name)
    binding = await call.ports.roles.naming("tenant", name, name)
    if binding is not None:
        raise problems.simple(409, "in_use", f"The binding {binding!r} still names the tenant {name!r}: change it first.")
    body = (await call.store.get("tenants", name)).body
    if body.get("models", ["*"]) != ["*"] or body.get("networks"):  # logins of the tenant, if there are any, would be free of both
        call.require(FIELDS["tenants", "models"], name)


async def _owning_nothing(call: Call) -> Several[str]:
    """Of the tenants that are deleted together, those that nobody needs to ask for one by one."""
    then: PlannedStore | None = call.asked.get(TOGETHER)
    if then is None:
        return ()
    if unused not in then.found:
        free: set[str] = set()
        for some in portions(sorted(name for kind, name in then.gone if kind == "tenants"), MANY):
            pages = [await call.store.list(kind, tenant=some, limit=1) for kind in OWNED]
            if not (any(page.items for page in pages) or (await call.store.list_keys(tenant=some, limit=1)).items):
                free.update(some)
        then.found[unused] = free
    found: set[str] = then.found[unused]
    return found


async def _nothing_owned(call: Call, name: str) -> None:
    keys = await call.store.list_keys(tenant=name, limit=1)
    if keys.items:
        raise problems.simple(409, "in_use", f"The tenant {name!r} still has keys, {keys.items[0].id!r} for one: delete them first.")
    for kind in OWNED:
        left = await call.store.list(kind, tenant=name, limit=1)
        if left.items:
            raise problems.simple(
                409, "in_use", f"The tenant {name!r} still has {kind}, {left.items[0].name!r} for one: delete them first."
            )


class TenantMetadata(Metadata, kw_only=True):
    """suspended: all of its keys and users are refused."""

    suspended: bool


_SHAPES = shapes_of(TenantSettings, TenantMetadata)


class Tenants(Collection[TenantSettings]):
    def shapes(self) -> Shapes:
        return _SHAPES

    async def prepare(self, call: Call, names: Sequence[str]) -> None:
        await suspended(call, "tenant", names)

    def view(self, call: Call, resource: Resource) -> dict[str, Any]:
        return {**super().view(call, resource), "suspended": is_suspended(call, "tenant", resource.name)}

    def file_view(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        return {**super().file_view(call, body), "suspended": is_suspended(call, "tenant", str(body["name"]))}

    async def delete(self, call: Call) -> Answer:
        answer = await super().delete(call)
        if not call.dry_run:
            await purged(call, [call.path["name"]])
        return answer

    async def found(self, call: Call) -> tuple[str, str, dict[str, Any]]:
        """For a suspension: the tenant of the path, of the store or of the file."""
        name = call.path["name"]
        call.target = f"tenants/{name}"
        view = await self._found(call, "tenants:read")
        call.require("tenants:suspend", name)
        return name, name, view


async def purged(call: Call, names: Sequence[str]) -> None:
    """Takes the answers that caches keep for deleted tenants: whoever gets such a name next must not be given them."""
    if call.ports.caches is None:
        return
    for some in portions(names, PURGED):
        _, silent = await call.ports.caches.purge(Purge(tenants=tuple(some)), call.actor)
        if silent:
            shown = ", ".join(some[:SHOWN]) + (f" and {len(some) - SHOWN} others" if len(some) > SHOWN else "")
            log.warning("cached answers of the deleted tenants %s may be left in %s: purge them", shown, ", ".join(silent))


TENANTS = Tenants("tenants", "tenant", TenantSettings, in_file, lambda body: str(body["name"]), check, unused)
SUSPENDABLE = Suspendable("tenant", "tenants", "name", _SHAPES.view, _SHAPES.dry_run, TENANTS.found)


async def tenant_models(call: Call, name: str) -> tuple[str, ...]:
    """The patterns of a tenant. Raises NotFound when there is no such tenant."""
    together = shared_findings(call)
    if together is None:
        return await _tenant_models(call, name)
    if (tenant_models, name) not in together:
        together[tenant_models, name] = await _tenant_models(call, name)
    found: tuple[str, ...] = together[tenant_models, name]
    return found


async def _tenant_models(call: Call, name: str) -> tuple[str, ...]:
    for body in in_file(call.ports.config.current()):
        if body["name"] == name:
            return tuple(body["models"])
    try:
        found = await call.store.get("tenants", name)
    except NotFound:
        raise NotFound(f"There is no tenant {name!r}; create it first.", param="tenant") from None
    return tuple(found.body.get("models", ()))


def operations() -> list[Any]:
    return [*TENANTS.operations(), *SUSPENDABLE.operations()]
