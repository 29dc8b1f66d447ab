"""Rows of operators' jobs and of their schedules.

One process at a time works on a job: it takes the job under a lease with a number (`fence`), by the database's clock, and every write names
that number. One that was paused for too long writes nothing any more (LeaseLost).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from gateway.core.conversations import owner
from gateway.core.errors import AlreadyExists, LeaseLost, NotFound, QuotaExceeded
from gateway.core.jobs import OVER, JobError, JobRecord, ScheduleRecord, State, awaited
from gateway.store import rows, tombstones
from gateway.store.database import Database
from gateway.store.tables import job_schedules as schedules
from gateway.store.tables import jobs as table

_COLUMNS: Final = (*("id", "tenant", "kind", "state", "replica", "schedule", "created", "due", "attempts", "cancels", "holder", "fence"),)
_TOLD: Final = tuple(name for name in JobRecord.__struct_fields__ if name not in _COLUMNS)
_KEYS: Final = ("tenant", "name", "next", "created")
_SAID: Final = tuple(name for name in ScheduleRecord.__struct_fields__ if name not in _KEYS)
_READERS: Final = (msgspec.json.Decoder(JobRecord), msgspec.json.Decoder(ScheduleRecord))
"""Made here for the reason that gateway.store.batches gives."""
MOST_WAITING: Final = 200
"""Waiting jobs that are looked at in one round."""
BACK_SECONDS: Final = 30.0
"""A clock that goes back by more has been set; less is a correction."""
LOST: Final = JobError(code="process_lost", message="The gateway's process ended while the job ran.")


class StoredJobs:
    """now: the database's clock."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float]) -> None:
        self._database, self._now = database, now
        self._seen = float("inf")

    async def add(self, record: JobRecord, most: int) -> JobRecord:
        """Raises NotFound where one that it waits for is not there; QuotaExceeded where `most` of the tenant are not over."""
        return await self._database.run(lambda connection: self._add(connection, record, most), write=True)

    def _add(self, connection: sa.Connection, record: JobRecord, most: int) -> JobRecord:
        now = self._now(connection)
        rows.one_by_one(connection, f"jobs of {record.tenant}")
        counted = sa.select(sa.func.count()).where(table.c.tenant == record.tenant, table.c.state.not_in(OVER))
        if (count := connection.execute(counted).scalar_one()) >= most:
            raise QuotaExceeded(f"{count} jobs of the tenant are not over, and {most} may be (jobs.max_open).", code="job_quota_exceeded")
        for id in sorted(record.after):
            _get(connection, id, record.tenant, "after", lock=True)  # it is not forgotten at this moment
        state: State = "waiting" if record.after else "queued"
        made: JobRecord = msgspec.structs.replace(record, state=state, created=now, due=now, moments={state: now})
        connection.execute(sa.insert(table).values(**_values(made), leased=0.0))
        return made

    async def get(self, id: str, tenant: str | Sequence[str] | None) -> JobRecord:
        """Raises NotFound."""
        return await self._database.run(lambda connection: _get(connection, id, tenant))

    async def page(
        self, tenant: str | Sequence[str] | None, limit: int, after: str | None, state: str | None = None, kind: str | None = None
    ) -> tuple[list[JobRecord], bool]:
        """The newest first, and whether there are more."""

        def read(connection: sa.Connection) -> tuple[list[JobRecord], bool]:
            where = [rows.of_tenants(table.c.tenant, tenant)]
            where += [table.c[name] == value for name, value in (("state", state), ("kind", kind)) if value is not None]
            if after is not None:
                where.append(table.c.id < after if rows.storable(after) else sa.false())
            query = sa.select(table).where(*where).order_by(table.c.id.desc()).limit(limit + 1)
            found = [_record(row) for row in connection.execute(query)]
            return found[:limit], len(found) > limit

        return await self._database.run(read)

    async def cancel(self, id: str, tenant: str | Sequence[str] | None, *, dry_run: bool = False) -> JobRecord:
        """Asks for its end; one that runs is ended by whoever runs it, one that is over stays what it is. Raises NotFound."""

        def change(connection: sa.Connection) -> JobRecord:
            found = _get(connection, id, tenant, lock=True)
            if found.state in OVER or found.cancels:
                return found
            made: JobRecord = msgspec.structs.replace(found, cancels=True)
            if found.state != "running":
                made = self._at(connection, made, "cancelled")
            if not dry_run:
                connection.execute(sa.update(table).where(table.c.id == found.id).values(**_values(made)))
            return made

        return await self._database.run(change, write=True)

    async def retry(self, id: str, tenant: str | Sequence[str] | None, *, dry_run: bool = False) -> JobRecord:
        """Queues a job that has failed, is dead or was cancelled again, with all its attempts. Raises NotFound; AlreadyExists."""

        def change(connection: sa.Connection) -> JobRecord:
            found = _get(connection, id, tenant, lock=True)
            if found.state not in ("failed", "dead", "cancelled"):
                raise AlreadyExists(f"The job is {found.state}: only one that has failed, is dead or was cancelled is tried again.")
            states = _states(connection, found.after)
            if awaited([states.get(one) for one in found.after]) == "cancelled":
                raise AlreadyExists("A job that it waits for is dead, cancelled or gone: have that one tried again first.")
            state: State = "waiting" if found.after else "queued"
            made = self._at(connection, found, state, cancels=False, attempts=0, due=self._now(connection), error=None, progress=0.0)
            if not dry_run:
                connection.execute(sa.update(table).where(table.c.id == found.id).values(**_values(made)))
            return made

        return await self._database.run(change, write=True)

    async def counts(self) -> dict[str, int]:
        """How many jobs there are, by state."""
        query = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
        return await self._database.run(lambda connection: {state: count for state, count in connection.execute(query)})

    # --- for whoever works on one

    async def take(self, holder: str, replica: str, seconds: float, without: Sequence[str]) -> JobRecord | None:
        """Takes the job that has been due for longest and that nobody holds; it is `running` then. A job whose process is gone, and that
        was cancelled or has no attempt left, is returned as `cancelled` or `dead`. replica: the one whose model files are here."""

        def claim(connection: sa.Connection) -> JobRecord | None:
            now = self._now(connection)
            left = sa.and_(table.c.state == "running", sa.or_(table.c.holder == "", table.c.leased <= now))
            ready = sa.or_(sa.and_(table.c.state.in_(("queued", "failed")), table.c.due <= now), left)
            ours = sa.or_(table.c.replica.in_(["", replica]), sa.and_(left, table.c.cancels))  # a cancelled one needs no model files
            wanted = (ready, ours, table.c.id.not_in(list(without)))
            query = sa.select(table).where(*wanted).order_by(table.c.due, table.c.id).limit(1)
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            found = _record(row)
            if found.state == "running" and found.cancels:
                taken = self._at(connection, found, "cancelled", holder="", fence=found.fence + 1)
            elif found.state == "running" and found.attempts >= found.most:
                taken = self._at(connection, found, "dead", holder="", fence=found.fence + 1, error=LOST)
            else:
                attempt = {"attempts": found.attempts + 1, "fence": found.fence + 1, "progress": 0.0, "log": ""}
                taken = self._at(connection, found, "running", holder=holder, **attempt)
            leased = now + seconds if taken.state == "running" else 0.0
            connection.execute(sa.update(table).where(table.c.id == found.id).values(**_values(taken), leased=leased))
            return taken

        return await self._database.run(claim, write=True)

    async def free(self, holder_prefix: str) -> int:
        """Gives back what processes that are gone for certain have held."""
        change = sa.update(table).where(rows.begins(table.c.holder, holder_prefix)).values(holder="", leased=0.0)
        return int(await self._database.run(lambda connection: connection.execute(change).rowcount, write=True))

    async def release(self, job: JobRecord) -> None:
        """Gives back an attempt that was not the job's fault to end: it does not count. Raises LeaseLost."""

        def write(connection: sa.Connection) -> None:
            held = _held(connection, job)
            state: State = "cancelled" if held.cancels else "queued"
            made = self._at(connection, held, state, attempts=max(0, held.attempts - 1), holder="")
            connection.execute(sa.update(table).where(table.c.id == job.id).values(**_values(made), leased=0.0))

        await self._database.run(write, write=True)

    async def advance(self, job: JobRecord, seconds: float) -> JobRecord:
        """Renews the lease and writes the job's progress. Returns the job with requests of others, such as a cancellation. Raises
        LeaseLost."""

        def write(connection: sa.Connection) -> JobRecord:
            held = _held(connection, job)
            made: JobRecord = msgspec.structs.replace(job, cancels=held.cancels)
            connection.execute(sa.update(table).where(table.c.id == job.id).values(**_values(made), leased=self._now(connection) + seconds))
            return made

        return await self._database.run(write, write=True)

    async def finish(self, job: JobRecord, state: State, delay: float = 0.0) -> JobRecord:
        """The end of an attempt. delay: seconds until the next. A cancelled job is not tried again. Raises LeaseLost."""

        def write(connection: sa.Connection) -> JobRecord:
            held = _held(connection, job)
            last: State = "cancelled" if held.cancels and state in ("failed", "dead") else state
            due = self._now(connection) + delay if last == "failed" else job.due
            made = self._at(connection, job, last, cancels=held.cancels, holder="", due=due)
            connection.execute(sa.update(table).where(table.c.id == job.id).values(**_values(made), leased=0.0))
            return made

        return await self._database.run(write, write=True)

    async def settle(self) -> list[JobRecord]:
        """Queues jobs that have what they waited for, cancels those that never will; returns them."""

        def write(connection: sa.Connection) -> list[JobRecord]:
            query = sa.select(table).where(table.c.state == "waiting").order_by(table.c.id).limit(MOST_WAITING)
            waiting = [_record(row) for row in connection.execute(query.with_for_update(skip_locked=True))]
            states = _states(connection, [id for job in waiting for id in job.after])
            changed = []
            for job in waiting:
                state = awaited([states.get(id) for id in job.after])
                if state == "waiting":
                    continue
                why = None if state == "queued" else JobError(code="dependency_failed", message="A job that it waited for is not done.")
                made = self._at(connection, job, state, due=self._now(connection), error=why)
                connection.execute(sa.update(table).where(table.c.id == job.id).values(**_values(made)))
                changed.append(made)
            return changed

        return await self._database.run(write, write=True)

    async def forget(self, keep: float, most: int = 100) -> int:
        """Jobs that were over so long ago, and that no other waits for. most: that one transaction looks at."""

        def remove(connection: sa.Connection, after: str) -> tuple[int, str]:
            over = (table.c.state.in_(OVER), table.c.due < self._now(connection) - keep, table.c.id > after)
            oldest = sa.select(table.c.id).where(*over).order_by(table.c.id).limit(most)
            old = list(connection.scalars(oldest.with_for_update()))  # none that is tried again, or waited for, meanwhile
            waiting = connection.execute(sa.select(table.c.told).where(table.c.state == "waiting")).scalars()
            needed = {id for told in waiting for id in told["after"]}
            found = [id for id in old if id not in needed]
            connection.execute(sa.delete(table).where(table.c.id.in_(found)))
            return len(found), old[-1] if len(old) == most else ""

        count, last = 0, ""
        while True:
            found, last = await self._database.run(partial(remove, after=last), write=True)
            count += found
            if not last:
                return count

    # --- schedules

    async def add_schedule(self, record: ScheduleRecord, first: Callable[[float], float], most: int) -> ScheduleRecord:
        """first: the moment of its first job, by the present moment. Raises AlreadyExists, QuotaExceeded."""

        def insert(connection: sa.Connection) -> ScheduleRecord:
            now = self._now(connection)
            rows.one_by_one(connection, f"schedules of {record.tenant}")
            names = set(connection.scalars(sa.select(schedules.c.name).where(schedules.c.tenant == record.tenant)))
            if record.name in names:
                raise AlreadyExists(f"The schedule {record.name!r} already exists.", param="name")
            if len(names) >= most:
                raise QuotaExceeded(f"The tenant has {len(names)} schedules (jobs.max_schedules).", code="job_quota_exceeded")
            made: ScheduleRecord = msgspec.structs.replace(record, created=now, next=first(now))
            connection.execute(sa.insert(schedules).values(**_schedule_values(made)))
            return made

        return await self._database.run(insert, write=True)

    async def schedules(
        self, tenant: str | Sequence[str] | None, *, after: tuple[str, str] | None = None, most: int | None = None
    ) -> list[ScheduleRecord]:
        """Ordered by tenant and name. after: only those after this one; most: so many at most."""
        where = [rows.of_tenants(schedules.c.tenant, tenant)]
        if after is not None:
            if not all(map(rows.storable, after)):
                return []
            where.append(sa.tuple_(schedules.c.tenant, schedules.c.name) > sa.tuple_(*map(sa.literal, after)))
        query = sa.select(schedules).where(*where).order_by(schedules.c.tenant, schedules.c.name).limit(most)
        return await self._database.run(lambda connection: [_schedule(row) for row in connection.execute(query)])

    async def due(self) -> list[ScheduleRecord]:
        """Schedules that `make_due` would make jobs of now."""

        def read(connection: sa.Connection) -> list[ScheduleRecord]:
            query = sa.select(schedules).where(schedules.c.next <= self._now(connection)).order_by(schedules.c.next).limit(MOST_WAITING)
            return [_schedule(row) for row in connection.execute(query)]

        return await self._database.run(read)

    async def schedule(self, tenant: str, name: str) -> ScheduleRecord:
        """Raises NotFound."""
        return await self._database.run(lambda connection: _find(connection, tenant, name))

    async def deleted(self, tenant: str, user: str, since: float) -> bool:
        """Whether the user was deleted after this moment, whoever has the name since."""
        return await self._database.run(lambda connection: tombstones.later(connection, tenant, owner("user", user), since))

    async def drop_schedule(self, tenant: str, name: str, created: float | None = None) -> None:
        """Raises NotFound. Jobs that it has made stay. created: only the one that was made then, not another of its name."""

        def remove(connection: sa.Connection) -> None:
            found = _find(connection, tenant, name)
            if created is not None and found.created != created:
                raise NotFound(f"There is no schedule {name[:64]!r}.", param="name")
            this = (schedules.c.tenant == tenant, schedules.c.name == name, schedules.c.created == found.created)
            if connection.execute(sa.delete(schedules).where(*this)).rowcount != 1:
                raise NotFound(f"There is no schedule {name[:64]!r}.", param="name")

        await self._database.run(remove, write=True)

    async def make_due(
        self, following: Callable[[ScheduleRecord, float], float], job: Callable[[ScheduleRecord], JobRecord | None], most: int
    ) -> list[JobRecord]:
        """Makes the jobs whose time has come, however often it came meanwhile; none while the last one of the schedule is not over.
        following: the next moment after the present one. job: None where there is to be none this time."""

        def write(connection: sa.Connection) -> list[JobRecord]:
            now = self._now(connection)
            self._after_a_jump(connection, following, now)
            query = sa.select(schedules).where(schedules.c.next <= now).order_by(schedules.c.next).limit(MOST_WAITING)
            made = []
            for row in connection.execute(query.with_for_update(skip_locked=True)).all():
                found = _schedule(row)
                last = _states(connection, [found.last]).get(found.last)
                wanted = job(found) if last is None or last in OVER else None
                if wanted is not None:
                    try:
                        one = self._add(connection, wanted, most)
                    except QuotaExceeded:
                        one = None  # its next time comes
                    if one is not None:
                        made.append(one)
                        found = msgspec.structs.replace(found, last=one.id)
                found = msgspec.structs.replace(found, next=following(found, now))
                where = (schedules.c.tenant == found.tenant, schedules.c.name == found.name)
                connection.execute(sa.update(schedules).where(*where).values(**_schedule_values(found)))
            return made

        return await self._database.run(write, write=True)

    def _after_a_jump(self, connection: sa.Connection, following: Callable[[ScheduleRecord, float], float], now: float) -> None:
        """Where the clock has gone back, or may have before this process began: what was due by the wrong time alone is due earlier, the
        next attempt at a job after its pause."""
        back, self._seen = now < self._seen - BACK_SECONDS, now
        if not back:
            return
        late = sa.select(table).where(table.c.state.in_(("queued", "failed")), table.c.due > now).with_for_update(skip_locked=True)
        for row in connection.execute(late).all():
            job = _record(row)
            if (since := job.moments.get(job.state, now)) > now:
                due = now + max(0.0, job.due - since)
                connection.execute(sa.update(table).where(table.c.id == job.id).values(due=due))
        for row in connection.execute(sa.select(schedules).where(schedules.c.next > now).with_for_update(skip_locked=True)).all():
            found = _schedule(row)
            if (sooner := following(found, now)) < found.next:
                found = msgspec.structs.replace(found, next=sooner)
                where = (schedules.c.tenant == found.tenant, schedules.c.name == found.name)
                connection.execute(sa.update(schedules).where(*where).values(**_schedule_values(found)))

    def _at(self, connection: sa.Connection, job: JobRecord, state: State, **changes: Any) -> JobRecord:
        return msgspec.structs.replace(job, state=state, moments={**job.moments, state: self._now(connection)}, **changes)


