"""A person's own keys: made, listed, given a new secret and revoked by whoever has logged in, within what their groups allow.

Such a key carries its user: it may never do more than they may at the moment, and ends with them (gateway.identity.people). An API key
cannot make one, so that a stolen key makes no others; nor can an agent that acts for the user, or a token whose scopes are narrower than
the user.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Moment
from admin.operation import Answer, Call, NoQuery, Operation, Written
from admin.permissions import ROLES, RoleName
from admin.resource import Listed, tag, written
from admin.resources.keys import NEW, SHAPES, KeyView, Networks, NewKeyView, Operations, Rotation, plain, shown_once, view
from admin.resources.suspensions import suspended
from admin.resources.tenants import Patterns, check_networks
from gateway.core.errors import NotFound, PermissionDenied, RequestError
from gateway.core.people import OwnKeys, PersonRecord, own_keys
from gateway.core.storage import KeyRecord, KeySettings, Page
from gateway.core.types import Principal
from gateway.core.units import written as duration


class OwnKeyCreation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """models: patterns; without any, all that the user may use. expires: the longest life that the groups allow, if absent. roles: of the
    admin API, of those that the user has."""

    models: Patterns = ("*",)
    operations: Operations = ()
    cidrs: Networks = ()
    expires: Moment | None = None
    roles: Annotated[tuple[RoleName, ...], Meta(max_length=16)] = ()
    description: Annotated[str, Meta(max_length=1024)] = ""


def person(call: Call) -> Principal:
    """The caller. Raises PermissionDenied for whoever is not a person that has logged in."""
    principal = call.access.principal
    if principal.kind == "api_key" or not principal.user:
        raise PermissionDenied("Own keys belong to a user: log in as one; an API key cannot create keys.", code="login_required")
    if principal.agent or principal.reach is not None:
        raise PermissionDenied(
            "This login has less than all rights of its user; log in as the user, without narrowing.", code="login_required"
        )
    return principal


async def allowed(call: Call, principal: Principal) -> OwnKeys:
    """What the caller's groups allow, as the store knows them. Raises PermissionDenied."""
    await call.ports.note_login(principal.tenant, principal.user)
    found: PersonRecord = await call.store.find_person(principal.tenant, principal.user, ())
    groups = {*found.groups, *found.login_groups}
    rules = [rules.own_keys for name, rules in found.rules.items() if name in groups and rules.own_keys is not None]
    rule = own_keys(rules)
    if found.made is None or rule is None:
        raise PermissionDenied("None of your groups allows keys of your own.", code="own_keys_not_allowed")
    return rule


async def index(call: Call) -> Answer:
    principal, query = person(call), call.query
    _, _, after = (query.cursor or "store:").partition(":")
    page: Page[KeyRecord] = await call.store.list_keys(
        tenant=principal.tenant, user=principal.user, prefix=query.prefix, limit=query.limit, cursor=after or None
    )
    await suspended(call, "key", [one.id for one in page.items])
    items = [view(call, one) for one in page.items]
    return Answer({"items": items, "cursor": None if page.cursor is None else f"store:{page.cursor}"})


async def show(call: Call) -> Answer:
    found = view(call, await _mine(call, person(call)))
    return Answer(found, version=tag(found))


async def create(call: Call) -> Answer:
    wanted: OwnKeyCreation = call.body
    call.target = "my/keys"
    principal = person(call)
    rule = await allowed(call, principal)
    check_networks(call, wanted.cidrs, "cidrs")
    for role in wanted.roles:
        if role not in principal.roles:
            raise PermissionDenied(f"You do not have the role {role!r} by yourself.", param="roles")
        if role in ROLES:
            call.access.require_grant(role, principal.tenant)
    settings = KeySettings(
        models=wanted.models,
        operations=wanted.operations,
        cidrs=wanted.cidrs,
        expires=end(call, rule, wanted.expires),
        roles=wanted.roles,
        description=wanted.description,
    )
    record, secret = await call.store.create_own_key(
        principal.tenant, principal.user, settings, actor=call.actor, count=rule.count, dry_run=call.dry_run
    )
    call.target = f"my/keys/{record.id}"
    call.diff = values.diff(None, {"tenant": principal.tenant, "user": principal.user, **plain(settings)})
    return shown_once(call, record, secret)


