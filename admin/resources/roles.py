"""Roles: the built-in ones of this listener, those of the configuration file, and those of the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems
from admin.moments import Timestamp
from admin.operation import Answer, Call
from admin.permissions import ROLES, Permitted
from admin.resource import Collection, Shapes, Tenant, listing, shapes_for
from gateway.core.errors import ConfigError, RequestError
from gateway.core.storage import Page, Resource
from gateway.core.write_set import NO_OTHERS, WriteSet

Text = Annotated[str, Meta(min_length=1, max_length=512)]


class RoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As in the configuration."""

    name: Tenant
    permissions: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1024)]
    description: Annotated[str, Meta(max_length=4096)] = ""
    confined: bool = True


class RoleView(msgspec.Struct, kw_only=True):
    """confined: what belongs to a tenant is reached in its holder's own only. Those of the store have a version and times."""

    name: str
    description: str
    permissions: list[str]
    confined: bool
    source: Literal["built-in", "file", "store"]
    version: int | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    updated_by: str | None = None


def _built_in() -> list[dict[str, Any]]:
    return [
        {"name": role.name, "description": role.description, "permissions": sorted(role.permissions), "confined": role.confined}
        for role in ROLES.values()
    ]


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return [*_built_in(), *({"name": name, **role} for name, role in config["roles"].items())]


class Roles(Collection[RoleSettings]):
    """The same for all tenants: who may read roles, reads all of them."""

    def shapes(self) -> Shapes:
        return shapes_for("Role", RoleView)

    async def pages(self, call: Call) -> Answer:
        async def stored(limit: int, cursor: str | None) -> Page[Resource]:
            return await call.store.list(self.kind, prefix=call.query.prefix, limit=limit, cursor=cursor)

        async def from_file(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [self.file_view(call, body) for body in found]

        mine = self._in_file(call)
        return await listing(call, call.query, mine, stored, lambda found: self.view(call, found), file_views=from_file)

    def file_view(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        return {**super().file_view(call, body), "source": "built-in" if body["name"] in ROLES else "file"}

    async def examine(
        self,
        call: Call,
        settings: RoleSettings,
        before: dict[str, Any] | None,
        kept: dict[str, Any],
        writes: WriteSet = NO_OTHERS,
    ) -> None:
        """Raises PermissionDenied unless the caller holds everything that the role permits, before and after the change."""
        await call.ports.check("roles", kept, writes)
        for body in (kept,) if before is None else (kept, before):
            require_role(call, body)
        if before is not None and settings.name in await call.ports.roles.denied_by(call.access.principal):
            raise problems.simple(
                409, "own_rights", "This role is denied to yourself, so you could not take the change back.", param="name"
            )

    def _refuse_file(self, call: Call, name: str) -> None:
        if name in ROLES:
            raise problems.simple(409, "read_only", f"The role {name!r} is built in; give yours another name.", param="name")
        super()._refuse_file(call, name)


def require_role(call: Call, body: dict[str, Any]) -> None:
    """Raises PermissionDenied unless the caller holds all that a role of the store permits, in every tenant."""
    try:
        permitted = call.ports.roles.meaning(str(body.get("name", "")), body["permissions"], bool(body.get("confined", True)))
    except ConfigError:
        return  # one that this version cannot use permits nothing
    call.access.require_role(permitted, None)


async def role_at(call: Call, name: str, writes: WriteSet = NO_OTHERS) -> Permitted | None:
    """What a role permits once the other resources of the same write are stored."""
    body = writes.of("roles").get(name)
    if body is None:
        return await call.ports.roles.permitted(name)
    try:
        return call.ports.roles.meaning(name, body["permissions"], body["confined"])
    except ConfigError as error:
        raise RequestError(error.message, param="role") from None


async def may_take(call: Call, name: str) -> None:
    found = await call.store.get("roles", name)
    require_role(call, {"name": name, **found.body})


ROLES_OF_STORE: Final = Roles("roles", "role", RoleSettings, in_file, lambda body: "", on_delete=may_take)


def operations() -> list[Any]:
    return ROLES_OF_STORE.operations()
