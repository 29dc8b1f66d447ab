"""Jobs of operators: made, followed, cancelled, tried again; and schedules that make them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse

from admin import values
from admin.auth import peer_of
from admin.moments import Timestamp, timestamp
from admin.operation import SSE, Answer, Call, Operation, Written
from admin.resource import Cursor, Paged, Tenant, cursor_key, key_cursor, location
from admin.resources.batches import after_of, tenants_of
from gateway.core.batches import Creator
from gateway.core.errors import GatehouseError, NotFound, Overloaded
from gateway.core.jobs import MOST_AFTER, OVER, JobControl, JobRecord, Kind, OnFiles, ScheduleRecord, State, Task
from gateway.core.specs import Name

READ, WRITE = "jobs:read", "jobs:write"
FILES: Final = "files:write"
"""What a task on model files needs besides: it uses the machine, and may add to its models."""
MAX_READERS: Final = 64
LOOK_SECONDS: Final = 1.0
QUIET_LOOKS: Final = 15
"""Looks without a change after which a comment keeps the connection alive."""
Attempts = Annotated[int, Meta(ge=1, le=100)]


class JobCreation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """after: jobs that must be done before. attempts: how often it is begun at most; by default `jobs.attempts`."""

    task: Task
    after: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MOST_AFTER)] = []
    attempts: Attempts | None = None


class ScheduleCreation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """cron: minute, hour, day of the month, month, day of the week. attempts: of each job."""

    name: Name
    cron: Annotated[str, Meta(min_length=9, max_length=128)]
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    task: Task
    attempts: Attempts | None = None


class JobErrorView(msgspec.Struct, kw_only=True):
    code: str
    message: str


class JobView(msgspec.Struct, kw_only=True):
    """creator: the credential that made it, as `tenant/id`. replica: whose model files it is about; "" for none. attempts: begun so far, of
    `max_attempts`. due_at: not begun before. progress: of this attempt, from 0 to 1. error: of the last attempt. log: its last lines.
    moments: when it came into each state last. holder: the process that runs it; "" for none."""

    id: str
    tenant: str
    creator: str
    kind: Kind
    state: State
    task: Task
    replica: str
    schedule: str
    after: list[str]
    attempts: int
    max_attempts: int
    cancels: bool
    progress: float
    error: JobErrorView | None
    result: dict[str, Any] | None
    log: str
    created_at: Timestamp
    due_at: Timestamp
    moments: dict[str, Timestamp]
    holder: str


class JobPage(msgspec.Struct):
    items: list[JobView]
    cursor: str | None = None


class JobDryRun(msgspec.Struct):
    result: JobView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class ScheduleView(msgspec.Struct, kw_only=True):
    """next_at: of its next job. last_job: the one that it made last, or ""."""

    name: str
    tenant: str
    creator: str
    cron: str
    timezone: str
    task: Task
    replica: str
    max_attempts: int
    next_at: Timestamp
    last_job: str
    created_at: Timestamp


class ScheduleList(msgspec.Struct):
    items: list[ScheduleView]
    cursor: str | None = None


class ScheduleDryRun(msgspec.Struct):
    result: ScheduleView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class JobQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """state, kind: only those. cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None
    state: State | None = None
    kind: Kind | None = None
    tenant: Tenant | None = None


class ScheduleQuery(Paged, forbid_unknown_fields=True, kw_only=True):
    tenant: Tenant | None = None


class ScheduleDeletion(Written):
    """tenant: whose schedule; by default the caller's."""

    tenant: Tenant | None = None


async def index(call: Call) -> Answer:
    """The newest first."""
    wanted: JobQuery = call.query
    tenants = tenants_of(call, READ, wanted.tenant)
    found, more = await _port(call).page(tenants, wanted.limit, after_of(wanted.cursor), wanted.state, wanted.kind)
    return Answer({"items": [_view(one) for one in found], "cursor": f"store:{found[-1].id}" if more else None})


