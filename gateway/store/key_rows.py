"""Statements on the table of API keys. The key itself is never written: only its HMAC-SHA256 with the pepper."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.core.errors import AlreadyExists, RequestError, VersionMismatch
from gateway.core.secret import Secret
from gateway.core.storage import KeyRecord, KeySettings, Page
from gateway.store import rows
from gateway.store.rows import Transaction
from gateway.store.tables import keys

SHOWN = 8
"""Characters of a key that its record shows: `gh_` and five more (29 of 192 bits)."""
MAX_ITEMS = 256
OPERATIONS = ("chat", "completions", "embeddings", "rerank", "classify", "infer")
_LISTS = ("models", "operations", "cidrs", "limits", "roles")
_KEPT = KeyRecord.__struct_fields__
_COLUMNS = [keys.c[name] for name in _KEPT]
_SELECT = sa.select(*_COLUMNS).where(keys.c.id == sa.bindparam("the_id"))
_LOCK = _SELECT.with_for_update()
_FIND = sa.select(*_COLUMNS, keys.c.fingerprint).where(keys.c.fingerprint == sa.bindparam("the_fingerprint"))
_INSERT = sa.insert(keys)
_UPDATE = sa.update(keys).where(keys.c.id == sa.bindparam("the_id"))
_TOUCH = (
    sa.update(keys)
    .where(keys.c.id == sa.bindparam("the_id"), sa.or_(keys.c.last_used.is_(None), keys.c.last_used < sa.bindparam("moment")))
    .values(last_used=sa.bindparam("moment"))
)
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
        networks = tuple(str(ipaddress.ip_network(network)) for network in settings.cidrs)
    except ValueError as error:
        raise RequestError(f"This is no network: {error}.", param="cidrs") from None
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
    now: float,
    limit: int,
    cursor: str | None,
) -> Page[KeyRecord]:
    conditions = [rows.of_tenants(keys.c.tenant, tenant), rows.begins(keys.c.id, prefix), rows.after(keys.c.id, cursor)]
    if state is not None:
        conditions.append(_in_state(state, now))
    query = sa.select(*_COLUMNS).where(*conditions).order_by(keys.c.id).limit(rows.page_size(limit) + 1)
    found = [_record(row) for row in connection.execute(query)]
    return Page(tuple(found[:limit]), rows.cursor_after(found[limit - 1].id) if len(found) > limit else None)


def _in_state(state: str, now: float) -> sa.ColumnElement[bool]:
    """KeyRecord.state as a condition."""
    here = keys.c.revoked.is_(None)
    expired = sa.and_(keys.c.expires.is_not(None), keys.c.expires <= now)
    rotated = sa.and_(keys.c.overlap_until.is_not(None), keys.c.overlap_until <= now)
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
    tx: Transaction, tenant: str, settings: KeySettings, actor: str, id: str, key: str, fingerprint: bytes
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
    )
    values = {name: getattr(made, name) for name in _KEPT}
    try:
        tx.connection.execute(_INSERT, {**values, "fingerprint": fingerprint})
    except sa.exc.IntegrityError:
        raise AlreadyExists(f"There is a key {id!r} already.", param="id") from None
    tx.changed("keys", id, "created")
    return made, Secret(key)


def _write(tx: Transaction, new: KeyRecord, action: str) -> KeyRecord:
    fixed = {"id", "tenant", "prefix", "created", "last_used"}
    values = {name: getattr(new, name) for name in _KEPT if name not in fixed}
    tx.connection.execute(_UPDATE, {"the_id": new.id, **values})
    tx.changed("keys", new.id, action)
    return new


def update(tx: Transaction, id: str, settings: KeySettings, version: int | None, actor: str) -> KeyRecord:
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    decided = msgspec.structs.asdict(checked(settings))
    return _write(tx, msgspec.structs.replace(old, **decided, version=old.version + 1, updated=tx.now, actor=actor), "updated")


def rotate(
    tx: Transaction, id: str, version: int | None, overlap: float, actor: str, new_id: str, key: str, fingerprint: bytes
) -> tuple[KeyRecord, Secret]:
    if not 0 <= overlap <= 366 * 86400:
        raise RequestError("overlap is between 0 and 366 days, in seconds.", param="overlap")
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    if old.revoked is not None or old.rotated_to is not None:
        raise VersionMismatch("The key was revoked or rotated already.", code="key_not_active", status=409)
    made = create(tx, old.tenant, old.settings(), actor, new_id, key, fingerprint)
    ended = {"rotated_to": new_id, "overlap_until": tx.now + overlap}
    _write(tx, msgspec.structs.replace(old, **ended, version=old.version + 1, updated=tx.now, actor=actor), "rotated")
    return made


def revoke(tx: Transaction, id: str, version: int | None, actor: str) -> KeyRecord:
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    if old.revoked is not None:
        return old
    return _write(tx, msgspec.structs.replace(old, revoked=tx.now, version=old.version + 1, updated=tx.now, actor=actor), "revoked")


def delete(tx: Transaction, id: str, version: int | None) -> KeyRecord:
    old = get(tx.connection, id, lock=True)
    rows.check_version(old.version, version)
    tx.connection.execute(sa.delete(keys).where(keys.c.id == id))
    tx.changed("keys", id, "deleted")
    return old


def find(connection: sa.Connection, fingerprint: bytes) -> KeyRecord | None:
    """By the HMAC of the whole key: what the index compares tells nothing about a key to whoever lacks the pepper."""
    row = connection.execute(_FIND, {"the_fingerprint": fingerprint}).first()
    if row is None or not hmac.compare_digest(bytes(row.fingerprint), fingerprint):
        return None
    return _record(row)


def touch(connection: sa.Connection, used: Mapping[str, float]) -> None:
    # In one order, so that two replicas that touch the same keys wait for one another and do not lock each other out.
    connection.execute(_TOUCH, [{"the_id": id, "moment": moment} for id, moment in sorted(used.items())])
