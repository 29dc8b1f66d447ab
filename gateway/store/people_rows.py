"""Statements on users, groups and logins: what the data plane asks about a caller, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.errors import NotFound
from gateway.core.people import LoginRecord, PersonRecord, Seen, full_name, rules_of
from gateway.core.storage import Page, Resource
from gateway.store import resources, rows
from gateway.store.rows import Transaction
from gateway.store.tables import keys, logins
from gateway.store.tables import resources as kept

ACTOR = "login"
"""Who has made a user at the first login."""
_MANY = 500
"""Names in one statement."""
_NAMED = sa.select(kept.c.name, kept.c.body).where(
    kept.c.kind == sa.bindparam("the_kind"), kept.c.name.in_(sa.bindparam("names", expanding=True))
)
_USERS = (
    sa.select(kept.c.name)
    .where(kept.c.kind == "users", kept.c.name.in_(sa.bindparam("names", expanding=True)))
    .order_by(kept.c.name)
    .with_for_update(read=True, key_share=True)
)
_LOGINS = sa.select(logins).where(logins.c.id.in_(sa.bindparam("ids", expanding=True)))
_COUNT = sa.select(sa.func.count()).select_from(kept).where(kept.c.kind == "users")
_FORGET = sa.delete(logins).where(logins.c.id == sa.bindparam("the_id"))


def find(connection: sa.Connection, tenant: str, user: str, groups: Sequence[str]) -> PersonRecord:
    found = _body(connection, "tenants", tenant)
    models = None if found is None else tuple(found.body.get("models", ()))
    networks = () if found is None else tuple(found.body.get("networks", ()))
    if not user and not groups:
        return PersonRecord(models=models, networks=networks)
    id = full_name(user, tenant)
    here = _body(connection, "users", id) if id else None
    login = every(connection, [id]).get(id) if here is not None else None
    assigned = () if here is None else tuple(here.body.get("groups", ()))
    said = () if login is None else login.groups
    return PersonRecord(
        models=models,
        networks=networks,
        made=None if here is None else here.created,
        groups=assigned,
        roles=() if here is None else tuple(here.body.get("roles", ())),
        login_groups=said,
        login_roles=() if login is None else login.roles,
        last_login=None if login is None else login.last,
        rules=_rules(connection, tenant, {*groups, *assigned, *said}),
    )


def _body(connection: sa.Connection, kind: str, name: str) -> Resource | None:
    try:
        return resources.get(connection, kind, name)
    except NotFound:
        return None


def _rules(connection: sa.Connection, tenant: str, groups: set[str]) -> dict[str, Any]:
    names = {id: group for group in sorted(groups) if (id := full_name(group, tenant))}
    found = {}
    ids = list(names)
    for start in range(0, len(ids), _MANY):
        for row in connection.execute(_NAMED, {"the_kind": "groups", "names": ids[start : start + _MANY]}):
            found[names[row.name]] = rules_of(row.body)
    return found


def every(connection: sa.Connection, ids: Sequence[str]) -> dict[str, LoginRecord]:
    """The logins of these users."""
    found = {}
    for start in range(0, len(ids), _MANY):
        for row in connection.execute(_LOGINS, {"ids": list(ids[start : start + _MANY])}):
            found[row.id] = LoginRecord(
                id=row.id,
                method=row.method,
                issuer=row.issuer,
                groups=tuple(row.groups),
                roles=tuple(row.roles),
                first=row.first,
                last=row.last,
            )
    return found


def note(tx: Transaction, seen: Sequence[Seen], limit: int) -> int:
    """See ControlStore.note_logins. Always in the same order, so that two replicas that note the same users cannot deadlock."""
    by_id = {id: one for one in seen if (id := full_name(one.user, one.tenant)) and _storable(one)}
    ids = sorted(by_id)
    there = _users(tx.connection, ids)
    made, noted, room = 0, [], 0
    if len(there) < len(ids):
        rows.one_by_one(tx.connection, "first logins")
        there = _users(tx.connection, ids)  # another replica may have made some of them meanwhile
        room = limit - int(tx.connection.execute(_COUNT).scalar_one())
    before = every(tx.connection, ids)
    for id in ids:
        if id not in there:
            if room <= 0:
                continue
            room, made = room - 1, made + 1
            resources.create(tx, "users", id, {"source": by_id[id].method}, by_id[id].tenant, ACTOR)
        known = before.get(id)
        if known is not None and by_id[id].time < known.last:
            continue  # an older login does not bring back what it said
        noted.append(_row(id, by_id[id], known))
        if known is None or (known.groups, known.roles) != (by_id[id].groups, by_id[id].roles):
            tx.changed("logins", id, "updated")
    if noted:
        _upsert(tx.connection, noted)
    return made


def _users(connection: sa.Connection, ids: list[str]) -> set[str]:
    """Those of these that there are. None of them is deleted until this transaction ends: its login would be left for the next of its
    name."""
    return {row.name for start in range(0, len(ids), _MANY) for row in connection.execute(_USERS, {"names": ids[start : start + _MANY]})}


def _storable(seen: Seen) -> bool:
    return all(rows.storable(text) for text in (seen.method, seen.issuer, *seen.groups, *seen.roles))


def _row(id: str, seen: Seen, known: LoginRecord | None) -> dict[str, Any]:
    return {
        "id": id,
        "method": seen.method,
        "issuer": seen.issuer,
        "groups": list(seen.groups),
        "roles": list(seen.roles),
        "first": seen.time if known is None else min(known.first, seen.time),
        "last": seen.time if known is None else max(known.last, seen.time),
    }


def _upsert(connection: sa.Connection, values: list[dict[str, Any]]) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(logins)
    fresh = {name: statement.excluded[name] for name in ("method", "issuer", "groups", "roles", "first", "last")}
    newer = statement.excluded["last"] >= logins.c.last  # than what another replica may have noted meanwhile
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=fresh, where=newer), values)


def forget(tx: Transaction, id: str, tenant: str, user: str, actor: str) -> None:
    """A user is deleted: nobody who gets the name later inherits the logins or the keys."""
    tx.connection.execute(_FORGET, {"the_id": id})
    mine = sa.and_(keys.c.tenant == tenant, keys.c.user == user, keys.c.revoked.is_(None))
    for row in tx.connection.execute(sa.select(keys.c.id).where(mine).order_by(keys.c.id)).all():
        tx.connection.execute(
            sa.update(keys).where(keys.c.id == row.id).values(revoked=tx.now, version=keys.c.version + 1, updated=tx.now, actor=actor)
        )
        tx.changed("keys", row.id, "revoked")


def members(connection: sa.Connection, tenant: str, group: str, limit: int, cursor: str | None) -> Page[Resource]:
    """Users of a tenant whose `groups` name the group, by name."""
    quoted = sa.cast(kept.c.body, sa.Text).contains(json.dumps(group), autoescape=True)
    here = sa.and_(kept.c.kind == "users", kept.c.tenant == tenant, quoted, rows.after(kept.c.name, cursor))
    query = sa.select(kept).where(here).order_by(kept.c.name).limit(rows.page_size(limit) + 1)
    found = [resources.record(row) for row in connection.execute(query)]
    wanted = tuple(one for one in found[:limit] if group in one.body.get("groups", ()))
    return Page(wanted, rows.cursor_after(found[limit - 1].name) if len(found) > limit else None)
