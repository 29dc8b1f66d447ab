"""Rows of batches and of their lines.

One process at a time works on a batch: it takes the batch under a lease with a number (`fence`), by the database's clock, and every write
names that number. One that was paused for too long writes nothing any more (LeaseLost).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.core.batches import BATCH_PREFIX, OVER, BatchRecord, Creator, FileRecord, LineRow
from gateway.core.errors import LeaseLost, NotFound, QuotaExceeded
from gateway.store import files, rows, tombstones
from gateway.store.database import Database
from gateway.store.tables import batch_lines as lines
from gateway.store.tables import batches as table

_COLUMNS: Final = ("id", "state", "input", "created", "expires", "cancels", "holder", "fence")
_COUNTS: Final = ("total", "completed", "failed", "repeated", "unknown")
_TOLD: Final = tuple(name for name in BatchRecord.__struct_fields__ if name not in (*_COLUMNS, *_COUNTS))
_READER: Final = msgspec.json.Decoder(BatchRecord)
"""Made here so that the shape of a record is known before threads read rows. Two that read the first one at once have ended the process:
msgspec (0.22) lets the second use a shape that the first has not finished."""
_HERE: Final = (lines.c.batch == sa.bindparam("the_batch"), lines.c.number == sa.bindparam("the_number"))
_END: Final = sa.update(lines).where(*_HERE).values(state=sa.bindparam("the_state"), sealed=sa.bindparam("the_sealed"))
_UNDO: Final = sa.update(lines).where(*_HERE).values(state="waiting", attempt=sa.bindparam("the_attempt"))


class StoredBatches:
    """now: the database's clock. caller: whose alone (gateway.core.conversations.owner_of); None for anybody's."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now

    async def add(self, record: BatchRecord, seconds: float, most: int, began: float | None = None) -> BatchRecord:
        """began: when the request that makes it did (time.perf_counter); None for now. Raises NotFound where its input is not there;
        QuotaExceeded where more than `most` of the tenant are not over; PermissionDenied where its creator was deleted since."""
        asked = time.perf_counter() if began is None else began

        def insert(connection: sa.Connection) -> BatchRecord:
            now = self._now(connection)
            tenant = record.creator.tenant
            rows.one_by_one(connection, f"batches of {tenant}")
            tombstones.check(connection, now, asked, tenant, record.creator.owner)
            files.get(connection, tenant, record.input, now)
            counted = sa.select(sa.func.count()).where(table.c.tenant == tenant, table.c.state.not_in(OVER))
            if (count := connection.execute(counted).scalar_one()) >= most:
                raise QuotaExceeded(f"{count} batches of the tenant are not over, and {most} may be.", code="batch_quota_exceeded")
            made: BatchRecord = msgspec.structs.replace(record, created=now, expires=now + seconds)
            connection.execute(sa.insert(table).values(**_values(made), tenant=tenant, caller=made.creator.owner, leased=0.0))
            return made

        return await self._database.run(insert, write=True)

    async def get(self, id: str, tenant: str | Sequence[str] | None, caller: str | None = None) -> BatchRecord:
        """Raises NotFound."""
        return await self._database.run(lambda connection: _get(connection, id, tenant, caller))

    async def page(
        self,
        tenant: str | Sequence[str] | None,
        limit: int,
        after: str | None,
        state: str | None = None,
        caller: str | None = None,
    ) -> tuple[list[BatchRecord], bool]:
        """The newest first, and whether there are more."""

        def read(connection: sa.Connection) -> tuple[list[BatchRecord], bool]:
            where = [rows.of_tenants(table.c.tenant, tenant), rows.of_caller(table.c.caller, caller)]
            if state is not None:
                where.append(table.c.state == state)
            if after is not None:
                where.append(table.c.id < rows.placed(after, BATCH_PREFIX, "batch"))
            query = sa.select(table).where(*where).order_by(table.c.id.desc()).limit(limit + 1)
            found = [_record(row) for row in connection.execute(query)]
            return found[:limit], len(found) > limit

        return await self._database.run(read)

    async def cancel(self, id: str, tenant: str | Sequence[str] | None, caller: str | None = None, *, dry_run: bool = False) -> BatchRecord:
        """Asks for its end; one that is over stays what it is. Raises NotFound."""

        def change(connection: sa.Connection) -> BatchRecord:
            found = _get(connection, id, tenant, caller, lock=True)
            if found.state in OVER or found.cancels:
                return found
            made = _cancelled(found, self._now(connection))
            if not dry_run:
                connection.execute(sa.update(table).where(table.c.id == found.id).values(**_values(made)))
            return made

        return await self._database.run(change, write=True)

    async def counts(self) -> dict[str, int]:
        """How many batches there are, by state."""
        query = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
        return await self._database.run(lambda connection: {state: count for state, count in connection.execute(query)})

    # --- for whoever works on one

    async def take(self, holder: str, seconds: float, later: Sequence[str], without: Sequence[str]) -> BatchRecord | None:
        """The oldest batch that is not over and that nobody holds. later: tenants that come last, as they have one already. without: these
        are not taken."""

        def claim(connection: sa.Connection) -> BatchRecord | None:
            now = self._now(connection)
            free = sa.or_(table.c.holder == "", table.c.leased <= now)
            order = sa.case((table.c.tenant.in_(list(later)), 1), else_=0)
            wanted = (table.c.state.not_in(OVER), free, table.c.id.not_in(list(without)))
            query = sa.select(table).where(*wanted).order_by(order, table.c.id).limit(1)
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            values = {"holder": holder, "fence": row.fence + 1, "leased": now + seconds}
            connection.execute(sa.update(table).where(table.c.id == row.id).values(values))
            return msgspec.structs.replace(_record(row), holder=holder, fence=row.fence + 1)

        return await self._database.run(claim, write=True)

    async def free(self, holder_prefix: str) -> int:
        """Gives back what processes that are gone for certain have held."""
        change = sa.update(table).where(rows.begins(table.c.holder, holder_prefix)).values(holder="", leased=0.0)
        return int(await self._database.run(lambda connection: connection.execute(change).rowcount, write=True))

    async def release(self, batch: BatchRecord) -> None:
        change = sa.update(table).where(table.c.id == batch.id, table.c.fence == batch.fence).values(holder="", leased=0.0)
        await self._database.run(lambda connection: connection.execute(change), write=True)

    async def begun(self, batch: str) -> list[LineRow]:
        """Every line that was begun, without what came of it."""
        query = sa.select(lines.c.number, lines.c.attempt, lines.c.state).where(lines.c.batch == batch)
        return await self._database.run(lambda connection: [LineRow(*row, None) for row in connection.execute(query)])

    async def outcomes(self, batch: str, after: int, most: int, most_bytes: int) -> list[LineRow]:
        """The next ones in the order of the lines: so many, and of so many bytes, but one at least."""
        here = (lines.c.batch == batch, lines.c.number > after)
        sizes = sa.select(lines.c.number, sa.func.coalesce(sa.func.length(lines.c.sealed), 0))
        query = sa.select(lines.c.number, lines.c.attempt, lines.c.state, lines.c.sealed)

        def read(connection: sa.Connection) -> list[LineRow]:
            last, total = after, 0
            for number, size in connection.execute(sizes.where(*here).order_by(lines.c.number).limit(most)).all():
                total += size
                if total > most_bytes and last > after:
                    break
                last = number
            found = connection.execute(query.where(*here, lines.c.number <= last).order_by(lines.c.number))
            return [LineRow(*row) for row in found]

        return await self._database.run(read)

    async def advance(
        self,
        batch: BatchRecord,
        seconds: float,
        ended: Sequence[LineRow] = (),
        begins: Sequence[LineRow] = (),
        undone: Sequence[LineRow] = (),
    ) -> BatchRecord:
        """One step of the work in one transaction: lines that have ended, that begin now, and that did not get to run; renews the lease.
        The counts and the moments of `batch` are written. Returns it with what others have asked of it. Raises LeaseLost."""

        def write(connection: sa.Connection) -> BatchRecord:
            held = _held(connection, batch)
            if ended:
                values = [
                    {"the_batch": batch.id, "the_number": one.number, "the_state": one.state, "the_sealed": one.sealed} for one in ended
                ]
                connection.execute(_END, values)
            if undone:
                values = [{"the_batch": batch.id, "the_number": one.number, "the_attempt": one.attempt} for one in undone]
                connection.execute(_UNDO, values)
            if begins:
                values = [{"batch": batch.id, "number": one.number, "attempt": one.attempt, "state": "begun"} for one in begins]
                connection.execute(_begin(connection), values)
            return self._keep(connection, batch, held, seconds)

        return await self._database.run(write, write=True)

    def _keep(self, connection: sa.Connection, batch: BatchRecord, held: BatchRecord, seconds: float) -> BatchRecord:
        now = self._now(connection)
        moments = {**held.moments, **{name: now if at < 0 else at for name, at in batch.moments.items()}}
        state = "cancelling" if held.cancels and batch.state in ("validating", "in_progress") else batch.state
        kept: BatchRecord = msgspec.structs.replace(batch, cancels=held.cancels, moments=moments, state=state)
        if state not in OVER and state != "finalizing" and not held.cancels and kept.expires <= now:
            kept = msgspec.structs.replace(kept, state="expired")  # told to the caller, not written: the results are still to be
            connection.execute(sa.update(table).where(table.c.id == batch.id).values(leased=now + seconds))
            return kept
        connection.execute(sa.update(table).where(table.c.id == batch.id).values(**_values(kept), leased=now + seconds))
        return kept

    async def finish(self, batch: BatchRecord, made: Sequence[FileRecord], keep: float) -> BatchRecord:
        """The end: its files of results, which belong to whom it belongs to, and its last state are there at the same moment, and its
        lines are gone. Raises LeaseLost."""

        def write(connection: sa.Connection) -> BatchRecord:
            held = _held(connection, batch)
            now = self._now(connection)
            caller = connection.scalars(sa.select(table.c.caller).where(table.c.id == batch.id)).one()
            for one in made:
                files.put(connection, now, msgspec.structs.replace(one, caller=caller), keep)
            moments = {**held.moments, **batch.moments, batch.state: now}
            done: BatchRecord = msgspec.structs.replace(batch, moments=moments, cancels=held.cancels, holder="")
            connection.execute(sa.update(table).where(table.c.id == batch.id).values(**_values(done), leased=0.0))
            connection.execute(sa.delete(lines).where(lines.c.batch == batch.id))
            return done

        return await self._database.run(write, write=True)

    async def forget(self, keep: float, most: int = 100) -> int:
        """Batches that were over so long ago. most: in one transaction."""

        def remove(connection: sa.Connection) -> int:
            old = sa.select(table.c.id).where(table.c.state.in_(OVER), table.c.created < self._now(connection) - keep).limit(most)
            found = list(connection.scalars(old))
            connection.execute(sa.delete(table).where(table.c.id.in_(found)))
            return len(found)

        count = last = await self._database.run(remove, write=True)
        while last == most:
            last = await self._database.run(remove, write=True)
            count += last
        return count


