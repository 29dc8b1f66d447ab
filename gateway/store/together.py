"""Writes of several kinds in one transaction, and deletions. What a write needs, and what a deletion leaves behind, is looked at when
all of it is written, so that a role can go with its bindings, and a binding come with its role.

Who names something holds it until the transaction ends, and who deletes it has locked it: of two transactions that would do both, one waits
for the other and then finds the name gone, or in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.core.errors import VersionMismatch
from gateway.core.people import parts
from gateway.core.storage import KeyWrite, Removal, Resource, Write
from gateway.store import key_rows, people_rows, resources
from gateway.store.rows import Transaction

SHOWN_KEYS: Final = 5
"""Keys that an error names."""


def write(
    tx: Transaction, writes: Sequence[tuple[Write, dict[str, Any]]], removals: Sequence[Removal], keys: Sequence[KeyWrite], actor: str
) -> list[Resource]:
    """See ControlStore.write_all. writes: each with its body as it is kept."""
    done = []
    for one, body in writes:
        if one.version is None:
            done.append(resources.create(tx, one.kind, one.name, body, one.tenant, actor))
        else:
            done.append(resources.update(tx, one.kind, one.name, body, one.version, one.tenant, actor))
    for key in keys:
        key_rows.update(tx, key.id, key.settings, key.version, actor)
    for removal in removals:
        if removal.kind == "keys":
            key_rows.delete(tx, removal.name, removal.version)
        else:
            remove(tx, removal.kind, removal.name, removal.version, actor)
    for one, _ in writes:
        resources.need(tx.connection, one.needs)
    for removal in removals:
        unused(tx, removal.kind, removal.name)
    return done


def remove(tx: Transaction, kind: str, name: str, version: int | None, actor: str) -> Resource:
    """Deletes a resource and what goes with it."""
    gone = resources.delete(tx, kind, name, version)
    resources.tracked(tx, kind, name, gone.body, None, actor)
    if kind == "users":
        people_rows.forget(tx, name, gone.tenant, parts(name)[0], actor)
    return gone


def unused(tx: Transaction, kind: str, name: str) -> None:
    """Raises VersionMismatch (409 `in_use`) if something still names what was deleted."""
    if kind == "roles":
        resources.unbound(tx.connection, name)
    elif kind == "limits" and (naming := key_rows.naming(tx.connection, name)):
        raise limit_in_use(name, naming)


def limit_in_use(limit: str, keys: Sequence[str]) -> VersionMismatch:
    """Deleting the limit would make the data plane refuse these keys (policies.limits)."""
    named = ", ".join(keys[:SHOWN_KEYS]) + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")
    return VersionMismatch(f"Keys still name the limit {limit!r}: {named}. Change them first.", code="in_use", status=409, param="name")
