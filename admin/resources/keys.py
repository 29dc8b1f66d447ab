"""API keys: made, rotated with an overlap, revoked. The secret is shown once, in the answer that made it, and kept nowhere."""

from __future__ import annotations

from secrets import token_hex
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Moment, Timestamp, shown, timestamp
from admin.operation import JSON, Answer, Call, NoQuery, Operation, Written
from admin.permissions import FIELDS, ROLES, RoleName
from admin.resource import (
    MERGE_PATCH,
    METADATA,
    Listed,
    Metadata,
    Tenant,
    Tenants,
    anew,
    listing,
    location,
    patch_of,
    read_only,
    scope,
    shapes_for,
    tag,
    within,
)
from admin.resources.rights import require_rights_of
from admin.resources.suspensions import Suspendable, is_suspended, suspended
from admin.resources.tenants import Patterns, check_networks, tenant_models
from gateway.core.errors import NotFound, PermissionDenied, RequestError
from gateway.core.secret import Secret
from gateway.core.specs import Overlap
from gateway.core.storage import OVERLAP_SECONDS, KeyRecord, KeySettings, Page
from gateway.core.types import Principal, Priority
from gateway.core.units import written

State = Literal["active", "rotated", "expired", "revoked"]
Operations = tuple[
    Literal[
        "chat",
        "completions",
        "embeddings",
        "rerank",
        "score",
        "classify",
        "moderations",
        "images",
        "speech",
        "transcriptions",
        "translations",
        "tokenize",
        "infer",
    ],
    ...,
]
Names = Annotated[tuple[Tenant, ...], Meta(max_length=64)]
Networks = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=256)]


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be decided about a key. cidrs: networks it may be used from."""

    models: Patterns = ()
    operations: Operations = ()
    cidrs: Networks = ()
    expires: Moment | None = None
    limits: Names = ()
    roles: Annotated[tuple[RoleName, ...], Meta(max_length=16)] = ()
    priority: Priority = "standard"
    description: Annotated[str, Meta(max_length=4096)] = ""

    def settings(self) -> KeySettings:
        return KeySettings(**{name: getattr(self, name) for name in KeySettings.__struct_fields__})


class KeyCreation(KeyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """id: a name for the key; one is made up otherwise."""

    tenant: Tenant
    id: Tenant | None = None


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """overlap: seconds for which the old secret is accepted beside the new one; 0 ends it at once."""

    overlap: Overlap = OVERLAP_SECONDS


class KeyQuery(Listed, forbid_unknown_fields=True, kw_only=True):
    """prefix: of the id. user: whose own keys, by the name without the tenant."""

    state: State | None = None
    user: Annotated[str, Meta(max_length=256)] | None = None


class KeyView(Metadata, kw_only=True):
    """prefix: the secret's beginning, to recognise it by. overlap_until: until when the secret before is accepted, after a rotation.
    rotated_to: the key that replaced this one, in earlier versions. last_used: up to a minute late. user: whose own key it is. groups: of a
    key of the configuration file."""

    id: str
    tenant: str
    user: str
    groups: list[str]
    state: State
    suspended: bool
    prefix: str
    models: list[str]
    operations: list[str]
    cidrs: list[str]
    limits: list[str]
    roles: list[str]
    priority: Priority
    description: str
    expires: Timestamp | None = None
    rotated_to: str | None = None
    overlap_until: Timestamp | None = None
    revoked: Timestamp | None = None
    last_used: Timestamp | None = None


class NewKeyView(KeyView, kw_only=True):
    """secret: the key itself, this once; null when the answer is a repeated one. warnings: why it may not do what was meant."""

    secret: str | None
    warnings: list[str]


_TIMES: Final = ("created_at", "updated_at", "expires", "overlap_until", "revoked", "last_used")
SHAPES, NEW = shapes_for("Key", KeyView), shapes_for("NewKey", NewKeyView)


def view(call: Call, record: KeyRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    for theirs, ours in (("created", "created_at"), ("updated", "updated_at"), ("actor", "updated_by")):
        found[ours] = found.pop(theirs)
    del found["issued"]
    state = {"state": record.state(call.ports.clock.wall()), "suspended": is_suspended(call, "key", record.id)}
    return {**shown(found, *_TIMES), **state, "groups": [], "source": "store"}


def in_file(call: Call) -> list[dict[str, Any]]:
    """The keys of the configuration, as they are shown."""
    static = call.ports.config.current()["identity"]["api_keys"]["static"]
    return sorted((_file_view(call, key) for key in static), key=lambda key: str(key["id"]))


def _file_view(call: Call, key: dict[str, Any]) -> dict[str, Any]:
    absent = dict.fromkeys((*METADATA, "expires", "rotated_to", "overlap_until", "revoked", "last_used"))
    kept = {name: key[name] for name in ("id", "tenant", "user", "groups", "models", "roles", "priority")}
    rest: dict[str, Any] = {"operations": [], "cidrs": [], "limits": [], "prefix": "", "description": "", "state": "active"}
    return {**absent, **kept, **rest, "suspended": is_suspended(call, "key", key["id"]), "source": "file"}


# --- reading


async def index(call: Call) -> Answer:
    query: KeyQuery = call.query
    tenants: Tenants = scope(call, "keys:read", query.tenant)

    async def stored(limit: int, cursor: str | None) -> Page[KeyRecord]:
        page = await call.store.list_keys(
            tenant=tenants, prefix=query.prefix, state=query.state, user=query.user, limit=limit, cursor=cursor
        )
        await suspended(call, "key", [record.id for record in page.items])
        return page

    async def from_file(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        await suspended(call, "key", [str(key["id"]) for key in found])
        return [{**key, "suspended": is_suspended(call, "key", key["id"])} for key in found]

    here = query.state in (None, "active") and query.user is None
    mine = [key for key in in_file(call) if within(key["tenant"], tenants) and here]
    return await listing(call, query, mine, stored, lambda record: view(call, record), "id", from_file)


async def show(call: Call) -> Answer:
    id = call.path["id"]
    await suspended(call, "key", [id])
    for key in in_file(call):
        if key["id"] == id:
            call.seen("keys:read", key["tenant"], "key", id)
            return Answer(key)
    found = view(call, await _stored(call, "read"))
    return Answer(found, version=tag(found))


async def _stored(call: Call, verb: str) -> KeyRecord:
    """The key of the path. Raises NotFound where the caller may not see it, PermissionDenied where they may not do this to it,
    as to a key with more rights than their own."""
    id = call.path["id"]
    call.target = f"keys/{id}"
    await suspended(call, "key", [id])
    if verb != "read" and any(key["id"] == id for key in in_file(call)):
        raise read_only("key", id)
    if call.ports.store is None:
        raise NotFound(f"There is no key {id!r}.")
    record = await call.store.get_key(id)
    call.seen("keys:read", record.tenant, "key", id)
    call.require(f"keys:{verb}", record.tenant)
    if verb != "read":
        await check_standing(call, record)
    return record


async def check_standing(call: Call, record: KeyRecord) -> None:
    """Nobody changes, suspends or ends a key with more rights than their own."""
    await check_roles(call, record.roles, record.tenant)
    await check_bindings(call, record.id, record.tenant)


# --- writing


async def create(call: Call) -> Answer:
    wanted: KeyCreation = call.body
    call.target = f"keys/{wanted.id}" if wanted.id else "keys"
    call.require("keys:create", wanted.tenant)
    if wanted.id is not None and any(key["id"] == wanted.id for key in in_file(call)):
        raise read_only("key", wanted.id)
    await check(call, wanted, wanted.tenant, KeySettings())
    id = wanted.id or new_id()
    await check_bindings(call, id, wanted.tenant)
    settings = wanted.settings()
    record, secret = await call.store.create_key(wanted.tenant, settings, actor=call.actor, id=id, dry_run=call.dry_run)
    call.target = f"keys/{record.id}"
    call.diff = values.diff(None, {"tenant": wanted.tenant, **plain(settings)})
    return shown_once(call, record, secret)


def shown_once(call: Call, record: KeyRecord, secret: Secret) -> Answer:
    """The answer to a new secret, which holds it. A repeated answer does not."""
    made = {**view(call, record), "warnings": warnings(record)}
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": {**made, "secret": None}})
    answer = {**made, "secret": secret.reveal()}
    return Answer(answer, 201, tag(made), location("keys", record.id), remember={**made, "secret": None})


def warnings(settings: KeySettings) -> list[str]:
    """What is allowed but hardly meant. A key with roles is for the admin API and needs no models."""
    if settings.models or settings.roles:
        return []
    return ["This key may use no model, so each of its requests is refused: name models, such as 'demo-*', or '*' for all of the tenant's."]


async def replace(call: Call) -> Answer:
    return await _update(call, await _stored(call, "update"), call.body, call.expected())


async def patch(call: Call) -> Answer:
    """A merge patch (RFC 7396): what is not named stays; null goes back to the default."""
    expected = call.expected()
    return await (anew(lambda: _patch(call, None)) if expected is None else _patch(call, expected))


async def _patch(call: Call, expected: int | None) -> Answer:
    before = await _stored(call, "update")
    if expected is None:
        expected = before.version  # what was merged with must still be there
    merged = values.merge_patch(msgspec.to_builtins(before.settings()), msgspec.json.decode(call.raw))
    return await _update(call, before, values.decode(msgspec.json.encode(merged), KeyChange), expected)


async def _update(call: Call, before: KeyRecord, wanted: KeyChange, expected: int | None) -> Answer:
    await check(call, wanted, before.tenant, before)
    settings = wanted.settings()
    record = await call.store.update_key(before.id, settings, actor=call.actor, version=expected, dry_run=call.dry_run)
    call.diff = values.diff(plain(before.settings()), plain(settings))
    return _written(call, record)


def plain(settings: KeySettings) -> dict[str, Any]:
    """The settings as differences show them."""
    return shown(msgspec.to_builtins(settings), "expires")


async def rotate(call: Call) -> Answer:
    wanted: Rotation = call.body
    before = await _stored(call, "rotate")
    if before.user:
        raise PermissionDenied("This is a user's own key: only that user can give it a new secret.", code="own_key")
    record, secret = await call.store.rotate_key(
        before.id, actor=call.actor, overlap=wanted.overlap, version=call.expected(), dry_run=call.dry_run
    )
    call.diff = values.diff({"prefix": before.prefix}, {"prefix": record.prefix, "overlap": written(wanted.overlap)})
    return shown_once(call, record, secret)


async def revoke(call: Call) -> Answer:
    before = await _stored(call, "revoke")
    record = await call.store.revoke_key(before.id, actor=call.actor, version=call.expected(), dry_run=call.dry_run)
    call.diff = values.diff({"revoked": timestamp(before.revoked)}, {"revoked": timestamp(record.revoked)})
    return _written(call, record)


async def delete(call: Call) -> Answer:
    before = await _stored(call, "delete")
    record = await call.store.delete_key(before.id, actor=call.actor, version=call.expected(), dry_run=call.dry_run)
    call.diff = values.diff({"tenant": before.tenant, **plain(before.settings())}, None)
    return _written(call, record, tagged=False)


def _written(call: Call, record: KeyRecord, tagged: bool = True) -> Answer:
    found = view(call, record)
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": found})
    return Answer(found, version=tag(found) if tagged else None)


def new_id() -> str:
    """An id for a key without a name. It is chosen here, because bindings may have a pattern for it."""
    return f"key-{token_hex(8)}"


# --- what may be asked for


async def check(call: Call, wanted: KeyChange, tenant: str, before: KeySettings) -> None:
    """Fields with a permission of their own, and what the tenant may have. Raises RequestError, PermissionDenied, NotFound."""
    if wanted.expires is not None and timestamp(wanted.expires) != timestamp(before.expires) and wanted.expires <= call.ports.clock.wall():
        raise RequestError("This time has passed; give a later one, or revoke the key.", param="expires")
    if wanted.priority != before.priority:
        call.require(FIELDS["keys", "priority"], tenant)
    if set(wanted.roles) != set(before.roles):
        await check_roles(call, tuple(set(wanted.roles) ^ set(before.roles)), tenant)
    check_networks(call, wanted.cidrs, "cidrs")
    for index, limit in enumerate(wanted.limits):
        if limit not in before.limits:
            await _check_limit(call, limit, f"limits[{index}]")
    allowed = await tenant_models(call, tenant)
    for index, pattern in enumerate(wanted.models):
        if not any(call.ports.matches(outer, pattern) for outer in allowed):
            raise RequestError(f"The tenant {tenant!r} may not have models {pattern!r}.", param=f"models[{index}]")


async def _check_limit(call: Call, name: str, param: str) -> None:
    """Refuses names without a limit, which would limit nothing."""
    if any(limit["name"] == name for limit in call.ports.config.current()["limits"]):
        return
    try:
        await call.store.get("limits", name)
    except NotFound:
        raise RequestError(f"There is no limit {name!r}.", param=param) from None


async def check_roles(call: Call, roles: tuple[str, ...], tenant: str) -> None:
    """Roles that a key gets or loses: callers cannot give or take what they lack."""
    if roles:
        call.require(FIELDS["keys", "roles"], tenant)
    for role in roles:
        if role in ROLES:  # a role that is gone grants nothing
            call.access.require_grant(role, tenant)


async def check_bindings(call: Call, id: str, tenant: str) -> None:
    """A credential's rights include its bindings: callers cannot create, change or end one with more rights than their own."""
    await require_rights_of(call, Principal(id, tenant, "api_key"))


