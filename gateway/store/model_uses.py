"""Rows of who uses which models of the directory that replicas share, and which directory that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.store.database import Database
from gateway.store.model_copies import put
from gateway.store.tables import facts
from gateway.store.tables import model_uses as table

DIRECTORY: Final = "model_directory"


class Use(msgspec.Struct, frozen=True, array_like=True):
    """path: of the model in the directory. since: when the replica first said so, by the database's clock."""

    engine: str
    path: str
    since: float


class ReplicaUses(msgspec.Struct, frozen=True):
    """seen: when the replica last said that this is so."""

    replica: str
    uses: tuple[Use, ...]
    seen: float


class Uses(msgspec.Struct, frozen=True):
    """now: the database's clock."""

    now: float
    replicas: tuple[ReplicaUses, ...]


class StoredModelUses:
    """now: the database's clock."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def every(self) -> Uses:
        return await self._database.run(self._every)

    async def tell(self, replica: str, holder: str, used: Iterable[tuple[str, str]]) -> Uses:
        """Writes what a replica uses, as (engine, path), and returns what all do. holder: its process."""

        def write(connection: sa.Connection) -> Uses:
            before = next((one.uses for one in self._every(connection).replicas if one.replica == replica), ())
            since = {(use.engine, use.path): use.since for use in before}
            now = self._now(connection)
            uses = [Use(engine, path, since.get((engine, path), now)) for engine, path in used]
            put(connection, table, {"replica": replica}, {"holder": holder, "uses": msgspec.to_builtins(uses), "seen": now})
            return self._every(connection)

        return await self._database.run(write, write=True)

    async def leave(self, replica: str, holder: str) -> None:
        """The replica has ended, unless another process of it tells already."""
        mine = (table.c.replica == replica, table.c.holder == holder)
        await self._database.run(lambda connection: connection.execute(sa.delete(table).where(*mine)), write=True)

    async def forget(self, seconds: float) -> None:
        """Replicas that have said nothing for so long."""

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.delete(table).where(table.c.seen < self._now(connection) - seconds))

        await self._database.run(write, write=True)

    async def directory(self, mark: str | None = None) -> str | None:
        """By what the directory is known that the replicas share; with `mark`, by that from now on if it was not known."""

        def read(connection: sa.Connection) -> str | None:
            if mark is not None:
                insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
                connection.execute(insert(facts).values(name=DIRECTORY, value=mark).on_conflict_do_nothing())
            return connection.execute(sa.select(facts.c.value).where(facts.c.name == DIRECTORY)).scalar()

        return await self._database.run(read, write=mark is not None)

    def _every(self, connection: sa.Connection) -> Uses:
        rows = connection.execute(sa.select(table).order_by(table.c.replica))
        found = tuple(ReplicaUses(row.replica, msgspec.convert(row.uses, tuple[Use, ...]), row.seen) for row in rows)
        return Uses(self._now(connection), found)
