"""Statements on the table of API keys. A key is stored only as its HMAC-SHA256 with the pepper, never itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.core.errors import AlreadyExists, RequestError, VersionMismatch
from gateway.core.network import parse
from gateway.core.people import full_name
from gateway.core.secret import Secret
from gateway.core.slices import portions
from gateway.core.storage import KeyRecord, KeySettings, Page
from gateway.store import erasure, resources, rows
from gateway.store.rows import Transaction
from gateway.store.tables import former_secrets, keys
from gateway.wire.table import OPERATIONS

SHOWN = 8
"""Characters of a key that its record shows: `gh_` and five more (29 of 192 bits)."""
MAX_ITEMS = 256
_LISTS = ("models", "operations", "cidrs", "limits", "roles")
_KEPT = KeyRecord.__struct_fields__
_COLUMNS = [keys.c[name] for name in _KEPT]
_SELECT = sa.select(*_COLUMNS).where(keys.c.id == sa.bindparam("the_id"))
_LOCK = _SELECT.with_for_update()
_FIND = sa.select(*_COLUMNS, keys.c.fingerprint).where(keys.c.fingerprint.in_(sa.bindparam("the_fingerprints", expanding=True)))
_FIND_FORMER = (
    sa.select(*_COLUMNS, former_secrets.c.fingerprint, former_secrets.c.until)
    .join_from(former_secrets, keys, former_secrets.c.key == keys.c.id)
    .where(former_secrets.c.fingerprint.in_(sa.bindparam("the_fingerprints", expanding=True)))
)
_FINGERPRINT = sa.select(keys.c.fingerprint).where(keys.c.id == sa.bindparam("the_id"))
_INSERT = sa.insert(keys)
_UPDATE = sa.update(keys).where(keys.c.id == sa.bindparam("the_id"))
_TOUCH = (
    sa.update(keys)
    .where(keys.c.id == sa.bindparam("the_id"), sa.or_(keys.c.last_used.is_(None), keys.c.last_used < sa.bindparam("moment")))
    .values(last_used=sa.bindparam("moment"))
)
NAMED = 20
"""Up to so many limits, the database looks for their names."""
MAX_TIME = 253402300799.0  # the end of year 9999


class KeyFormat(Protocol):
    """How keys are made and hashed (gateway.identity.keys)."""

    def generate(self, entropy: Entropy) -> str: ...

    def fingerprint(self, key: str, pepper: bytes) -> bytes: ...


def checked(settings: KeySettings) -> KeySettings:
    """The settings with networks in their canonical form. Raises RequestError naming the field that is wrong."""
    for name in _LISTS:
        items = getattr(settings, name)
        if len(items) > MAX_ITEMS:
            raise RequestError(f"{name} has more than {MAX_ITEMS} items.", param=name)
        for item in items:
            rows.text(item, name)
    for operation in settings.operations:
        if operation not in OPERATIONS:
            raise RequestError(f"There is no operation {operation!r}; there are {', '.join(OPERATIONS)}.", param="operations")
    if settings.priority not in ("interactive", "standard", "batch"):
        raise RequestError("priority is interactive, standard or batch.", param="priority")
    rows.text(settings.description, "description", 1024)
    if settings.expires is not None and not 0 < settings.expires <= MAX_TIME:
        raise RequestError("expires is a time in seconds since the epoch.", param="expires")
    try:
        networks = tuple(str(parse(entry)) for entry in settings.cidrs)
    except ValueError as error:
        raise RequestError(f"This is not a network: {error}.", param="cidrs") from None
    return msgspec.structs.replace(settings, cidrs=networks)


def _record(row: Any) -> KeyRecord:
    values = {name: getattr(row, name) for name in _KEPT}
    for name in _LISTS:
        values[name] = tuple(values[name])
    return KeyRecord(**values)


def get(connection: sa.Connection, id: str, *, lock: bool = False) -> KeyRecord:
    found = None
    if rows.storable(id):
        found = connection.execute(_LOCK if lock else _SELECT, {"the_id": id}).first()
    if found is None:
        raise rows.missing("keys", id)
    return _record(found)


def page(
    connection: sa.Connection,
    tenant: str | Sequence[str] | None,
    prefix: str,
    state: str | None,
    user: str | None,
    now: float,
    limit: int,
    cursor: str | None,
) -> Page[KeyRecord]:
    conditions = [rows.of_tenants(keys.c.tenant, tenant), rows.begins(keys.c.id, prefix), rows.after(keys.c.id, cursor)]
    if user is not None:
        conditions.append(keys.c.user == user if rows.storable(user) else sa.false())
    if state is not None:
        conditions.append(_in_state(state, now))
    query = sa.select(*_COLUMNS).where(*conditions).order_by(keys.c.id).limit(rows.page_size(limit) + 1)
    found = [_record(row) for row in connection.execute(query)]
    return Page(tuple(found[:limit]), rows.cursor_after(found[limit - 1].id) if len(found) > limit else None)


def those(connection: sa.Connection, ids: Sequence[str]) -> tuple[KeyRecord, ...]:
    """Those that have one of these ids."""
    found: list[KeyRecord] = []
    for some in portions([id for id in ids if rows.storable(id)], rows.MANY):
        found += [_record(row) for row in connection.execute(sa.select(*_COLUMNS).where(keys.c.id.in_(some)))]
    return tuple(found)


def _in_state(state: str, now: float) -> sa.ColumnElement[bool]:
    """KeyRecord.state as a condition."""
    here = keys.c.revoked.is_(None)
    expired = sa.and_(keys.c.expires.is_not(None), keys.c.expires <= now)
    rotated = sa.and_(keys.c.rotated_to.is_not(None), keys.c.overlap_until <= now)
    conditions = {
        "revoked": keys.c.revoked.is_not(None),
        "expired": sa.and_(here, expired),
        "rotated": sa.and_(here, sa.not_(expired), rotated),
        "active": sa.and_(here, sa.not_(expired), sa.not_(rotated)),
    }
    if state not in conditions:
        raise RequestError(f"state is one of {', '.join(conditions)}.", param="state")
    return conditions[state]


def create(
    tx: Transaction, tenant: str, settings: KeySettings, actor: str, id: str, key: str, fingerprint: bytes, user: str = ""
) -> tuple[KeyRecord, Secret]:
    made = KeyRecord(
        **msgspec.structs.asdict(checked(settings)),
        id=rows.name(id, "id"),
        tenant=rows.name(tenant, "tenant"),
        prefix=key[:SHOWN],
        version=1,
        created=tx.now,
        updated=tx.now,
        actor=actor,
        user=rows.text(user, "user"),
        issued=tx.now,
    )
    values = {name: getattr(made, name) for name in _KEPT}
    try:
        tx.connection.execute(_INSERT, {**values, "fingerprint": fingerprint})
    except sa.exc.IntegrityError:
        raise AlreadyExists(f"The key {id!r} already exists.", param="id") from None
    erasure.end_captures(tx, [id])  # of one of the id that was deleted while the capture began
    tx.changed("keys", id, "created")
    return made, Secret(key)


def create_own(
    tx: Transaction, tenant: str, user: str, settings: KeySettings, actor: str, id: str, key: str, fingerprint: bytes, count: int
) -> tuple[KeyRecord, Secret]:
    """Holds the user's row meanwhile: the user is not deleted, and makes no other key, at the same moment."""
    resources.get(tx.connection, "users", full_name(user, tenant), lock=True)
    mine = sa.and_(keys.c.tenant == tenant, keys.c.user == user, _in_state("active", tx.now))
    if int(tx.connection.execute(sa.select(sa.func.count()).select_from(keys).where(mine)).scalar_one()) >= count:
        raise VersionMismatch(f"You have {count} active keys, as many as your groups allow: revoke one.", code="too_many_keys", status=409)
    return create(tx, tenant, settings, actor, id, key, fingerprint, user)