def end(call: Call, rule: OwnKeys, expires: float | None) -> float:
    """When a secret that is made now ends. Raises RequestError for one that would live longer than it may."""
    now = call.ports.clock.wall()
    if expires is None:
        return now + rule.life
    if expires <= now:
        raise RequestError("This time has passed; give a later one.", param="expires")
    if expires > now + rule.life + 1.0:
        raise RequestError(f"Your groups allow a lifetime of at most {duration(rule.life)}.", param="expires")
    return expires


async def rotate(call: Call) -> Answer:
    """The new secret lives as long as one that is made now."""
    wanted: Rotation = call.body
    principal = person(call)
    before = await _mine(call, principal)
    rule = await allowed(call, principal)
    expires = call.ports.clock.wall() + rule.life
    record, secret = await call.store.rotate_key(
        before.id, actor=call.actor, overlap=wanted.overlap, expires=expires, version=call.expected(), dry_run=call.dry_run
    )
    call.diff = values.diff({"prefix": before.prefix}, {"prefix": record.prefix, "overlap": duration(wanted.overlap)})
    return shown_once(call, record, secret)


async def revoke(call: Call) -> Answer:
    before = await _mine(call, person(call))
    record = await call.store.revoke_key(before.id, actor=call.actor, version=call.expected(), dry_run=call.dry_run)
    call.diff = values.diff({"state": before.state(0.0)}, {"state": record.state(0.0)})
    return written(call, view(call, record))


async def _mine(call: Call, principal: Principal) -> KeyRecord:
    """The key of the path. Somebody else's does not exist."""
    id = call.path["id"]
    call.target = f"my/keys/{id}"
    await suspended(call, "key", [id])
    record = await call.store.get_key(id)
    if (record.tenant, record.user) != (principal.tenant, principal.user):
        raise NotFound(f"There is no key {id!r}.")
    return record


class OwnKeysAllowed(msgspec.Struct):
    """count: active keys. life, login_within: durations such as `90d`."""

    allowed: bool
    count: int = 0
    life: str | None = None
    login_within: str | None = None


async def rules(call: Call) -> Answer:
    """What the caller may."""
    try:
        rule = await allowed(call, person(call))
    except PermissionDenied as error:
        if error.code != "own_keys_not_allowed":
            raise
        return Answer(OwnKeysAllowed(False))
    within = None if rule.login_within is None else duration(rule.login_within)
    return Answer(OwnKeysAllowed(True, rule.count, duration(rule.life), within))


def operations() -> list[Operation]:
    made: Any = (NewKeyView, NEW.dry_run)
    either: Any = (KeyView, SHAPES.dry_run)
    one = "my/keys/{id}"
    return [
        Operation("GET", "my/keys", "own-keys:read", "List your own keys", index, SHAPES.page, query=Listed),
        Operation("GET", "my/key-rules", "own-keys:read", "What your groups allow", rules, OwnKeysAllowed, query=NoQuery),
        Operation("POST", "my/keys", "own-keys:create", "Make a key of your own", create, made, Written, OwnKeyCreation, 201, creates=True),
        Operation("GET", one, "own-keys:read", "Show a key of your own", show, KeyView, query=NoQuery),
        Operation(
            "POST",
            f"{one}/rotate",
            "own-keys:rotate",
            "Give a key of your own a new secret",
            rotate,
            made,
            Written,
            Rotation,
            201,
            conditional=True,
            creates=True,
        ),
        Operation("POST", f"{one}/revoke", "own-keys:revoke", "Refuse a key of your own", revoke, either, Written, conditional=True),
    ]
