"""Rows of the model files that replicas share: what each model should be, and which replica has which.

A change of a model locks its row, so what was decided from the row is still true when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.modelshare import BUCKET, Copy, SharedFile, SharedModel, digest_of
from gateway.core.storage import Lease
from gateway.store import leases, rows
from gateway.store.database import Database
from gateway.store.tables import model_copies as copies
from gateway.store.tables import shared_models as table

KEPT_SECONDS: Final = 30 * 86400.0
"""How long a deleted model without copies, and the copies of an absent replica, are remembered."""
AWAY_SECONDS: Final = 300.0
"""A replica that has not said for so long that it is there is away. Each says it every minute."""
UNSAID: Final = 0.0
"""When a replica of an earlier release was seen, which runs on during an upgrade: it has written its copy, and says nothing of this."""


class StoredModelCopies:
    """now: the database's clock."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def every(self) -> dict[str, SharedModel]:
        """All of them, those that were deleted too, by name."""

        def read(connection: sa.Connection) -> dict[str, SharedModel]:
            held: dict[str, list[Copy]] = {}
            now = self._now(connection)
            for row in connection.execute(sa.select(copies).order_by(copies.c.replica)):
                away = UNSAID < row.seen < now - AWAY_SECONDS and not row.replica.startswith(BUCKET)
                copy = Copy(replica=row.replica, digest=row.digest, address=row.address, away=away, seen=row.seen)
                held.setdefault(row.name, []).append(copy)
            return {row.name: _model(row, held.get(row.name, ())) for row in connection.execute(sa.select(table))}

        return await self._database.run(read)

    async def publish(
        self, name: str, files: tuple[SharedFile, ...], replica: str, address: str, *, placed: bool, replaces: bool
    ) -> SharedModel:
        """Stores what a model is, and that the replica has it. Returns the model as the store has it afterwards, which may be another one
        of the same name that was there first. placed: a person added it, so that a deleted model exists again. replaces: it also replaces
        another one."""
        digest = digest_of(name, files)

        def write(connection: sa.Connection) -> SharedModel:
            found = self._locked(connection, name)
            free = found is None or (found.removed and placed)
            if free or (found is not None and not found.removed and found.digest != digest and replaces):
                values = {"digest": digest, "files": msgspec.to_builtins(files), "removed": False, "changed": self._now(connection)}
                revision = 1 if found is None else found.revision + 1
                put(connection, table, {"name": name}, {**values, "revision": revision})
            elif found is not None and (found.removed or found.digest != digest):
                return found
            self._note(connection, name, replica, digest, address)
            made = self._locked(connection, name)
            assert made is not None
            return made

        return await self._database.run(write, write=True)

    async def hold(self, name: str, digest: str, replica: str, address: str, lease: Lease | None = None) -> bool:
        """Notes that the replica has a copy, or is about to have one (no address). False: that is no longer what the model is to be.
        lease: under which it is written. Raises LeaseLost."""

        def write(connection: sa.Connection) -> bool:
            if lease is not None:
                leases.guard(connection, lease)
            found = self._locked(connection, name)
            if found is None or found.removed or found.digest != digest:
                return False
            self._note(connection, name, replica, digest, address)
            return True

        return await self._database.run(write, write=True)

    async def drop(self, name: str, replica: str, digest: str | None = None) -> None:
        """The replica has no copy any more. digest: unless it is another one."""
        where = [copies.c.name == name, copies.c.replica == replica, *([] if digest is None else [copies.c.digest == digest])]
        await self._database.run(lambda connection: connection.execute(sa.delete(copies).where(*where)), write=True)

    async def remove(self, name: str, replica: str) -> None:
        """It is to be nowhere any more; unless this replica's is another one than the others share."""

        def write(connection: sa.Connection) -> None:
            found = self._locked(connection, name)
            here = sa.select(copies.c.digest).where(copies.c.name == name, copies.c.replica == replica)
            if found is not None and not found.removed and connection.execute(here).scalar() == found.digest:
                self._removed(connection, found)

        await self._database.run(write, write=True)

    async def remove_elsewhere(self, name: str, digest: str) -> bool:
        """It is to be nowhere any more, as long as it is this one. False: it is not."""

        def write(connection: sa.Connection) -> bool:
            found = self._locked(connection, name)
            if found is None or found.removed or found.digest != digest:
                return False
            self._removed(connection, found)
            return True

        return await self._database.run(write, write=True)

    def _removed(self, connection: sa.Connection, found: SharedModel) -> None:
        values = {"removed": True, "revision": found.revision + 1, "changed": self._now(connection)}
        connection.execute(sa.update(table).where(table.c.name == found.name).values(**values))

    async def there(self, replica: str) -> None:
        """The replica is there, and what it said that it has is so."""

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.update(copies).where(copies.c.replica == replica).values(seen=self._now(connection)))

        await self._database.run(write, write=True)

    async def leave(self, replica: str, *, dry_run: bool = False) -> int | None:
        """Forgets the models of a replica that is away and returns how many; None: the replica is there. One that returns reports its
        models again."""

        def write(connection: sa.Connection) -> int | None:
            old = self._now(connection) - AWAY_SECONDS
            mine = copies.c.replica == replica
            there = sa.or_(copies.c.seen >= old, copies.c.seen == UNSAID)
            if connection.execute(sa.select(sa.func.count()).where(mine, there)).scalar():
                return None
            if dry_run:
                return int(connection.execute(sa.select(sa.func.count()).where(mine)).scalar_one())
            count = int(connection.execute(sa.delete(copies).where(mine, sa.not_(there))).rowcount)
            left = connection.execute(sa.select(sa.func.count()).where(mine)).scalar()
            return None if left else count  # it has come back meanwhile

        return await self._database.run(write, write=not dry_run)

    async def forget(self) -> None:
        """Deleted models that nobody has, and what replicas had that are away, after a time."""

        def write(connection: sa.Connection) -> None:
            now = self._now(connection)
            since = now - KEPT_SECONDS
            connection.execute(sa.update(copies).where(copies.c.seen == UNSAID).values(seen=now))
            connection.execute(sa.delete(copies).where(copies.c.seen < since, copies.c.replica.not_like(f"{BUCKET}%")))
            old = table.c.changed < since
            held = sa.select(copies.c.name)
            connection.execute(sa.delete(table).where(table.c.removed, old, table.c.name.not_in(held)))

        await self._database.run(write, write=True)

    def _note(self, connection: sa.Connection, name: str, replica: str, digest: str, address: str) -> None:
        values = {"digest": digest, "address": address, "seen": self._now(connection)}
        put(connection, copies, {"name": name, "replica": replica}, values)

    def _locked(self, connection: sa.Connection, name: str) -> SharedModel | None:
        rows.one_by_one(connection, f"shared model {name}")
        row = connection.execute(sa.select(table).where(table.c.name == name)).first()
        return None if row is None else _model(row, ())


def _model(row: Any, held: Sequence[Copy]) -> SharedModel:
    files = msgspec.convert(row.files, tuple[SharedFile, ...])
    return SharedModel(
        name=row.name, revision=row.revision, digest=row.digest, files=files, removed=row.removed, changed=row.changed, copies=tuple(held)
    )


def put(connection: sa.Connection, into: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(into).values(**key, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
