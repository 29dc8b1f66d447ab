"""Rows of clients' files. Ids begin with the moment, so that their order is that of the files.

The few that have data labels have them in a row of the table of resources beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from gateway.core.batches import FILE_PREFIX, OVER, FileRecord
from gateway.core.errors import NotFound, QuotaExceeded, RequestError
from gateway.core.slices import portions
from gateway.store import rows, tombstones
from gateway.store.database import Database
from gateway.store.tables import batches, resources
from gateway.store.tables import files as table

LABELS: Final = "file-labels"
"""The kind of these rows."""
_FIELDS: Final = tuple(column.name for column in table.columns)


class StoredFiles:
    """now: the database's clock. tenant: None for any. caller: whose alone (gateway.core.conversations.owner_of); None for anybody's."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def add(self, record: FileRecord, keep: float, began: float, most: int, most_bytes: int) -> FileRecord:
        """Raises QuotaExceeded where the tenant would have more than `most` files, or more than `most_bytes`; PermissionDenied where it, or
        the caller, was deleted since the upload began (time.perf_counter)."""

        def insert(connection: sa.Connection) -> FileRecord:
            # In the order in which a tenant's deletion takes these locks: otherwise each could wait for the other.
            tombstones.check(connection, self._now(connection), began, record.tenant, record.caller)
            rows.one_by_one(connection, f"files of {record.tenant}")
            check(connection, record.tenant, record.size, most, most_bytes)
            return put(connection, self._now(connection), record, keep)

        return await self._database.run(insert, write=True)

    async def room(self, tenant: str, most: int, most_bytes: int) -> None:
        """Raises QuotaExceeded where there is none for one more byte."""
        await self._database.run(lambda connection: check(connection, tenant, 1, most, most_bytes))

    async def get(self, tenant: str | None, id: str, caller: str | None = None) -> FileRecord:
        """Raises NotFound, also for one that has expired."""

        def read(connection: sa.Connection) -> FileRecord:
            return get(connection, tenant, id, self._now(connection), caller)

        return await self._database.run(read)

    async def page(
        self,
        tenant: str | Sequence[str] | None,
        limit: int,
        after: str | None,
        newest: bool,
        purpose: str | None,
        caller: str | None = None,
    ) -> tuple[list[FileRecord], bool]:
        def read(connection: sa.Connection) -> tuple[list[FileRecord], bool]:
            where = [
                rows.of_tenants(table.c.tenant, tenant),
                rows.of_caller(table.c.caller, caller),
                table.c.expires > self._now(connection),
            ]
            if purpose is not None:
                where.append(table.c.purpose == purpose if rows.storable(purpose) else sa.false())
            if after is not None:
                place = rows.placed(after, FILE_PREFIX, "file")
                where.append(table.c.id < place if newest else table.c.id > place)
            order = table.c.id.desc() if newest else table.c.id
            found = [_record(row) for row in connection.execute(sa.select(table).where(*where).order_by(order).limit(limit + 1))]
            return found[:limit], len(found) > limit

        return await self._database.run(read)

    async def delete(self, tenant: str | None, id: str, caller: str | None = None, *, dry_run: bool = False) -> FileRecord:
        """Raises NotFound; RequestError for the input of a batch that is not over."""

        def remove(connection: sa.Connection) -> FileRecord:
            rows.one_by_one(connection, f"batches of {get(connection, tenant, id, 0.0, caller).tenant}")
            found = get(connection, tenant, id, 0.0, caller)  # who waited for another deletion finds nothing any more
            used = sa.select(batches.c.id).where(batches.c.input == found.id, batches.c.state.not_in(OVER)).limit(1)
            if (batch := connection.execute(used).scalar()) is not None:
                raise RequestError(
                    f"The file is the input of {batch}, which is not over: cancel the batch first.", code="file_in_use", status=409
                )
            if not dry_run:
                drop(connection, [found.id])
            return found

        return await self._database.run(remove, write=True)

    async def expire(self, most: int = 100) -> list[FileRecord]:
        """Forgets files that are over, but for the input of a batch that is not. Of replicas that do so at once, one returns each."""

        def remove(connection: sa.Connection) -> list[FileRecord]:
            used = sa.select(batches.c.input).where(batches.c.state.not_in(OVER))
            over = (table.c.expires <= self._now(connection), table.c.id.not_in(used))
            tenants = sorted(set(connection.scalars(sa.select(table.c.tenant).where(*over).limit(most))))
            if not tenants:
                return []
            rows.all_one_by_one(connection, [f"batches of {tenant}" for tenant in tenants])  # what one is made of now is not over
            chosen = sa.select(table).where(*over, table.c.tenant.in_(tenants)).limit(most)
            found = [_record(row) for row in connection.execute(chosen)]
            drop(connection, [one.id for one in found])
            return found

        return await self._database.run(remove, write=True)

    async def known(self, ids: Collection[str]) -> set[str]:
        """Which of these there are."""
        query = sa.select(table.c.id).where(table.c.id.in_(list(ids)))
        return await self._database.run(lambda connection: set(connection.scalars(query)))

    async def totals(self) -> tuple[int, int]:
        """How many there are, and their bytes."""

        def read(connection: sa.Connection) -> tuple[int, int]:
            count, size = connection.execute(sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.size), 0))).one()
            return int(count), int(size)

        return await self._database.run(read)


