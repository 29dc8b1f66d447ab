"""Tenants: the owners of keys, bindings and usage. Those of keys in the configuration file exist without being created."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import problems
from admin.operation import Call
from admin.permissions import FIELDS
from admin.resource import Collection, Tenant
from gateway.core.errors import NotFound

Pattern = Annotated[str, Meta(min_length=1, max_length=128)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=256)]


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """models: patterns of the models that its keys may be allowed to use."""

    name: Tenant
    display_name: Annotated[str, Meta(max_length=256)] = ""
    description: Annotated[str, Meta(max_length=4096)] = ""
    models: Patterns = ("*",)


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    names = {key["tenant"] for key in config["identity"]["api_keys"]["static"]}
    return [msgspec.to_builtins(TenantSettings(name=name)) for name in sorted(names)]


async def check(call: Call, settings: TenantSettings, before: dict[str, Any] | None) -> None:
    """Setting the models of a tenant needs a permission of its own."""
    if list(settings.models) != (before or {}).get("models", ["*"]):
        call.require(FIELDS["tenants", "models"], settings.name)


async def unused(call: Call, name: str) -> None:
    """A tenant can be deleted only after its keys and bindings, or a new one of the same name would inherit roles."""
    keys = await call.store.list_keys(tenant=name, limit=1)
    if keys.items:
        raise problems.simple(409, "in_use", f"The tenant {name!r} still has keys, {keys.items[0].id!r} for one: delete them first.")
    bindings = await call.store.list("bindings", tenant=name, limit=1)
    if bindings.items:
        raise problems.simple(
            409, "in_use", f"The tenant {name!r} still has bindings, {bindings.items[0].name!r} for one: delete them first."
        )


TENANTS = Collection("tenants", "tenant", TenantSettings, in_file, lambda body: str(body["name"]), check, unused)


async def tenant_models(call: Call, name: str) -> tuple[str, ...]:
    """The patterns of a tenant. Raises NotFound when there is no such tenant."""
    for body in in_file(call.ports.config.current()):
        if body["name"] == name:
            return tuple(body["models"])
    try:
        found = await call.store.get("tenants", name)
    except NotFound:
        raise NotFound(f"There is no tenant {name!r}.", param="tenant") from None
    return tuple(found.body.get("models", ()))


def operations() -> list[Any]:
    return TENANTS.operations()