def _cancelled(found: BatchRecord, now: float) -> BatchRecord:
    moments = found.moments if found.state == "finalizing" else {**found.moments, "cancelling": now}
    state = found.state if found.state == "finalizing" else "cancelling"
    made: BatchRecord = msgspec.structs.replace(found, cancels=True, state=state, moments=moments)
    return made


def cancel_all(connection: sa.Connection, now: float, tenant: str, whose: Callable[[Creator], bool]) -> None:
    """Asks for the end of a tenant's batches whose creators are these."""
    query = sa.select(table).where(table.c.tenant == tenant, table.c.state.not_in(OVER)).order_by(table.c.id)
    for row in connection.execute(query.with_for_update()).all():
        found = _record(row)
        if not found.cancels and whose(found.creator):
            connection.execute(sa.update(table).where(table.c.id == found.id).values(**_values(_cancelled(found, now))))


def _begin(connection: sa.Connection) -> Any:
    """A line may be there already: it begins again. And a transaction whose answer was lost is made again."""
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(lines)
    again = {"attempt": statement.excluded.attempt, "state": statement.excluded.state, "sealed": None}
    return statement.on_conflict_do_update(index_elements=["batch", "number"], set_=again)


def _held(connection: sa.Connection, batch: BatchRecord) -> BatchRecord:
    """Locks the row. Raises LeaseLost where another process has taken it since."""
    row = connection.execute(sa.select(table).where(table.c.id == batch.id).with_for_update()).first()
    if row is None or row.fence != batch.fence:
        raise LeaseLost(f"{batch.id} was taken over by another process.")
    return _record(row)


def _get(connection: sa.Connection, id: str, tenant: str | Sequence[str] | None, caller: str | None, *, lock: bool = False) -> BatchRecord:
    query = sa.select(table).where(table.c.id == id, rows.of_tenants(table.c.tenant, tenant), rows.of_caller(table.c.caller, caller))
    row = connection.execute(query.with_for_update() if lock else query).first() if rows.storable(id) else None
    if row is None:
        raise NotFound(f"There is no batch {id[:64]!r}.", param="batch_id")
    return _record(row)


def _values(record: BatchRecord) -> dict[str, Any]:
    told = msgspec.to_builtins({name: getattr(record, name) for name in _TOLD})
    return {**{name: getattr(record, name) for name in (*_COLUMNS, *_COUNTS)}, "told": told}


def _record(row: Any) -> BatchRecord:
    found = {name: getattr(row, name) for name in (*_COLUMNS, *_COUNTS)}
    return msgspec.convert({**found, **row.told}, BatchRecord)
