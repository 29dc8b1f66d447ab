"""The store as a file: all of it (`dump`), how it differs from a file (`sync:diff`), and making it equal to one (`sync`), all or nothing.

A kind that a file does not name is left alone. What the configuration file defines is never touched, and neither is what nobody has
decided: keys that have ended, users' own keys, and users whom only a login has made.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.operation import Answer, Call, Operation, Written
from admin.permissions import FIELDS
from admin.resource import Change, Collection, Tenant, read_only
from admin.resources import bindings, keys, references, users
from admin.resources.apply import COLLECTIONS as POLICIES
from admin.resources.apply import about
from admin.resources.groups import GROUPS
from admin.resources.planned_store import PlannedStore
from admin.resources.prices import PRICES
from admin.resources.tenants import TENANTS, purged
from gateway.core.durations import shown
from gateway.core.errors import AlreadyExists, NotFound, RequestError, VersionMismatch
from gateway.core.slices import Steps, in_slices
from gateway.core.storage import KeyRecord, KeyWrite, Removal, Resource, Write

MAX_BODY: Final = 8 * 1024 * 1024
NEWEST: Final = 2**62
"""Higher than the number of any change: the page after it has no changes, only the number of the newest (`head`)."""
MOST: Final = 10_000
"""Resources of one kind."""
SHOWN: Final = 10
"""Names in an error."""
COLLECTIONS: Final[tuple[Collection[Any], ...]] = (TENANTS, GROUPS, users.USERS, *POLICIES, PRICES)
KINDS: Final = (*(known.kind for known in COLLECTIONS), "keys")


class KeyDecided(keys.KeyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key without its secret."""

    id: Tenant
    tenant: Tenant


_Listed: Final = {**{known.kind: known.settings for known in COLLECTIONS}, "keys": KeyDecided}
Wanted = msgspec.defstruct(
    "SyncWanted",
    [(kind, Annotated[tuple[settings, ...], Meta(max_length=MOST)] | None, None) for kind, settings in _Listed.items()],  # type: ignore[valid-type]
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    module=__name__,
)
"""What the store is to have, by kind; a kind that is absent or null is left alone. Every setting that is left out has its default. The mask
of a secret (********) stands for the one that is stored."""
Dump = msgspec.defstruct("Dump", [(kind, list[dict[str, Any]] | None, None) for kind in KINDS], kw_only=True, module=__name__)
"""Everything of these kinds, as `sync` takes it. Secrets are masked. null: not asked for, or the caller may not read all of it."""


class DumpQuery(msgspec.Struct, forbid_unknown_fields=True):
    """kinds: these, with commas between them; absent: all that the caller may read."""

    kinds: Annotated[str, Meta(max_length=256)] | None = None


class SyncQuery(Written, forbid_unknown_fields=True):
    """delete: what the file lacks may be deleted. revive: keys that have expired may be valid again. plan: what a dry run answered; nothing
    is done if it would be something else by now."""

    delete: bool = False
    revive: bool = False
    plan: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class SyncedView(msgspec.Struct, kw_only=True):
    """One difference. missing: a key that has to be created, as only that makes a secret. revives: a key that has expired would be valid
    again."""

    kind: str
    name: str
    action: Literal["created", "replaced", "deleted", "missing"]
    diff: list[Change]
    revives: bool = False


class Synced(msgspec.Struct, kw_only=True):
    """unchanged: how many are equal already. plan: a digest of the differences."""

    items: list[SyncedView]
    unchanged: int
    plan: str
    dry_run: bool = False


@dataclass
class Held:
    """What the store has of some kinds, read at one moment. keys: those that count, and those that were asked for. seq: of the newest
    change before it."""

    resources: dict[str, dict[str, Resource]]
    keys: dict[str, KeyRecord]
    seq: int