def check(connection: sa.Connection, tenant: str, size: int, most: int, most_bytes: int) -> None:
    sums = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.size), 0)).where(table.c.tenant == tenant)
    count, kept = connection.execute(sums).one()
    if count >= most:
        raise QuotaExceeded(f"The tenant has {count} files, and may have {most}: delete some.", code="file_quota_exceeded")
    if kept + size > most_bytes:
        raise QuotaExceeded(f"The tenant's files have {kept} bytes, and may have {most_bytes}: delete some.", code="file_quota_exceeded")


def put(connection: sa.Connection, now: float, record: FileRecord, keep: float) -> FileRecord:
    made = msgspec.structs.replace(record, created=now, expires=now + keep)
    connection.execute(sa.insert(table).values({name: getattr(made, name) for name in _FIELDS}))
    if made.labels:
        row = {"kind": LABELS, "name": made.id, "tenant": made.tenant, "version": 1, "body": {"labels": list(made.labels)}}
        connection.execute(sa.insert(resources).values(**row, created=now, updated=now, actor=made.owner))
    return made


def drop(connection: sa.Connection, ids: Sequence[str]) -> None:
    connection.execute(sa.delete(table).where(table.c.id.in_(ids)))
    connection.execute(sa.delete(resources).where(resources.c.kind == LABELS, resources.c.name.in_(ids)))


def disowned(connection: sa.Connection, owners: Mapping[str, Sequence[str]]) -> None:
    """Files and batches of these callers, by tenant, are nobody's from now on: whoever gets such a name next does not reach them. Most
    tenants have none: they are asked first, all at once."""
    for kind in (batches, table):  # a batch that ends now gives its results to its caller: its row is waited for before they are looked for
        for some in portions(tuple(owners), rows.MANY):
            having = connection.scalars(sa.select(kind.c.tenant).where(kind.c.tenant.in_(some)).distinct()).all()
            for tenant in having:
                for theirs in portions(owners[tenant], rows.MANY):
                    connection.execute(sa.update(kind).where(kind.c.tenant == tenant, kind.c.caller.in_(theirs)).values(caller=""))


def get(connection: sa.Connection, tenant: str | Sequence[str] | None, id: str, now: float, caller: str | None = None) -> FileRecord:
    """One file with its labels. Raises NotFound."""
    where = (table.c.id == id, rows.of_tenants(table.c.tenant, tenant), rows.of_caller(table.c.caller, caller), table.c.expires > now)
    row = connection.execute(sa.select(table).where(*where)).first() if rows.storable(id) else None
    if row is None:
        raise NotFound(f"There is no file {id[:64]!r}.", param="file_id")
    told = sa.select(resources.c.body).where(resources.c.kind == LABELS, resources.c.name == id)
    labels = (connection.execute(told).scalar() or {}).get("labels", ())
    return msgspec.structs.replace(_record(row), labels=tuple(labels))


def _record(row: Any) -> FileRecord:
    return FileRecord(**{name: getattr(row, name) for name in _FIELDS})
