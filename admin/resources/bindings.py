"""Bindings: a role for a credential, beside the roles that the credential itself has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from admin.operation import Call
from admin.permissions import ROLES, RoleName
from admin.resource import Collection, Tenant
from admin.resources.tenants import tenant_models


class BindingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """tenant and principal: the credential (its tenant, its id) that gets the role."""

    name: Tenant
    tenant: Tenant
    principal: Tenant
    role: RoleName


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ()


async def check(call: Call, settings: BindingSettings, before: dict[str, Any] | None) -> None:
    """Callers cannot grant what they lack, nor take it from others."""
    call.access.require_grant(settings.role, settings.tenant)
    await tenant_models(call, settings.tenant)  # that there is such a tenant
    if before is not None:
        call.access.require_grant(str(before["role"]), str(before["tenant"]))


async def may_take(call: Call, name: str) -> None:
    before = (await call.store.get("bindings", name)).body
    if before["role"] in ROLES:
        call.access.require_grant(str(before["role"]), str(before["tenant"]))


BINDINGS = Collection("bindings", "binding", BindingSettings, in_file, lambda body: str(body["tenant"]), check, may_take)


def operations() -> list[Any]:
    return BINDINGS.operations()