@dataclass
class Item:
    """One difference. settings, kept: of a resource that is written. key: the settings of a key that is changed."""

    kind: str
    name: str
    action: str
    diff: list[dict[str, Any]]
    before: Resource | KeyRecord | None = None
    collection: Collection[Any] | None = None
    settings: Any = None
    kept: dict[str, Any] | None = None
    key: KeyDecided | None = None
    needs: Sequence[tuple[str, str]] = ()
    revives: bool = False

    @property
    def path(self) -> str:
        return f"{self.kind}/{self.name}"


# --- reading


def rights(kind: str) -> tuple[str, ...]:
    """What it takes to read all of a kind."""
    return (f"{kind}:read", FIELDS["endpoints", "address"]) if kind == "engines" else (f"{kind}:read",)


def readable(call: Call) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if all(call.access.may(permission) for permission in rights(kind)))


async def held(call: Call, kinds: Sequence[str], ids: Set[str] = frozenset()) -> Held:
    """All of these kinds at one moment. ids: of keys that are wanted even if they do not count. Raises PermissionDenied, StoreUnavailable,
    and RequestError for too many."""
    for kind in kinds:
        for permission in rights(kind):
            call.require(permission)
    seq = (await call.store.changes_since(NEWEST, 1)).head  # first, so that no change between the two is missed
    others = [kind for kind in kinds if kind != "keys"]
    found, of_keys = await call.store.everything(others, keys=ids if "keys" in kinds else None, most=MOST)
    now = call.ports.clock.wall()
    for kind, listed in (*found.items(), ("keys", [key for key in of_keys if _in_use(key, now)])):
        if len(listed) > MOST:
            raise RequestError(f"The store has more than {MOST} {kind}: leave that kind out.", param=kind)
    return Held({kind: {one.name: one for one in listed} for kind, listed in found.items()}, {key.id: key for key in of_keys}, seq)


def filed(call: Call, kind: str) -> frozenset[str]:
    """The names that the configuration file, or Gatehouse itself, defines."""
    config = call.ports.config.current()
    if kind == "keys":
        return frozenset(str(key["id"]) for key in config["identity"]["api_keys"]["static"])
    known = next(one for one in COLLECTIONS if one.kind == kind)
    return frozenset(str(body["name"]) for body in known.in_file(config))