async def show(call: Call) -> Answer:
    return Answer(_view(await _visible(call)))


async def create(call: Call) -> Answer:
    """It belongs to the caller's tenant. One on model files runs on the replica that was asked."""
    wanted: JobCreation = call.body
    creator = _creator(call, wanted.task)
    port, most = _port(call), wanted.attempts
    made = await port.create(wanted.task, creator, call.actor, after=wanted.after, most=most, dry_run=call.dry_run)
    call.target = f"jobs/{made.id}"
    call.diff = values.diff({}, {"kind": made.kind, "task": msgspec.to_builtins(made.task)})
    return _written(call, _view(made), 201, location("jobs", made.id))


async def cancel(call: Call) -> Answer:
    """One that runs is ended within seconds; what it was about to make is not there. One that is over stays what it is."""
    return await _changed(call, _port(call).cancel)


async def retry(call: Call) -> Answer:
    """For one that has failed, is dead or was cancelled: all its attempts begin anew."""
    return await _changed(call, _port(call).retry)


async def _changed(call: Call, change: Any) -> Answer:
    found = await _visible(call)
    call.require(WRITE, found.tenant)
    if isinstance(found.task, OnFiles):
        call.require(FILES)
    call.target = f"jobs/{found.id}"
    made = await change(found.id, [found.tenant], call.actor, dry_run=call.dry_run)
    call.diff = values.diff({"state": found.state}, {"state": made.state})
    return _written(call, _view(made))


async def schedules(call: Call) -> Answer:
    query: ScheduleQuery = call.query
    after = cursor_key(query.cursor)
    tenant, _, name = (after or "").partition("\n")
    found = await _port(call).schedules(
        tenants_of(call, READ, query.tenant), after=None if after is None else (tenant, name), most=query.limit + 1
    )
    shown = found[: query.limit]
    more = len(found) > query.limit
    return Answer(
        {"items": [_schedule(one) for one in shown], "cursor": key_cursor(f"{shown[-1].tenant}\n{shown[-1].name}") if more else None}
    )


async def schedule(call: Call) -> Answer:
    """Its jobs are made, and their requests asked, as whoever makes it. While one is not over, no other is made."""
    wanted: ScheduleCreation = call.body
    creator = _creator(call, wanted.task)
    port, parts = _port(call), (wanted.name, wanted.cron, wanted.timezone, wanted.task, creator, call.actor)
    made = await port.schedule(*parts, most=wanted.attempts, dry_run=call.dry_run)
    call.target = f"job-schedules/{made.name}"
    call.diff = values.diff({}, {"cron": made.cron, "timezone": made.timezone, "task": msgspec.to_builtins(made.task)})
    return _written(call, _schedule(made), 201, location("job-schedules", made.name))


async def unschedule(call: Call) -> Answer:
    """Jobs that it has made stay."""
    query: ScheduleDeletion = call.query
    tenant, name = query.tenant or call.access.principal.tenant, call.path["name"]
    call.seen(READ, tenant, "schedule", name[:64])
    call.require(WRITE, tenant)
    call.target = f"job-schedules/{name}"
    found = await _port(call).unschedule(tenant, name, call.actor, dry_run=call.dry_run)
    call.diff = values.diff({"cron": found.cron}, {})
    return _written(call, _schedule(found))


