"""Bindings: who has which role, or is denied what it permits, under which condition; on the data listener and here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems
from admin.operation import Call
from admin.permissions import ROLES
from admin.resource import Collection, Shapes, Tenant, shapes_of
from admin.resources.roles import ROLES_OF_STORE, role_at
from admin.resources.tenants import tenant_models
from gateway.core import bindings
from gateway.core.errors import RequestError
from gateway.core.storage import Resource
from gateway.core.write_set import NO_OTHERS, WriteSet

Subject = Annotated[str, Meta(min_length=3, max_length=512)]
TenantPattern = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:/*-]{1,128}$")]


class BindingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As in the configuration. tenant: of the callers that it applies to, a pattern. principal: short for the subject `principal/ID`."""

    name: Tenant
    role: Tenant
    subjects: Annotated[tuple[Subject, ...], Meta(max_length=1024)] = ()
    effect: Literal["allow", "deny"] = "allow"
    when: Annotated[str, Meta(max_length=4096)] | None = None
    tenant: TenantPattern = bindings.ANY_TENANT
    principal: Tenant | None = None


class BindingView(msgspec.Struct, kw_only=True):
    """A binding, as the API shows it."""

    name: str
    role: str
    subjects: list[str]
    effect: Literal["allow", "deny"] = "allow"
    when: str | None = None
    tenant: str = bindings.ANY_TENANT


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Those of the file; one without a name is called by its place in the list, as in the audit log."""
    listed: list[dict[str, Any]] = config["bindings"]
    return [{**body, "name": body["name"] or str(number)} for number, body in enumerate(listed)]


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """A body in the form of today, with everything that it leaves out."""
    known = bindings.current({name: value for name, value in body.items() if name != "principal" or value is not None})
    if "subjects" in body and body.get("principal") is not None:
        known = {name: value for name, value in body.items() if name != "principal"}
        known["subjects"] = [*body["subjects"], f"principal/{body['principal']}"]
    return {"effect": "allow", "when": None, "tenant": bindings.ANY_TENANT, **known}


class Bindings(Collection[BindingSettings]):
    """Bindings of the store may be of the former form, with a `principal` instead of subjects; they are shown and changed in today's."""

    def shapes(self) -> Shapes:
        return shapes_of(BindingView)

    def plain(self, resource: Resource) -> dict[str, Any]:
        return plain({"name": resource.name, **resource.body})

    def diff(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[dict[str, Any]]:
        return super().diff(None if before is None else plain(before), None if after is None else plain(after))

    def kept(self, call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        return plain(body)

    def needs(self, call: Call, body: dict[str, Any]) -> Sequence[tuple[str, str]]:
        role = str(body["role"])
        return () if role in ROLES or ROLES_OF_STORE.in_force_from_file(call, role) else (("roles", role),)

    async def _writable(self, call: Call, verb: str) -> Resource:
        found = await super()._writable(call, verb)
        return msgspec.structs.replace(found, body=plain({"name": found.name, **found.body}))

    async def examine(
        self,
        call: Call,
        settings: BindingSettings,
        before: dict[str, Any] | None,
        kept: dict[str, Any],
        writes: WriteSet = NO_OTHERS,
    ) -> None:
        """Callers cannot grant what they lack, nor take it from others, nor deny it to them."""
        if settings.name.isdigit():
            raise RequestError("A name of digits alone means a place in the configuration file; write another.", param="name")
        if not kept["subjects"]:
            raise RequestError("A binding needs subjects, such as group/engineers or key/ci.", param="subjects")
        await call.ports.check("bindings", kept, writes)
        for body in (kept,) if before is None else (kept, plain(before)):
            await require_binding(call, body, writes)
        if kept["effect"] == "deny":
            await self._spare_the_caller(call, kept, writes)
        if (tenant := bindings.tenant_of(kept)) and not writes.of("tenants"):
            await tenant_models(call, tenant)  # that there is such a tenant

    async def _spare_the_caller(self, call: Call, body: dict[str, Any], writes: WriteSet) -> None:
        """Who denies a permission of this listener keeps it, so there is always somebody who can take the denial back."""
        if not call.ports.roles.concerns(call.access.principal, body["subjects"], body["tenant"]):
            return
        permitted = await role_at(call, str(body["role"]), writes)
        if permitted is not None and permitted.permissions:
            raise problems.simple(
                409,
                "own_rights",
                "This would deny it to yourself, too, and then you could not take it back: leave yourself out.",
                param="subjects",
            )


async def require_binding(call: Call, body: dict[str, Any], writes: WriteSet = NO_OTHERS) -> None:
    """Raises PermissionDenied unless the caller holds what the binding gives or denies, wherever it does."""
    permitted = await role_at(call, str(body["role"]), writes)
    if permitted is not None:  # a role that is gone grants nothing
        call.access.require_role(permitted, bindings.tenant_of(body) or None)


async def may_take(call: Call, name: str) -> None:
    found = await call.store.get("bindings", name)
    await require_binding(call, plain(found.body))


BINDINGS: Final = Bindings("bindings", "binding", BindingSettings, in_file, bindings.tenant_of, on_delete=may_take)


def operations() -> list[Any]:
    return BINDINGS.operations()