def _write(tx: Transaction, new: KeyRecord, action: str, fingerprint: bytes | None = None) -> KeyRecord:
    """fingerprint: of the new secret, if there is one."""
    fixed = {"id", "tenant", "created", "last_used", "user"}
    values = {name: getattr(new, name) for name in _KEPT if name not in fixed}
    if fingerprint is not None:
        values["fingerprint"] = fingerprint
    tx.connection.execute(_UPDATE, {"the_id": new.id, **values})
    tx.changed("keys", new.id, action)
    return new


def update(tx: Transaction, id: str, settings: KeySettings, version: int | None, actor: str) -> KeyRecord:
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    decided = msgspec.structs.asdict(checked(settings))
    return _write(tx, msgspec.structs.replace(old, **decided, version=old.version + 1, updated=tx.now, actor=actor), "updated")


def rotate(
    tx: Transaction, id: str, version: int | None, overlap: float, actor: str, key: str, fingerprint: bytes, expires: float | None = None
) -> tuple[KeyRecord, Secret]:
    """Gives the key another secret. Those before it end after `overlap` seconds at the latest, and with the key's end until now."""
    if not 0 <= overlap <= 366 * 86400:
        raise RequestError("overlap is between 0 and 366 days, in seconds.", param="overlap")
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    if old.revoked is not None or old.rotated_to is not None:
        raise VersionMismatch("The key was revoked, or replaced by another one.", code="key_not_active", status=409)
    until = tx.now + overlap
    if expires is not None and old.expires is not None and old.expires < until:
        until = old.expires
    before = bytes(tx.connection.execute(_FINGERPRINT, {"the_id": id}).scalar_one())
    _shorten(tx, id, until)
    if until > tx.now:
        tx.connection.execute(sa.insert(former_secrets), {"fingerprint": before, "key": id, "until": until})
    rotated = msgspec.structs.replace(
        old,
        prefix=key[:SHOWN],
        overlap_until=until if until > tx.now else None,
        version=old.version + 1,
        updated=tx.now,
        actor=actor,
        issued=tx.now,
        expires=old.expires if expires is None else expires,
    )
    return _write(tx, rotated, "rotated", fingerprint), Secret(key)