class Followers:
    """Counts the streams that are open."""

    def __init__(self) -> None:
        self.open = 0

    async def events(self, call: Call) -> Answer:
        """An event `job` whenever something of it has changed, the first at once; the stream ends when the job is over."""
        found = await _visible(call)
        if self.open >= MAX_READERS:
            raise Overloaded("Too many readers of events.", retry_after=5.0)
        return Answer(response=StreamingResponse(self._stream(_port(call), found), media_type=SSE))

    async def _stream(self, port: JobControl, job: JobRecord) -> AsyncIterator[bytes]:
        self.open += 1
        last, quiet, number = b"", 0, 0
        try:
            while True:
                told, quiet = msgspec.json.encode(_view(job)), quiet + 1
                if told != last:
                    last, quiet, number = told, 0, number + 1
                    yield b"id: %d\nevent: job\ndata: %b\n\n" % (number, told)
                elif quiet % QUIET_LOOKS == 0:
                    yield b": keep-alive\n\n"
                if job.state in OVER:
                    return
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    job = await port.get(job.id, [job.tenant])
                except NotFound:
                    return
                except GatehouseError:
                    continue  # the store is away for a moment
        finally:
            self.open -= 1


def _creator(call: Call, task: Task) -> Creator:
    """Raises PermissionDenied."""
    principal = call.access.principal
    call.require(WRITE, principal.tenant)
    if isinstance(task, OnFiles):
        call.require(FILES)
    return Creator.of_batch(principal, peer_of(call.request.scope), ())


async def _visible(call: Call) -> JobRecord:
    """Raises NotFound, also for one of a tenant whose jobs the caller may not read."""
    id = call.path["id"]
    found = await _port(call).get(id, None)
    call.seen(READ, found.tenant, "job", id[:64])
    return found


def _written(call: Call, view: dict[str, Any], status: int = 200, where: str | None = None) -> Answer:
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": view})
    return Answer(view, status, location=where)


def _view(record: JobRecord) -> dict[str, Any]:
    same = ("id", "tenant", "kind", "state", "replica", "schedule", "attempts", "cancels", "progress", "result", "log", "holder")
    return {
        **{name: getattr(record, name) for name in same},
        "creator": record.creator.name,
        "task": msgspec.to_builtins(record.task),
        "after": list(record.after),
        "max_attempts": record.most,
        "error": None if record.error is None else msgspec.to_builtins(record.error),
        "created_at": timestamp(record.created),
        "due_at": timestamp(record.due),
        "moments": {name: timestamp(at) for name, at in record.moments.items()},
    }


def _schedule(record: ScheduleRecord) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ("name", "tenant", "cron", "timezone", "replica")},
        "creator": record.creator.name,
        "task": msgspec.to_builtins(record.task),
        "max_attempts": record.most,
        "next_at": timestamp(record.next),
        "last_job": record.last,
        "created_at": timestamp(record.created),
    }


def _port(call: Call) -> JobControl:
    if call.ports.jobs is None:
        raise NotFound("Jobs are not enabled here (jobs.enabled).")
    return call.ports.jobs


def operations() -> list[Operation]:
    one, many = (JobView, JobDryRun), (ScheduleView, ScheduleDryRun)
    make = partial(Operation, "POST", permission=WRITE, query=Written, status=201, creates=True, finds=True, refuses=(409,))
    return [
        Operation("GET", "jobs", READ, "List jobs", index, JobPage, JobQuery, finds=True),
        make("jobs", summary="Make a job", handler=create, answer=one, body=JobCreation),
        Operation("GET", "jobs/{id}", READ, "Get a job", show, JobView, finds=True),
        Operation("POST", "jobs/{id}/cancel", WRITE, "Cancel a job", cancel, one, Written, finds=True),
        Operation("POST", "jobs/{id}/retry", WRITE, "Try a job again", retry, one, Written, finds=True, refuses=(409,)),
        Operation("GET", "jobs/{id}/events", READ, "Follow a job", Followers().events, media=SSE, finds=True),
        Operation("GET", "job-schedules", READ, "List schedules of jobs", schedules, ScheduleList, ScheduleQuery, finds=True),
        make("job-schedules", summary="Make a schedule of jobs", handler=schedule, answer=many, body=ScheduleCreation),
        Operation("DELETE", "job-schedules/{name}", WRITE, "Delete a schedule", unschedule, many, ScheduleDeletion, finds=True),
    ]