def _states(connection: sa.Connection, ids: Sequence[str]) -> dict[str, State]:
    if not ids:
        return {}
    query = sa.select(table.c.id, table.c.state).where(table.c.id.in_(list(set(ids))))
    return {id: state for id, state in connection.execute(query)}


def _held(connection: sa.Connection, job: JobRecord) -> JobRecord:
    """Locks the row. Raises LeaseLost where another process has taken it since."""
    row = connection.execute(sa.select(table).where(table.c.id == job.id).with_for_update()).first()
    if row is None or row.fence != job.fence or row.state != "running":
        raise LeaseLost(f"{job.id} was taken over by another process.")
    return _record(row)


def _get(connection: sa.Connection, id: str, tenant: str | Sequence[str] | None, param: str = "id", lock: bool = False) -> JobRecord:
    query = sa.select(table).where(table.c.id == id, rows.of_tenants(table.c.tenant, tenant))
    row = connection.execute(query.with_for_update() if lock else query).first() if rows.storable(id) else None
    if row is None:
        raise NotFound(f"There is no job {id[:64]!r}.", param=param)
    return _record(row)


def _find(connection: sa.Connection, tenant: str, name: str) -> ScheduleRecord:
    query = sa.select(schedules).where(schedules.c.tenant == tenant, schedules.c.name == name)
    row = connection.execute(query).first() if rows.storable(name) and rows.storable(tenant) else None
    if row is None:
        raise NotFound(f"There is no schedule {name[:64]!r}.", param="name")
    return _schedule(row)


def _values(record: JobRecord) -> dict[str, Any]:
    told = msgspec.to_builtins({name: getattr(record, name) for name in _TOLD})
    return {**{name: getattr(record, name) for name in _COLUMNS}, "told": told}


def _record(row: Any) -> JobRecord:
    return msgspec.convert({**{name: getattr(row, name) for name in _COLUMNS}, **row.told}, JobRecord)


def _schedule_values(record: ScheduleRecord) -> dict[str, Any]:
    told = msgspec.to_builtins({name: getattr(record, name) for name in _SAID})
    return {**{name: getattr(record, name) for name in _KEYS}, "told": told}


def _schedule(row: Any) -> ScheduleRecord:
    return msgspec.convert({**{name: getattr(row, name) for name in _KEYS}, **row.told}, ScheduleRecord)
