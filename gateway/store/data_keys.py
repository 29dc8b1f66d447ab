"""Data keys of the audit log's encryption, wrapped by a master key. What wraps and opens them is gateway.app.audit.vault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.core.errors import AlreadyExists, StoreUnavailable, VersionMismatch
from gateway.core.vault import DataKeyRow
from gateway.store import rows
from gateway.store.database import Database
from gateway.store.rows import Transaction
from gateway.store.tables import audit_keys as table

KIND: Final = "audit-keys"
"""The kind of the numbered changes, whose name is the tenant's."""
MOST: Final = 100_000
"""Rows that are read at once."""
Write = Callable[[Callable[[Transaction], Any]], Awaitable[Any]]


class StoredDataKeys:
    """write: one numbered write of the store."""

    def __init__(self, database: Database, write: Write, entropy: Entropy) -> None:
        self._database, self._write, self._entropy = database, write, entropy

    async def current(self, tenant: str) -> DataKeyRow | None:
        """The key that encrypts for a tenant."""
        found = await self._read(table.c.tenant == tenant, table.c.state == "active")
        return found[0] if found else None

    async def every(self, tenants: Sequence[str] | None = None) -> list[DataKeyRow]:
        """All rows, by tenant and version."""
        return await self._read(rows.of_tenants(table.c.tenant, tenants))

    async def get(self, id: str) -> DataKeyRow:
        """Raises NotFound."""
        found = await self._read(table.c.id == id[:64]) if rows.storable(id) else []
        if not found:
            raise rows.missing("data keys", id[:64])
        return found[0]

    async def _read(self, *where: Any) -> list[DataKeyRow]:
        query = sa.select(table).where(*where).order_by(table.c.tenant, table.c.version).limit(MOST)
        return await self._database.run(lambda connection: [_row(one) for one in connection.execute(query)])

    async def add(self, wanted: DataKeyRow, replaces: str | None) -> DataKeyRow:
        """Adds a tenant's active key; the one before (`replaces`: its id) is retired. Raises AlreadyExists when another process was
        faster: then nothing has changed."""

        def insert(tx: Transaction) -> DataKeyRow:
            connection = tx.connection
            _alone(connection, wanted.tenant)
            retire = sa.update(table).where(table.c.tenant == wanted.tenant, table.c.state == "active")
            if replaces is not None:
                gone = connection.execute(retire.where(table.c.id == replaces).values(state="retired", ended=tx.now)).rowcount
                if gone != 1:
                    raise AlreadyExists("Another process has rotated this tenant's data key.")
            elif connection.execute(sa.select(table.c.id).where(table.c.tenant == wanted.tenant, table.c.state == "active")).first():
                raise AlreadyExists("The tenant has a data key already.")
            values = {name: getattr(wanted, name) for name in DataKeyRow.__struct_fields__} | {"created": tx.now}
            connection.execute(sa.insert(table).values(**values))
            tx.changed(KIND, wanted.tenant, "created" if replaces is None else "rotated")
            return _row(connection.execute(sa.select(table).where(table.c.id == wanted.id)).one())

        try:
            made: DataKeyRow = await self._write(insert)
        except sa.exc.IntegrityError:
            raise AlreadyExists("Another process has made this tenant's data key.") from None
        return made

    async def rewrap(self, id: str, before: str, wrapped: str, master: str) -> bool:
        """Exchanges how a key is wrapped, if it still is as before."""

        def change(connection: sa.Connection) -> bool:
            found = sa.update(table).where(table.c.id == id, table.c.wrapped == before, table.c.state != "shredded")
            return connection.execute(found.values(wrapped=wrapped, master=master)).rowcount == 1

        return await self._database.run(change, write=True)

    async def shred(
        self, tenant: str, ids: Sequence[str] | None, note: Callable[[Sequence[str]], None] = lambda ids: None
    ) -> list[DataKeyRow]:
        """Destroys all keys of a tenant: each is overwritten, then erased. ids: those that are meant; VersionMismatch if there are others
        by now. note: called in a thread with the ids before anything is destroyed; if it raises, nothing is. Returns the rows that
        were destroyed."""

        def destroy(tx: Transaction) -> list[DataKeyRow]:
            connection = tx.connection
            _alone(connection, tenant)
            if connection.dialect.name == "sqlite":
                connection.execute(sa.text("PRAGMA secure_delete=ON")).close()
            chosen = sa.select(table).where(table.c.tenant == tenant, table.c.state != "shredded").order_by(table.c.version)
            if connection.dialect.name == "postgresql":
                chosen = chosen.with_for_update()
            found = [_row(one) for one in connection.execute(chosen)]
            if ids is not None and [one.id for one in found] != list(ids):
                raise VersionMismatch("The tenant has other keys by now: look again.", status=409, code="plan_changed", param="confirm")
            note([one.id for one in found])
            for one in found:
                noise = self._entropy.bytes(len(one.wrapped)).hex()[: len(one.wrapped)]
                mine = sa.update(table).where(table.c.id == one.id)
                connection.execute(mine.values(wrapped=noise))
                connection.execute(mine.values(wrapped="", state="shredded", ended=tx.now))
            if found:
                tx.changed(KIND, tenant, "shredded")
            return found

        gone: list[DataKeyRow] = await self._write(destroy)
        await asyncio.to_thread(self._settle)
        return gone

    def _settle(self) -> None:
        """Brings what SQLite keeps beside its file into it, and empties that: it has the rows as they were."""
        if self._database.engine.dialect.name != "sqlite":
            return
        with self._database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)")).close()


def _alone(connection: sa.Connection, tenant: str) -> None:
    """A key that is made while the tenant's are destroyed is either among them, or made afterwards."""
    rows.one_by_one(connection, f"data keys of {tenant}")


def read_data_keys(engine: sa.Engine) -> list[DataKeyRow]:
    """All of a store whose gateway may be away. Blocks; raises StoreUnavailable."""
    try:
        with engine.connect() as connection:
            return [_row(one) for one in connection.execute(sa.select(table).limit(MOST))]
    except sa.exc.SQLAlchemyError as error:
        raise StoreUnavailable(f"the data keys cannot be read from the store: {type(error).__name__}") from None


def _row(found: Any) -> DataKeyRow:
    return DataKeyRow(**{name: getattr(found, name) for name in DataKeyRow.__struct_fields__})