def _shorten(tx: Transaction, id: str, until: float) -> None:
    """Limits how long former secrets of the key are accepted."""
    mine = former_secrets.c.key == id
    tx.connection.execute(sa.delete(former_secrets).where(mine, sa.or_(former_secrets.c.until <= tx.now, sa.literal(until) <= tx.now)))
    tx.connection.execute(sa.update(former_secrets).where(mine, former_secrets.c.until > until).values(until=until))


def revoke(tx: Transaction, id: str, version: int | None, actor: str) -> KeyRecord:
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    if old.revoked is not None:
        return old
    return _write(tx, msgspec.structs.replace(old, revoked=tx.now, version=old.version + 1, updated=tx.now, actor=actor), "revoked")


def delete(tx: Transaction, wanted: Mapping[str, int | None]) -> list[KeyRecord]:
    """Deletes keys, each in the version that is given, if one is. Raises NotFound, VersionMismatch."""
    found = {row.id: _record(row) for some in portions(sorted(wanted), rows.MANY) for row in _locked(tx.connection, some)}
    for id, version in wanted.items():
        if id not in found:
            raise rows.missing("keys", id)
        rows.check_version(found[id].version, version)
    for some in portions(tuple(wanted), rows.MANY):
        tx.connection.execute(sa.delete(former_secrets).where(former_secrets.c.key.in_(some)))
        tx.connection.execute(sa.delete(keys).where(keys.c.id.in_(some)))
    if callers := [(old.tenant, old.id) for old in found.values() if not old.user]:
        erasure.forget_callers(tx, "api_key", callers)
    erasure.end_captures(tx, tuple(wanted))
    for id in wanted:
        tx.changed("keys", id, "deleted")
    return list(found.values())


def _locked(connection: sa.Connection, ids: Sequence[str]) -> Sequence[sa.Row[Any]]:
    known = [id for id in ids if rows.storable(id)]
    return connection.execute(sa.select(*_COLUMNS).where(keys.c.id.in_(known)).order_by(keys.c.id).with_for_update()).all()


def find(connection: sa.Connection, fingerprints: Sequence[bytes]) -> dict[bytes, KeyRecord]:
    """The keys among these, found by the HMAC of the whole secret, so that the timing of the index tells nothing to anyone without the
    pepper.

    The record of a former secret expires when that secret does.
    """
    found = {bytes(row.fingerprint): _record(row) for row in connection.execute(_FIND, {"the_fingerprints": fingerprints})}
    rest = [fingerprint for fingerprint in fingerprints if fingerprint not in found]
    if rest:
        for row in connection.execute(_FIND_FORMER, {"the_fingerprints": rest}):
            record, until = _record(row), row.until
            ends = until if record.expires is None else min(record.expires, until)
            found[bytes(row.fingerprint)] = msgspec.structs.replace(record, expires=ends)
    return found


def prune(connection: sa.Connection, now: float) -> None:
    """Deletes former secrets that have ended."""
    connection.execute(sa.delete(former_secrets).where(former_secrets.c.until <= now))


def naming(connection: sa.Connection, limits: Collection[str]) -> dict[str, list[str]]:
    """The ids of the keys (except revoked ones) that name each of these limits, in order. Reads all keys once."""
    text = sa.cast(keys.c.limits, sa.Text)
    named = sa.or_(*(text.contains(f'"{limit}"', autoescape=True) for limit in limits)) if len(limits) <= NAMED else text != "[]"
    query = sa.select(keys.c.id, keys.c.limits).where(named, keys.c.revoked.is_(None)).order_by(keys.c.id)
    found: dict[str, list[str]] = {}
    for row in connection.execute(query):
        for limit in row.limits:
            if limit in limits:
                found.setdefault(limit, []).append(row.id)
    return found


def touch(connection: sa.Connection, used: Mapping[str, float]) -> None:
    # Always in the same order, so that two replicas that touch the same keys cannot deadlock.
    connection.execute(_TOUCH, [{"the_id": id, "moment": moment} for id, moment in sorted(used.items())])
