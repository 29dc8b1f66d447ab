"""Users: people and services that log in. The first login makes one, or an administrator before it.

`NAME@TENANT` is the name; other characters of a NAME than A-Z a-z 0-9 . _ : / @ - are written as %XX (gateway.core.people).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Call, Operation
from admin.permissions import FIELDS, ROLES
from admin.resource import Collection, Metadata, Shapes, Tenant, shapes_of
from admin.resources.rights import require_rights_of
from admin.resources.suspensions import Suspendable, is_suspended, suspended
from gateway.core.errors import NotFound, RequestError
from gateway.core.people import LoginRecord, full_name, parts
from gateway.core.storage import Resource
from gateway.core.types import Principal

FullName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9%][A-Za-z0-9._:/@%-]{0,200}@[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$", max_length=240)]
Bare = Annotated[str, Meta(min_length=1, max_length=256)]
MANY = 32


class UserSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: NAME@TENANT. groups, roles: given here, beside those that the login says."""

    name: FullName
    display_name: Annotated[str, Meta(max_length=256)] = ""
    email: Annotated[str, Meta(max_length=320)] = ""
    description: Annotated[str, Meta(max_length=4096)] = ""
    groups: Annotated[tuple[Bare, ...], Meta(max_length=256)] = ()
    roles: Annotated[tuple[Tenant, ...], Meta(max_length=MANY)] = ()


class UserMetadata(Metadata, kw_only=True):
    """origin: `local` for one that an administrator has made, else the way of the first login. login_groups, login_roles: what the last
    login said."""

    origin: str
    suspended: bool
    first_login: Timestamp | None = None
    last_login: Timestamp | None = None
    login_method: str | None = None
    login_issuer: str | None = None
    login_groups: tuple[str, ...] = ()
    login_roles: tuple[str, ...] = ()


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ()


def in_path(call: Call, singular: str) -> tuple[str, str]:
    """The name and the tenant of the path's resource. Raises NotFound for a text that can be none."""
    try:
        return parts(call.path["name"])
    except RequestError:
        raise NotFound(f"There is no {singular} {call.path['name']!r}.") from None


def tenant_of(body: dict[str, Any]) -> str:
    return str(body["name"]).rpartition("@")[2]


async def check(call: Call, settings: UserSettings, before: dict[str, Any] | None) -> None:
    """Nobody gives or takes roles that they lack, and groups are there."""
    _, tenant = parts(settings.name)
    had = before or {}
    if set(settings.roles) != set(had.get("roles", ())):
        check_roles(call, set(settings.roles) ^ set(had.get("roles", ())), tenant)
    known = set(had.get("groups", ()))
    for index, group in enumerate(settings.groups):
        if group not in known:
            await _check_group(call, group, tenant, f"groups[{index}]")
    if changed := tuple(sorted(known ^ set(settings.groups))):
        await require_rights_of(call, Principal("", tenant, "oidc", groups=changed), Principal("", tenant, "oidc"))
    await check_standing(call, settings.name, had)


def check_roles(call: Call, roles: Iterable[str], tenant: str) -> None:
    """Roles that a user gets or loses."""
    configured = call.ports.config.current()["roles"]
    for role in sorted(roles):
        call.require(FIELDS["users", "roles"], tenant)
        if role in ROLES:
            call.access.require_grant(role, tenant)
        elif role not in configured:
            near = difflib.get_close_matches(role, [*ROLES, *configured], n=1)
            raise RequestError(f"There is no role {role!r}{f'; did you mean {near[0]!r}?' if near else '.'}", param="roles")
        elif any(str(permission).startswith("admin") for permission in configured[role]["permissions"]):
            call.require(FIELDS["users", "roles"])  # for one who may do so everywhere