async def _found(call: Call) -> tuple[str, str, dict[str, Any]]:
    """For a suspension: the key of the path, of the store or of the file."""
    id = call.path["id"]
    await suspended(call, "key", [id])
    for key in in_file(call):
        if key["id"] == id:
            call.target = f"keys/{id}"
            call.seen("keys:read", key["tenant"], "key", id)
            call.require("keys:suspend", key["tenant"])
            await check_roles(call, tuple(key["roles"]), key["tenant"])
            await require_rights_of(call, Principal(id, key["tenant"], "api_key", user=key["user"], groups=tuple(key["groups"])))
            return id, key["tenant"], key
    record = await _stored(call, "suspend")
    return id, record.tenant, view(call, record)


SUSPENDABLE = Suspendable("key", "keys", "id", KeyView, SHAPES.dry_run, _found)


def operations() -> list[Operation]:
    either, made = (KeyView, SHAPES.dry_run), (NewKeyView, NEW.dry_run)
    return [
        Operation("GET", "keys", "keys:read", "List keys", index, SHAPES.page, query=KeyQuery),
        Operation("POST", "keys", "keys:create", "Create a key", create, made, query=Written, body=KeyCreation, status=201, creates=True),
        Operation("GET", "keys/{id}", "keys:read", "Show a key", show, KeyView, query=NoQuery),
        Operation(
            "PUT", "keys/{id}", "keys:update", "Replace what was decided about a key", replace, either, Written, KeyChange, conditional=True
        ),
        Operation(
            "PATCH",
            "keys/{id}",
            "keys:update",
            "Change what was decided about a key",
            patch,
            either,
            query=Written,
            body=patch_of(KeyChange),
            accepts=(JSON, MERGE_PATCH),
            conditional=True,
        ),
        Operation("DELETE", "keys/{id}", "keys:delete", "Delete a key and its record", delete, either, query=Written, conditional=True),
        Operation(
            "POST",
            "keys/{id}/rotate",
            "keys:rotate",
            "Give a key a new secret",
            rotate,
            made,
            query=Written,
            body=Rotation,
            status=201,
            conditional=True,
            creates=True,
        ),
        Operation("POST", "keys/{id}/revoke", "keys:revoke", "Refuse a key from now on", revoke, either, query=Written, conditional=True),
        *SUSPENDABLE.operations(),
    ]