def decided(collection: Collection[Any], name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The settings of a stored body, each of them, in the form of today. One that this version cannot read is shown as it is."""
    if collection.kind == "bindings":
        body = bindings.plain(body)
    known = {field: body[field] for field in collection.settings.__struct_encode_fields__ if field in body}
    try:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.convert({**known, "name": name}, collection.settings))
    except msgspec.ValidationError:
        return {**known, "name": name}
    return found


def counts(collection: Collection[Any], one: Resource) -> bool:
    """Whether somebody has decided it: not a user whom only a login has made."""
    if collection.kind != "users" or one.body.get("source", "local") == "local":
        return True
    return bool(values.diff(decided(collection, one.name, {}), decided(collection, one.name, one.body)))


def _in_use(key: KeyRecord, now: float) -> bool:
    return not key.user and key.state(now) == "active"


def _counting_keys(call: Call, found: Held) -> list[KeyRecord]:
    now, ours = call.ports.clock.wall(), filed(call, "keys")
    return [key for key in found.keys.values() if _in_use(key, now) and key.id not in ours]


async def dump(call: Call) -> Answer:
    """Without `kinds`, those that the caller may read whole; the others are null."""
    kinds = readable(call) if call.query.kinds is None else tuple(call.query.kinds.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"There is no kind {kind[:64]!r}; there are {', '.join(KINDS)}.", param="kinds")
    found = await held(call, kinds)

    def listed() -> Steps[dict[str, Any]]:
        answer: dict[str, Any] = dict.fromkeys(KINDS)
        for collection in COLLECTIONS:
            if collection.kind not in kinds:
                continue
            ours, answer[collection.kind] = filed(call, collection.kind), []
            for name, one in sorted(found.resources[collection.kind].items()):
                if name not in ours and counts(collection, one):
                    body = references.masked(decided(collection, name, one.body))
                    answer[collection.kind].append(shown(body, collection.settings))
                yield
        if "keys" in kinds:
            mine = sorted(_counting_keys(call, found), key=lambda key: key.id)
            answer["keys"] = []
            for key in mine:
                answer["keys"].append({"id": key.id, "tenant": key.tenant, **keys.plain(key.settings())})
                yield
        return answer

    return Answer(await in_slices(listed()))


# --- the differences


def compared(call: Call) -> list[str]:
    """The kinds that the request has."""
    return [kind for kind in KINDS if getattr(call.body, kind) is not None]


async def plan(call: Call) -> tuple[Held, list[Item], int]:
    """What is to be done so that the store is equal to the request, and how much is equal already. Nothing of it is examined."""
    kinds = compared(call)
    found = await held(call, kinds, frozenset(str(one.id) for one in call.body.keys or ()))

    def differences() -> Steps[tuple[list[Item], int]]:
        items: list[Item] = []
        unchanged = 0
        for collection in COLLECTIONS:
            if collection.kind not in kinds:
                continue
            ours, known = filed(call, collection.kind), found.resources[collection.kind]
            wanted = _by_name(collection.kind, getattr(call.body, collection.kind), "name")
            for name, settings in wanted.items():
                with about(collection.kind, name):
                    item = _wanted(call, collection, name, settings, known.get(name), ours)
                if item is None:
                    unchanged += 1
                else:
                    items.append(item)
                yield
            for name, one in sorted(known.items()):
                if name not in wanted and name not in ours and counts(collection, one):
                    gone = decided(collection, name, one.body)
                    items.append(Item(collection.kind, name, "deleted", collection.diff(gone, None), one, collection))
                yield
        if "keys" in kinds:
            of_keys = yield from _wanted_keys(call, found)
            unchanged += len(call.body.keys) - sum(item.action != "deleted" for item in of_keys)
            items += of_keys
        return items, unchanged

    return found, *await in_slices(differences())


def _by_name(kind: str, listed: Sequence[Any], field: str) -> dict[str, Any]:
    """Raises RequestError for one that appears twice."""
    found: dict[str, Any] = {}
    for one in listed:
        name = str(getattr(one, field))
        if name in found:
            raise RequestError(f"{kind}/{name} appears twice.", param=f"{kind}/{name}")
        found[name] = one
    return found


def _wanted(
    call: Call, collection: Collection[Any], name: str, settings: Any, before: Resource | None, ours: frozenset[str]
) -> Item | None:
    """None: it is equal already."""
    former = None if before is None else before.body
    sent = msgspec.to_builtins(settings)
    if references.holds_mask(sent):
        body = references.restored(msgspec.json.decode(msgspec.json.encode(sent)), former or {})
        settings = values.decode(msgspec.json.encode(body), collection.settings)
        sent = msgspec.to_builtins(settings)
    kept = collection.kept(call, sent, former)
    was = None if former is None else decided(collection, name, former)
    diff = collection.diff(was, decided(collection, name, kept))
    if before is not None and not diff:
        return None
    if name in ours:
        raise read_only(collection.singular, name)
    return Item(collection.kind, name, "created" if before is None else "replaced", diff, before, collection, settings, kept)


def _wanted_keys(call: Call, found: Held) -> Steps[list[Item]]:
    ours, items, now = filed(call, "keys"), list[Item](), call.ports.clock.wall()
    wanted: dict[str, KeyDecided] = _by_name("keys", call.body.keys, "id")
    for id, settings in wanted.items():
        yield
        record = found.keys.get(id)
        with about("keys", id):
            if id in ours:
                raise read_only("key", id)
            after = keys.plain(settings.settings())
            if record is None:
                items.append(Item("keys", id, "missing", values.diff(None, {"tenant": settings.tenant, **after})))
                continue
            if record.user:
                raise RequestError("This is a user's own key, which is theirs to change.", param="id")
            if record.tenant != settings.tenant:
                raise RequestError(f"The key belongs to the tenant {record.tenant!r}; that does not change.", param="tenant")
        if diff := values.diff(keys.plain(record.settings()), after):
            later = settings.settings().expires
            revives = record.state(now) == "expired" and (later is None or later > now)
            items.append(Item("keys", id, "replaced", diff, record, key=settings, revives=revives))
    for record in sorted(_counting_keys(call, found), key=lambda key: key.id):
        yield
        if record.id not in wanted:
            before = {"tenant": record.tenant, **keys.plain(record.settings())}
            items.append(Item("keys", record.id, "deleted", values.diff(before, None), record))
    return items


def _shown(items: Sequence[Item], unchanged: int, dry_run: bool) -> Steps[dict[str, Any]]:
    listed, digest = [], hashlib.sha256()
    for item in items:
        yield
        one = {"kind": item.kind, "name": item.name, "action": item.action, "diff": item.diff, "revives": item.revives}
        digest.update(msgspec.json.encode([one, None if item.before is None else item.before.version], order="sorted"))
        listed.append(one)
    return {"items": listed, "unchanged": unchanged, "plan": digest.hexdigest(), "dry_run": dry_run}


async def diff(call: Call) -> Answer:
    _, items, unchanged = await plan(call)
    return Answer(await in_slices(_shown(items, unchanged, True)))


# --- making it so


async def sync(call: Call) -> Answer:
    """Everything is examined as it will be before anything is written; the writes and deletions are one transaction."""
    found, items, unchanged = await plan(call)
    answer = await in_slices(_shown(items, unchanged, call.dry_run))
    doing = [item for item in items if item.action != "missing"]
    call.target = ", ".join(item.path for item in doing[:SHOWN]) or "nothing"
    if call.query.plan is not None and call.query.plan != answer["plan"]:
        raise problems.simple(409, "plan_changed", "The store or the file has changed since the dry run: look at the differences again.")
    if not call.dry_run and not call.query.delete:
        _refuse([item.path for item in doing if item.action == "deleted"], "would_delete", "This would delete {}", "delete")
    if not call.dry_run and not call.query.revive:
        _refuse([item.path for item in doing if item.revives], "would_revive", "{} expired, and would be valid again", "revive")
    then = await in_slices(planned(found, doing))
    for item in doing:
        await asyncio.sleep(0)  # requests get the loop in between
        with about(item.kind, item.name):
            await examine(call, then, item)
    await write(call, doing, since=(found.seq, [kind for kind in compared(call) if kind != "users"]))  # logins make users all the time
    call.diff = await in_slices(differing(doing))
    return Answer(answer)


def differing(doing: Sequence[Item]) -> Steps[list[dict[str, Any]]]:
    """The differences of all items, with paths that say which they are of."""
    found: list[dict[str, Any]] = []
    for item in doing:
        found += [{**entry, "path": f"{item.path}.{entry['path']}"} for entry in item.diff]
        yield
    return found


def _refuse(paths: Sequence[str], code: str, what: str, allow: str) -> None:
    if paths:
        named = ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")
        raise problems.simple(409, code, f"{what.format(named)}: allow it with {allow}=true.", param=allow)


def planned(found: Held, doing: Sequence[Item]) -> Steps[PlannedStore]:
    then = {kind: dict(known) for kind, known in found.resources.items()}
    gone = frozenset((item.kind, item.name) for item in doing if item.action == "deleted")
    for kind, name in gone:
        then.get(kind, {}).pop(name, None)
    written = []
    for item in doing:
        if item.kept is not None and item.collection is not None:
            body = {**item.kept, "name": item.name}
            written.append((item.kind, body))
            then[item.kind][item.name] = Resource(item.kind, item.name, item.collection.tenant_of(body), 0, body, 0.0, 0.0, "")
        yield
    return PlannedStore(then, written, gone)


async def examine(call: Call, then: PlannedStore, item: Item) -> None:
    """Raises as the single operation would. Permissions are the same."""
    verb = {"created": "create", "replaced": "update", "deleted": "delete"}[item.action]
    if isinstance(item.before, KeyRecord):
        call.require(f"keys:{verb}", item.before.tenant)
        await _examine_key(call, then.call(call), item, item.before)
        return
    assert item.collection is not None
    if item.before is not None:
        call.require(f"{item.kind}:{verb}", item.before.tenant)
        if item.kind == "users":
            _spare_the_caller(call, item, item.before)
    if item.kept is None:
        if item.collection.on_delete is not None:
            await item.collection.on_delete(then.call(call, item.before), item.name)
        return
    call.require(f"{item.kind}:{verb}", item.collection.tenant_of(item.kept))
    there, former = then.call(call), None if item.before is None else item.before.body
    await item.collection.examine(there, item.settings, former, item.kept, then.write_set(item.kind))
    item.needs = item.collection.needs(there, item.kept)


def _spare_the_caller(call: Call, item: Item, before: Resource) -> None:
    """A file that was written elsewhere does not know who syncs it. Keys of the configuration have their own rights, whoever uses them."""
    principal = call.access.principal
    itself = principal.kind != "api_key" or principal.personal
    if not itself or not users.SUSPENDABLE.concerns(call.access, item.name, before.tenant):
        return
    after = item.kept or {}
    if item.kept is None or any(set(before.body.get(given, ())) - set(after.get(given, ())) for given in ("groups", "roles")):
        message = "This is yourself: somebody else has to delete you, or to take groups and roles from you."
        raise problems.simple(409, "own_rights", message, param="name")


async def _examine_key(call: Call, there: Call, item: Item, record: KeyRecord) -> None:
    await keys.check_standing(call, record)
    own = keys.SUSPENDABLE.concerns(call.access, record.id, record.tenant)
    if own and (item.key is None or set(record.roles) - set(item.key.roles)):
        message = "This is the key of this very request: use another one to delete it, or to take roles from it."
        raise problems.simple(409, "own_rights", message, param="id")
    if item.key is not None:
        await keys.check(there, item.key, record.tenant, record)


async def write(call: Call, doing: Sequence[Item], restores: int | None = None, since: tuple[int, Sequence[str]] | None = None) -> None:
    """since: what nobody may have changed after it, also what is equal already or was not there (gateway.core.storage)."""
    writes, changed, removals = [], [], []
    for item in doing:
        await asyncio.sleep(0)
        version = None if item.before is None else item.before.version
        if item.key is not None:
            assert version is not None
            changed.append(KeyWrite(item.name, item.key.settings(), version))
        elif item.kept is not None and item.collection is not None:
            tenant = item.collection.tenant_of(item.kept)
            writes.append(Write(item.kind, item.name, item.kept, tenant, version, tuple(item.needs)))
        else:
            assert version is not None
            removals.append(Removal(item.kind, item.name, version))
    if not doing:
        return
    try:
        told: dict[str, Any] = {"actor": call.actor, "dry_run": call.dry_run, "restores": restores, "since": since}
        await call.store.write_all(writes, removals=removals, keys=changed, **told)
    except (AlreadyExists, NotFound) as error:  # it was otherwise when it was read, moments before
        raise VersionMismatch(f"{error.message} Somebody else has changed that since it was read; read it again.") from None
    if not call.dry_run:
        await purged(call, [removal.name for removal in removals if removal.kind == "tenants"])


def operations() -> list[Operation]:
    body: dict[str, Any] = {"body": Wanted, "max_body": MAX_BODY, "masks": True}
    return [
        Operation("GET", "dump", "resources:dump", "Show everything that is decided in the store", dump, Dump, query=DumpQuery),
        Operation("POST", "sync:diff", "resources:dump", "Compare the store with a file", diff, Synced, quiet=True, refuses=(409,), **body),
        Operation(
            "POST",
            "sync",
            "resources:sync",
            "Make the store equal to a file, all or nothing",
            sync,
            Synced,
            SyncQuery,
            refuses=(412,),
            **body,
        ),
    ]
