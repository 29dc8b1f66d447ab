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
from admin.resources.rights import require_rights_between
from admin.resources.suspensions import Suspendable, is_suspended, suspended
from gateway.core.errors import NotFound, RequestError
from gateway.core.people import LoginRecord, full_name, parts
from gateway.core.storage import Resource
from gateway.core.types import Principal

FullName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9%][A-Za-z0-9._:/@%-]{0,200}@[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$", max_length=240)]
Bare = Annotated[str, Meta(min_length=1, max_length=256)]
MANY = 32
_GIVEN = "roles given"
INFERRING = ("models", "operations", "own_keys")
"""What of a group's settings decides about its members' inference."""


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
    """Nobody gives or takes groups and roles with what they lack, and both are there."""
    _, tenant = parts(settings.name)
    had = before or {}
    if set(settings.roles) != set(had.get("roles", ())):
        call.require(FIELDS["users", "roles"], tenant)
        call.asked[_GIVEN] = sorted(set(settings.roles) - set(had.get("roles", ())))
        await _check_roles(call, call.asked[_GIVEN])
    known = set(had.get("groups", ()))
    for index, group in enumerate(settings.groups):
        if group not in known:
            await _check_group(call, group, tenant, f"groups[{index}]")
    await check_change(call, settings.name, had, msgspec.to_builtins(settings))
    await check_standing(call, settings.name, had)


async def _check_roles(call: Call, roles: Iterable[str]) -> None:
    """Raises RequestError for a role that is nowhere."""
    for role in roles:
        if role not in ROLES and await call.ports.roles.permitted(role) is None:
            configured = call.ports.config.current()["roles"]
            near = difflib.get_close_matches(role, [*ROLES, *configured], n=1)
            raise RequestError(f"There is no role {role!r}{f'; did you mean {near[0]!r}?' if near else '.'}", param="roles")


async def check_change(call: Call, name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Nobody gives or takes with a group or role what they lack: on this listener, or of inference, as what a group says of models is.

    before, after: the user's body."""
    user, tenant = parts(name)
    changed = set(before.get("groups", ())) ^ set(after.get("groups", ()))
    if not changed and set(before.get("roles", ())) == set(after.get("roles", ())):
        return
    login: LoginRecord | None = (await call.store.logins([name])).get(name)
    one, other = (_as_caller(user, tenant, body, login) for body in (before, after))
    await require_rights_between(call, one, other, inference=True)
    for group in sorted(changed):
        await check_rules(call, full_name(group, tenant), tenant)


async def check_rules(call: Call, group: str, tenant: str) -> None:
    """Who gives or takes what a group says of models, or that its members may make keys, may let callers of its tenant infer. Raises
    PermissionDenied. group: the full name; one that is not there says nothing."""
    try:
        found = await call.store.get("groups", group or "-")
    except NotFound:
        return
    if any(found.body.get(name) for name in INFERRING):
        call.access.require_inference(
            f"The group {group!r} decides which models its members may use, or that they may make keys; that", tenant, "groups"
        )


def _as_caller(user: str, tenant: str, body: dict[str, Any], login: LoginRecord | None) -> Principal:
    """The user with what this body and the last login say."""
    groups = {*body.get("groups", ()), *(() if login is None else login.groups)}
    roles = {*body.get("roles", ()), *(() if login is None else login.roles)}
    return Principal(user, tenant, "oidc", roles=tuple(sorted(roles)), user=user, groups=tuple(sorted(groups)))


async def check_standing(call: Call, name: str, body: dict[str, Any]) -> None:
    """Nobody changes, suspends or deletes a user with more rights than their own."""
    login: LoginRecord | None = (await call.store.logins([name])).get(name)
    user, tenant = parts(name)
    await require_rights_between(call, _as_caller(user, tenant, body, login), Principal("", tenant, "oidc"))


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
        await suspended(call, "user", names)
        call.asked["logins"] = await call.store.logins(names) if names else {}

    def kept(self, call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        return {**body, "source": "local" if before is None else before.get("source", "local")}

    def needs(self, call: Call, body: dict[str, Any]) -> Sequence[tuple[str, str]]:
        """Roles of the store that are given: one that is being deleted cannot be given at the same time."""
        configured = call.ports.config.current()["roles"]
        return [("roles", role) for role in call.asked.get(_GIVEN, ()) if role not in ROLES and role not in configured]

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
    """A user's groups and roles go with the user, who may log in again without what they forbid."""
    body = (await call.store.get("users", name)).body
    await check_standing(call, name, body)
    await check_change(call, name, body, {})


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
