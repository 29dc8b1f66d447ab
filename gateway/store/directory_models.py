"""Rows of what the models in the directory that replicas share consist of: written by who adds one, compared by who loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gateway.core.modelshare import NotedModel, SharedFile
from gateway.store import rows
from gateway.store.database import Database
from gateway.store.model_copies import put
from gateway.store.tables import directory_models as table


class StoredDirectoryModels:
    """now: the database's clock."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def every(self, paths: Sequence[str] | None = None) -> dict[str, NotedModel]:
        """Those with these paths, or all."""
        chosen = sa.select(table) if paths is None else sa.select(table).where(table.c.path.in_(paths))

        def read(connection: sa.Connection) -> dict[str, NotedModel]:
            return {row.path: _noted(row) for row in connection.execute(chosen)}

        return await self._database.run(read)

    async def adding(self, path: str, files: tuple[SharedFile, ...], replica: str) -> None:
        """It is about to be there; what was there before stays right until `added`."""

        def write(connection: sa.Connection) -> None:
            rows.one_by_one(connection, f"model of the directory {path}")
            before = connection.execute(sa.select(table.c.files).where(table.c.path == path)).scalar()
            values = {"files": msgspec.to_builtins(files), "earlier": before, "replica": replica, "noted": self._now(connection)}
            put(connection, table, {"path": path}, values)

        await self._database.run(write, write=True)

    async def added(self, path: str) -> None:
        """It is there."""
        statement = sa.update(table).where(table.c.path == path).values(earlier=None)
        await self._database.run(lambda connection: connection.execute(statement), write=True)

    async def kept(self, path: str) -> None:
        """It did not come to be there, so what was there before still is."""

        def write(connection: sa.Connection) -> None:
            rows.one_by_one(connection, f"model of the directory {path}")
            connection.execute(sa.delete(table).where(table.c.path == path, table.c.earlier.is_(None)))
            connection.execute(sa.update(table).where(table.c.path == path).values(files=table.c.earlier, earlier=None))

        await self._database.run(write, write=True)

    async def seen(self, path: str, files: tuple[SharedFile, ...], replica: str) -> None:
        """It was there, and nobody has noted it; unless somebody has meanwhile."""

        def write(connection: sa.Connection) -> None:
            rows.one_by_one(connection, f"model of the directory {path}")
            if connection.execute(sa.select(table.c.path).where(table.c.path == path)).first() is None:
                values = {"files": msgspec.to_builtins(files), "earlier": None, "replica": replica, "noted": self._now(connection)}
                connection.execute(sa.insert(table).values(path=path, **values))

        await self._database.run(write, write=True)

    async def removed(self, paths: Iterable[str]) -> None:
        """They are not there any more, nor what was in them."""
        gone = [one for path in paths for one in (table.c.path == path, table.c.path.startswith(f"{path}/", autoescape=True))]
        statement = sa.delete(table).where(sa.or_(sa.false(), *gone))
        await self._database.run(lambda connection: connection.execute(statement), write=True)


def _noted(row: Any) -> NotedModel:
    found = (row.files, row.earlier)
    return NotedModel(path=row.path, versions=tuple(msgspec.convert(one, tuple[SharedFile, ...]) for one in found if one is not None))
