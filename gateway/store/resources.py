"""Statements on the table of resources. Pure functions of a transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gateway.core.errors import AlreadyExists, RequestError, VersionMismatch
from gateway.core.slices import portions
from gateway.core.storage import Page, Resource
from gateway.store import rows
from gateway.store.config_rows import TRACKED
from gateway.store.rows import Transaction, Unit
from gateway.store.tables import resources

MAX_BODY = 1024 * 1024
"""Bytes of a body as JSON."""
_KEPT = tuple(column.name for column in resources.columns)
_HERE = sa.and_(resources.c.kind == sa.bindparam("the_kind"), resources.c.name == sa.bindparam("the_name"))
_SELECT = sa.select(resources).where(_HERE)
_LOCK = _SELECT.with_for_update()
_INSERT = sa.insert(resources)
_UPDATE = sa.update(resources).where(_HERE)
_BOUND = (
    sa.select(resources.c.name)
    .where(resources.c.kind == "bindings", resources.c.body["role"].as_string() == sa.bindparam("the_role"))
    .order_by(resources.c.name)
    .limit(1)
)
_THESE = sa.and_(resources.c.kind == sa.bindparam("the_kind"), resources.c.name.in_(sa.bindparam("names", expanding=True)))
_ALL = sa.select(resources).where(_THESE)
_LOCK_ALL = _ALL.order_by(resources.c.name).with_for_update()
_DELETE = sa.delete(resources).where(_THESE)
NAMED = 20
"""Up to so many roles, the database looks for their names among the users."""


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


def record(row: sa.Row[Any]) -> Resource:
    """One row of the table."""
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
    return record(found)


def those(connection: sa.Connection, kind: str, names: Sequence[str]) -> tuple[Resource, ...]:
    """Those of a kind that have one of these names."""
    found: list[Resource] = []
    for some in portions([name for name in names if rows.storable(name)] if rows.storable(kind) else [], rows.MANY):
        found += [record(row) for row in connection.execute(_ALL, {"the_kind": kind, "names": some})]
    return tuple(found)


def need(connection: sa.Connection, wanted: Sequence[tuple[str, str]]) -> None:
    """Holds these resources (kind, name) until the transaction ends. Raises NotFound."""
    for kind, name in wanted:
        get(connection, kind, name, lock=True)


def unbound(connection: sa.Connection, roles: Collection[str]) -> None:
    """Raises VersionMismatch (409 `in_use`) for a role that a binding or a user names. The roles have been deleted in this transaction, and
    so are held, as they are by who binds them: neither can miss the other."""
    for role in roles:
        found = connection.execute(_BOUND, {"the_role": role}).first()
        if found is not None:
            raise role_in_use(f"The role {role!r} is still bound, by {found.name!r} for one: delete its bindings first.")
    text = sa.cast(resources.c.body, sa.Text)
    named = sa.or_(*(text.contains(json.dumps(role), autoescape=True) for role in roles)) if len(roles) <= NAMED else sa.true()
    gone = frozenset(roles)
    for user in connection.execute(sa.select(resources.c.name, resources.c.body).where(resources.c.kind == "users", named)):
        for role in user.body.get("roles", ()):
            if role in gone:
                raise role_in_use(f"The user {user.name!r} still has the role {role!r}: take it first.")


def role_in_use(message: str) -> VersionMismatch:
    return VersionMismatch(message, code="in_use", status=409, param="name")


def page(
    connection: sa.Connection, kind: str, tenant: str | Sequence[str] | None, prefix: str, limit: int, cursor: str | None
) -> Page[Resource]:
    conditions = (rows.of_tenants(resources.c.tenant, tenant), rows.begins(resources.c.name, prefix), rows.after(resources.c.name, cursor))
    if not (rows.storable(kind) and rows.storable(prefix)):
        return Page(())
    first = resources.c.name >= prefix  # by the index: `begins` alone would look at every name before
    query = (
        sa.select(resources).where(resources.c.kind == kind, first, *conditions).order_by(resources.c.name).limit(rows.page_size(limit) + 1)
    )
    found = [record(row) for row in connection.execute(query)]
    return Page(tuple(found[:limit]), rows.cursor_after(found[limit - 1].name) if len(found) > limit else None)


def create(tx: Transaction, kind: str, name: str, body: dict[str, Any], tenant: str, actor: str) -> Resource:
    made = Resource(rows.name(kind, "kind"), rows.name(name, "name"), rows.tenant_name(tenant), 1, body, tx.now, tx.now, actor)
    try:
        tx.connection.execute(_INSERT, {column: getattr(made, column) for column in _KEPT})
    except sa.exc.IntegrityError:
        raise AlreadyExists(f"The {rows.one_of(kind)} {name!r} already exists.", param="name") from None
    tx.changed(kind, name, "created")
    tracked(tx, kind, name, None, body, actor)
    return made


def update(tx: Transaction, kind: str, name: str, body: dict[str, Any], version: int | None, tenant: str | None, actor: str) -> Resource:
    old = get(tx.connection, kind, name, lock=True)
    rows.check_version(old.version, version)
    where = old.tenant if tenant is None else rows.tenant_name(tenant)
    new = Resource(kind, name, where, old.version + 1, body, old.created, tx.now, actor)
    values = {"tenant": where, "version": new.version, "body": body, "updated": tx.now, "actor": actor}
    tx.connection.execute(_UPDATE, {**_here(kind, name), **values})
    tx.changed(kind, name, "updated")
    tracked(tx, kind, name, old.body, body, actor)
    return new


def tracked(tx: Transaction, kind: str, name: str, before: dict[str, Any] | None, after: dict[str, Any] | None, actor: str) -> None:
    """Tells the history of the configuration, if it is about this kind."""
    if kind in TRACKED:
        tx.units.append(Unit(kind, name, before, after))
        tx.actor = actor


def delete(tx: Transaction, kind: str, wanted: Mapping[str, int | None]) -> list[Resource]:
    """Deletes those of a kind with these names, each in the version that is given, if one is. Raises NotFound, VersionMismatch."""
    found: dict[str, Resource] = {}
    for some in portions(sorted(wanted), rows.MANY):
        known = [name for name in some if rows.storable(name)] if rows.storable(kind) else []
        found.update((row.name, record(row)) for row in tx.connection.execute(_LOCK_ALL, {"the_kind": kind, "names": known}))
    for name, version in wanted.items():
        if name not in found:
            raise rows.missing(kind, name)
        rows.check_version(found[name].version, version)
    for some in portions(tuple(wanted), rows.MANY):
        tx.connection.execute(_DELETE, {"the_kind": kind, "names": some})
    for name in wanted:
        tx.changed(kind, name, "deleted")
    return [found[name] for name in wanted]
