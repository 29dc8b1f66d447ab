"""Resources of several kinds in one transaction: read as they were at one moment, or written and deleted together. References are checked
after everything is written, so a role can be deleted with its bindings, and a binding created with its role.

A transaction that refers to a resource locks it until it ends, as one that deletes it does. If two transactions do both, one waits for the
other and then finds the name gone, or in use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from gateway.core.errors import VersionMismatch
from gateway.core.people import parts
from gateway.core.storage import KeyRecord, KeyWrite, Page, Removal, Resource, Write
from gateway.store import change_rows, erasure, key_rows, people_rows, resources, rows
from gateway.store.rows import Transaction

SHOWN_KEYS: Final = 5
"""Keys that an error names."""
PAGE: Final = 1000
SECONDS: Final = 60.0
"""The deadline for reading everything of some kinds, which may be ten thousand of each. Readers block nobody."""
WRITE_SECONDS: Final = 0.005
"""Added to the deadline of a write for each resource that it stores or deletes."""
T = TypeVar("T")


def read(
    connection: sa.Connection, kinds: Sequence[str], keys: Collection[str] | None, most: int, now: float
) -> tuple[dict[str, tuple[Resource, ...]], tuple[KeyRecord, ...]]:
    """See ControlStore.everything. Keys in use are active and no user's own; those that have ended stay for ever, and may be very many."""
    rows.at_one_moment(connection)

    def of(kind: str) -> tuple[Resource, ...]:
        return _all(most, lambda cursor: resources.page(connection, kind, None, "", PAGE, cursor))

    def of_keys(named: Collection[str]) -> tuple[KeyRecord, ...]:
        active = _all(most, lambda cursor: key_rows.page(connection, None, "", "active", "", now, PAGE, cursor))
        return *active, *key_rows.those(connection, sorted(set(named).difference(key.id for key in active)))

    return {kind: of(kind) for kind in kinds}, () if keys is None else of_keys(keys)


def _all(most: int, page: Callable[[str | None], Page[T]]) -> tuple[T, ...]:
    """Every page, until there are more than `most`."""
    found: list[T] = []
    cursor: str | None = None
    while True:
        here = page(cursor)
        found += here.items
        cursor = here.cursor
        if cursor is None or len(found) > most:
            return tuple(found)


def write(
    tx: Transaction,
    writes: Sequence[tuple[Write, dict[str, Any]]],
    removals: Sequence[Removal],
    keys: Sequence[KeyWrite],
    actor: str,
    since: tuple[int, Sequence[str]] | None = None,
) -> list[Resource]:
    """See ControlStore.write_all. writes: each with its body as it is kept."""
    if since is not None:
        change_rows.unchanged(tx.connection, since)
    done = []
    for one, body in writes:
        if one.version is None:
            done.append(resources.create(tx, one.kind, one.name, body, one.tenant, actor))
        else:
            done.append(resources.update(tx, one.kind, one.name, body, one.version, one.tenant, actor))
    for key in keys:
        key_rows.update(tx, key.id, key.settings, key.version, actor)
    by_kind: dict[str, dict[str, int | None]] = {}
    for removal in removals:
        by_kind.setdefault(removal.kind, {})[removal.name] = removal.version
    for kind, wanted in by_kind.items():
        if kind == "keys":
            key_rows.delete(tx, wanted)
        else:
            remove(tx, kind, wanted, actor)
    for one, _ in writes:
        resources.need(tx.connection, one.needs)
    for kind, wanted in by_kind.items():
        unused(tx, kind, tuple(wanted))
    return done


def remove(tx: Transaction, kind: str, wanted: Mapping[str, int | None], actor: str) -> list[Resource]:
    """Deletes resources of a kind, each in the version that is given, if one is, and what goes with them."""
    gone = resources.delete(tx, kind, wanted)
    for one in gone:
        resources.tracked(tx, kind, one.name, one.body, None, actor)
    if kind == "users":
        for one in gone:
            people_rows.forget(tx, one.name, one.tenant, parts(one.name)[0], actor)
        erasure.forget_callers(tx, "user", [(one.tenant, parts(one.name)[0]) for one in gone])
    elif kind == "tenants":
        erasure.forget(tx, [one.name for one in gone])
    return gone


def unused(tx: Transaction, kind: str, names: Sequence[str]) -> None:
    """Raises VersionMismatch (409 `in_use`) if something still refers to, or belongs to, one of these deleted resources."""
    if kind == "roles":
        resources.unbound(tx.connection, names)
    elif kind == "limits" and (naming := key_rows.naming(tx.connection, frozenset(names))):
        limit = next(name for name in names if name in naming)
        raise limit_in_use(limit, naming[limit])
    elif kind == "tenants":
        erasure.unused(tx.connection, names)


def limit_in_use(limit: str, keys: Sequence[str]) -> VersionMismatch:
    """Deleting the limit would make the data plane refuse these keys (policies.limits)."""
    named = ", ".join(keys[:SHOWN_KEYS]) + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")
    return VersionMismatch(f"Keys still name the limit {limit!r}: {named}. Change them first.", code="in_use", status=409, param="name")