async def check_standing(call: Call, name: str, body: dict[str, Any]) -> None:
    """Nobody changes, suspends or deletes a user with more rights than their own."""
    login: LoginRecord | None = (await call.store.logins([name])).get(name)
    held = {*body.get("roles", ()), *(() if login is None else login.roles)}
    for role in sorted(held):
        if role in ROLES:
            call.access.require_grant(role, name.rpartition("@")[2])
    user, tenant = parts(name)
    groups = tuple(sorted({*body.get("groups", ()), *(() if login is None else login.groups)}))
    roles = tuple(sorted(held))
    everybody = Principal("", tenant, "oidc")
    await require_rights_of(call, Principal(user, tenant, "oidc", roles=roles, user=user, groups=groups), everybody)


async def _check_group(call: Call, group: str, tenant: str, param: str) -> None:
    id = full_name(group, tenant)
    try:
        await call.store.get("groups", id or "-")
    except NotFound:
        page = await call.store.list("groups", tenant=tenant, limit=1000)
        near = difflib.get_close_matches(group, [parts(one.name)[0] for one in page.items], n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ": create it first."
        raise RequestError(f"The tenant {tenant!r} has no group {group!r}{meant}", param=param) from None


_SHAPES = shapes_of(UserSettings, UserMetadata)


class Users(Collection[UserSettings]):
    def shapes(self) -> Shapes:
        return _SHAPES

    async def prepare(self, call: Call, names: Sequence[str]) -> None:
        await suspended(call, "user")
        call.asked["logins"] = await call.store.logins(names) if names else {}

    def kept(self, call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        return {**body, "source": "local" if before is None else before.get("source", "local")}

    def plain(self, resource: Resource) -> dict[str, Any]:
        """Settings that a first login has left out have their defaults."""
        settings = msgspec.convert({**_without_source(resource.body), "name": resource.name}, UserSettings)
        found: dict[str, Any] = msgspec.to_builtins(settings)
        return found

    def diff(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[dict[str, Any]]:
        return super().diff(*(None if body is None else _without_source(body) for body in (before, after)))

    def view(self, call: Call, resource: Resource) -> dict[str, Any]:
        login: LoginRecord | None = call.asked.get("logins", {}).get(resource.name)
        logins = {
            "first_login": None if login is None else timestamp(login.first),
            "last_login": None if login is None else timestamp(login.last),
            "login_method": None if login is None else login.method,
            "login_issuer": None if login is None else login.issuer,
            "login_groups": [] if login is None else list(login.groups),
            "login_roles": [] if login is None else list(login.roles),
        }
        own = {"origin": resource.body.get("source", "local"), "suspended": is_suspended(call, "user", resource.name)}
        return {**super().view(call, resource), **own, **logins}

    def decided(self, resource: Resource) -> dict[str, Any]:
        return {"name": resource.name, **_without_source(resource.body)}


def _without_source(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "source"}


async def _may_go(call: Call, name: str) -> None:
    await check_standing(call, name, (await call.store.get("users", name)).body)


USERS = Users("users", "user", UserSettings, in_file, tenant_of, check, _may_go)


async def _found(call: Call) -> tuple[str, str, dict[str, Any]]:
    """The user of the path. One who has no record can be suspended too: then the view is what is known."""
    name = call.path["name"]
    call.target = f"users/{name}"
    _, tenant = in_path(call, "user")
    call.seen("users:read", tenant, "user", name)
    call.require("users:suspend", tenant)
    await USERS.prepare(call, [name])
    try:
        resource = await call.store.get("users", name)
    except NotFound:
        resource = Resource("users", name, tenant, 0, {"source": "none"}, 0.0, 0.0, "")
    await check_standing(call, name, resource.body)
    view = USERS.view(call, resource)
    return name, tenant, view if resource.version else {**view, **dict.fromkeys(("version", "created_at", "updated_at", "updated_by"))}


SUSPENDABLE = Suspendable("user", "users", "name", _SHAPES.view, _SHAPES.dry_run, _found)


def operations() -> list[Operation]:
    return [*USERS.operations(), *SUSPENDABLE.operations()]
