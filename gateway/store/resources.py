"""Statements on the table of resources. Pure functions of a transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gateway.core.errors import AlreadyExists, RequestError
from gateway.core.storage import Page, Resource
from gateway.store import rows
from gateway.store.rows import Transaction
from gateway.store.tables import resources

MAX_BODY = 1024 * 1024
"""Bytes of a body as JSON."""
_KEPT = tuple(column.name for column in resources.columns)
_HERE = sa.and_(resources.c.kind == sa.bindparam("the_kind"), resources.c.name == sa.bindparam("the_name"))
_SELECT = sa.select(resources).where(_HERE)
_LOCK = _SELECT.with_for_update()
_INSERT = sa.insert(resources)
_UPDATE = sa.update(resources).where(_HERE)
_DELETE = sa.delete(resources).where(_HERE)


def body_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The body as it will be read back. Raises RequestError if JSON cannot hold it."""
    try:
        encoded = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise RequestError("The body cannot be written as JSON.", param="body") from None
    if len(encoded) > MAX_BODY:
        raise RequestError(f"The body is larger than {MAX_BODY} bytes.", param="body")
    decoded = json.loads(encoded)
    assert isinstance(decoded, dict)
    return decoded


def _record(row: sa.Row[Any]) -> Resource:
    return Resource(*(getattr(row, name) for name in _KEPT))


def _here(kind: str, name: str) -> dict[str, str]:
    return {"the_kind": kind, "the_name": name}


def get(connection: sa.Connection, kind: str, name: str, *, lock: bool = False) -> Resource:
    """Raises NotFound. lock: until this transaction ends, no other one can change it."""
    found = None
    if rows.storable(kind) and rows.storable(name):
        found = connection.execute(_LOCK if lock else _SELECT, _here(kind, name)).first()
    if found is None:
        raise rows.missing(kind, name)
    return _record(found)


def page(
    connection: sa.Connection, kind: str, tenant: str | Sequence[str] | None, prefix: str, limit: int, cursor: str | None
) -> Page[Resource]:
    conditions = (rows.of_tenants(resources.c.tenant, tenant), rows.begins(resources.c.name, prefix), rows.after(resources.c.name, cursor))
    if not rows.storable(kind):
        return Page(())
    query = sa.select(resources).where(resources.c.kind == kind, *conditions).order_by(resources.c.name).limit(rows.page_size(limit) + 1)
    found = [_record(row) for row in connection.execute(query)]
    return Page(tuple(found[:limit]), rows.cursor_after(found[limit - 1].name) if len(found) > limit else None)


def create(tx: Transaction, kind: str, name: str, body: dict[str, Any], tenant: str, actor: str) -> Resource:
    made = Resource(rows.name(kind, "kind"), rows.name(name, "name"), rows.tenant_name(tenant), 1, body, tx.now, tx.now, actor)
    try:
        tx.connection.execute(_INSERT, {column: getattr(made, column) for column in _KEPT})
    except sa.exc.IntegrityError:
        raise AlreadyExists(f"There is a {name!r} among the {kind} already.", param="name") from None
    tx.changed(kind, name, "created")
    return made


def update(tx: Transaction, kind: str, name: str, body: dict[str, Any], version: int | None, tenant: str | None, actor: str) -> Resource:
    old = get(tx.connection, kind, name, lock=True)
    rows.check_version(old.version, version)
    where = old.tenant if tenant is None else rows.tenant_name(tenant)
    new = Resource(kind, name, where, old.version + 1, body, old.created, tx.now, actor)
    values = {"tenant": where, "version": new.version, "body": body, "updated": tx.now, "actor": actor}
    tx.connection.execute(_UPDATE, {**_here(kind, name), **values})
    tx.changed(kind, name, "updated")
    return new


def delete(tx: Transaction, kind: str, name: str, version: int | None) -> Resource:
    old = get(tx.connection, kind, name, lock=True)
    rows.check_version(old.version, version)
    tx.connection.execute(_DELETE, _here(kind, name))
    tx.changed(kind, name, "deleted")
    return old
