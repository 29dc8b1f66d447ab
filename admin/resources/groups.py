"""Groups: what their members may use, and whether members may make keys of their own.

Members are those to whom the group is assigned here, and those whose login says so: a group of the identity provider needs a resource only
where it is to decide something. `NAME@TENANT` is the name, written as a user's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Collection, Listed, Metadata, Shapes, anew, shapes_for, written
from admin.resources.keys import Operations
from admin.resources.tenants import Patterns, tenant_models
from admin.resources.users import INFERRING, USERS, FullName, check_change, check_rules, check_standing, in_path
from gateway.core.errors import NotFound, RequestError
from gateway.core.people import parts
from gateway.core.specs import Seconds, Timeout
from gateway.core.storage import Resource


class OwnKeysSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """count: active keys of one member. life: the longest life of a secret. login_within: keys are accepted for so long after their
    user's last login; absent: for as long as they live. Of several groups the most generous counts."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 10
    life: Timeout = 90 * 86400.0
    login_within: Seconds | None = None


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """models: patterns of models that members may use, and of no others, whatever their roles say; without any, the group says nothing of
    models. operations: those that they may call on them. own_keys: absent: the group allows no keys of one's own."""

    name: FullName
    description: Annotated[str, Meta(max_length=4096)] = ""
    models: Patterns = ()
    operations: Operations = ()
    own_keys: OwnKeysSettings | None = None


class OwnKeysView(msgspec.Struct, kw_only=True):
    """life, login_within: durations such as `30d`."""

    count: int
    life: str
    login_within: str | None = None


class GroupView(Metadata, kw_only=True):
    name: str
    description: str
    models: list[str]
    operations: list[str]
    own_keys: OwnKeysView | None = None


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """user: NAME@TENANT, of the group's tenant."""

    user: FullName


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ()


def tenant_of(body: dict[str, Any]) -> str:
    return str(body["name"]).rpartition("@")[2]


async def check(call: Call, settings: GroupSettings, before: dict[str, Any] | None) -> None:
    _, tenant = parts(settings.name)
    if settings.operations and not settings.models:
        raise RequestError("operations are those on the group's models: name models, such as '*', too.", param="models")
    try:
        allowed = await tenant_models(call, tenant)
    except NotFound:
        allowed = ("*",)  # a tenant that only logins name
    for index, pattern in enumerate(settings.models):
        if not any(call.ports.matches(outer, pattern) for outer in allowed):
            raise RequestError(f"The tenant {tenant!r} may not have models {pattern!r}.", param=f"models[{index}]")
    after = msgspec.json.decode(msgspec.json.encode(settings))
    if any((after[name] or None) != ((before or {}).get(name) or None) for name in INFERRING):
        call.access.require_inference("What a group says of models, operations and keys of one's own", tenant, "models")


async def unused(call: Call, name: str) -> None:
    """A group can be deleted only after its members and bindings: what it forbids would be allowed, and a new one would inherit them.
    Members by their logins stay, so what it says of models is taken from them."""
    group, tenant = parts(name)
    members = await call.store.members(name, limit=1)
    if members.items:
        raise problems.simple(409, "in_use", f"The group {name!r} still has members, {members.items[0].name!r} for one: remove them first.")
    binding = await call.ports.roles.naming("group", group, tenant)
    if binding is not None:
        raise problems.simple(409, "in_use", f"The binding {binding!r} still names the group {group!r}: change it first.")
    await check_rules(call, name, tenant)


class Groups(Collection[GroupSettings]):
    """Their answers have durations as texts."""

    def shapes(self) -> Shapes:
        return shapes_for("Group", GroupView)


GROUPS = Groups("groups", "group", GroupSettings, in_file, tenant_of, check, unused)


async def members(call: Call) -> Answer:
    """Those to whom it is assigned in the store; whose login says so is known to the login alone."""
    name, query = call.path["name"], call.query
    _, tenant = in_path(call, "group")
    call.seen("groups:read", tenant, "group", name)
    call.require("users:read", tenant)
    _, _, after = (query.cursor or "store:").partition(":")
    page = await call.store.members(name, limit=query.limit, cursor=after or None)
    await USERS.prepare(call, [one.name for one in page.items])
    items = [USERS.view(call, one) for one in page.items]
    return Answer({"items": items, "cursor": None if page.cursor is None else f"store:{page.cursor}"})


async def add_member(call: Call) -> Answer:
    return await _changed(call, True)


async def remove_member(call: Call) -> Answer:
    return await _changed(call, False)


async def _changed(call: Call, member: bool) -> Answer:
    """Gives the group to a user, or takes it; one who has it already (or has not) stays as they are."""
    name, user = call.path["name"], call.body.user
    group, tenant = in_path(call, "group")
    call.target = f"groups/{name}"
    call.seen("groups:read", tenant, "group", name)
    call.require("groups:members", tenant)
    if member:
        await call.store.get("groups", name)
    if parts(user)[1] != tenant:
        raise RequestError(f"The group is the tenant {tenant!r}'s: {user!r} cannot be a member.", param="user")
    made = await anew(lambda: _member(call, group, user, member))
    return written(call, USERS.view(call, made))


async def _member(call: Call, group: str, user: str, member: bool) -> Resource:
    """Raises VersionMismatch where somebody else has changed the user meanwhile."""
    before = await call.store.get("users", user)
    await check_standing(call, user, before.body)
    groups = [one for one in before.body.get("groups", ()) if one != group]
    after = {**before.body, "groups": [*groups, group] if member else groups}
    await check_change(call, user, before.body, after)
    await USERS.prepare(call, [user])
    if (group in before.body.get("groups", ())) is member:
        return before
    made = await call.store.update("users", user, after, actor=call.actor, version=before.version, dry_run=call.dry_run)
    call.diff = values.diff({"members": None if member else user}, {"members": user if member else None})
    return made


def operations() -> list[Operation]:
    users = USERS.shapes()
    one, either = "groups/{name}", (users.view, users.dry_run)
    return [
        *GROUPS.operations(),
        Operation("GET", f"{one}/members", "groups:read", "List the users to whom a group is assigned", members, users.page, query=Listed),
        Operation("POST", f"{one}/add-member", "groups:members", "Give a group to a user", add_member, either, Written, Member, finds=True),
        Operation(
            "POST", f"{one}/remove-member", "groups:members", "Take a group from a user", remove_member, either, Written, Member, finds=True
        ),
    ]
