"""Rows of the model files that replicas share: what each model is to be, and which replica has which.

Whoever changes a model waits for whoever changes the same one: what is decided from a row holds until it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.modelshare import Copy, SharedFile, SharedModel, digest_of
from gateway.store import rows
from gateway.store.database import Database
from gateway.store.tables import model_copies as copies
from gateway.store.tables import shared_models as table

KEPT_SECONDS: Final = 30 * 86400.0
"""For which a deleted model is remembered that no replica had a copy of any more."""


class StoredModelCopies:
    """now: the database's clock."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def every(self) -> dict[str, SharedModel]:
        """All of them, those that were deleted too, by name."""

        def read(connection: sa.Connection) -> dict[str, SharedModel]:
            held: dict[str, list[Copy]] = {}
            for row in connection.execute(sa.select(copies).order_by(copies.c.replica)):
                held.setdefault(row.name, []).append(Copy(replica=row.replica, digest=row.digest, address=row.address))
            return {row.name: _model(row, held.get(row.name, ())) for row in connection.execute(sa.select(table))}

        return await self._database.run(read)

    async def publish(
        self, name: str, files: tuple[SharedFile, ...], replica: str, address: str, *, placed: bool, replaces: bool
    ) -> SharedModel:
        """Says what a model is, and that the replica has it: the model as it is in the store afterwards, which is another one's where
        that was there first. placed: by a person, so that one that was deleted is there again. replaces: another one, too."""
        digest = digest_of(name, files)

        def write(connection: sa.Connection) -> SharedModel:
            found = self._locked(connection, name)
            free = found is None or (found.removed and placed)
            if free or (found is not None and not found.removed and found.digest != digest and replaces):
                values = {"digest": digest, "files": msgspec.to_builtins(files), "removed": False, "changed": self._now(connection)}
                revision = 1 if found is None else found.revision + 1
                _put(connection, table, {"name": name}, {**values, "revision": revision})
            elif found is not None and (found.removed or found.digest != digest):
                return found
            _put(connection, copies, {"name": name, "replica": replica}, {"digest": digest, "address": address})
            made = self._locked(connection, name)
            assert made is not None
            return made

        return await self._database.run(write, write=True)

    async def hold(self, name: str, digest: str, replica: str, address: str) -> bool:
        """Notes that the replica has a copy, or is about to have one (no address). False: that is no longer what the model is to be."""

        def write(connection: sa.Connection) -> bool:
            found = self._locked(connection, name)
            if found is None or found.removed or found.digest != digest:
                return False
            _put(connection, copies, {"name": name, "replica": replica}, {"digest": digest, "address": address})
            return True

        return await self._database.run(write, write=True)

    async def drop(self, name: str, replica: str) -> None:
        """The replica has no copy any more."""
        where = (copies.c.name == name, copies.c.replica == replica)
        await self._database.run(lambda connection: connection.execute(sa.delete(copies).where(*where)), write=True)

    async def remove(self, name: str, replica: str) -> None:
        """It is to be nowhere any more; unless this replica's is another one than the others share."""

        def write(connection: sa.Connection) -> None:
            found = self._locked(connection, name)
            here = sa.select(copies.c.digest).where(copies.c.name == name, copies.c.replica == replica)
            if found is not None and not found.removed and connection.execute(here).scalar() == found.digest:
                values = {"removed": True, "revision": found.revision + 1, "changed": self._now(connection)}
                connection.execute(sa.update(table).where(table.c.name == name).values(**values))

        await self._database.run(write, write=True)

    async def forget(self) -> None:
        """Deleted models that nobody has, after a time."""

        def write(connection: sa.Connection) -> None:
            old = table.c.changed < self._now(connection) - KEPT_SECONDS
            held = sa.select(copies.c.name)
            connection.execute(sa.delete(table).where(table.c.removed, old, table.c.name.not_in(held)))

        await self._database.run(write, write=True)

    def _locked(self, connection: sa.Connection, name: str) -> SharedModel | None:
        rows.one_by_one(connection, f"shared model {name}")
        row = connection.execute(sa.select(table).where(table.c.name == name)).first()
        return None if row is None else _model(row, ())


def _model(row: Any, held: Sequence[Copy]) -> SharedModel:
    files = msgspec.convert(row.files, tuple[SharedFile, ...])
    return SharedModel(
        name=row.name, revision=row.revision, digest=row.digest, files=files, removed=row.removed, changed=row.changed, copies=tuple(held)
    )


def _put(connection: sa.Connection, into: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(into).values(**key, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
