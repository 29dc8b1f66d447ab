"""Jobs of operators in the process that has the store: made, shown, cancelled, tried again, and their schedules.
The work on them is gateway.app.operator_jobs.work."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.host.catalogue.library import Library
from gateway.app.batches.creators import KINDS
from gateway.app.clients.files import ClientFiles
from gateway.app.operator_jobs import cron, exporter
from gateway.core.batches import Creator
from gateway.core.clock import Entropy, SystemEntropy
from gateway.core.errors import GatehouseError, NotFound, PermissionDenied, RequestError
from gateway.core.jobs import FOLDERS, JOB_PREFIX, STATES, Convert, Export, JobRecord, Making, OnFiles, ScheduleRecord, Task, Warm
from gateway.core.modelfiles import kind_of
from gateway.core.specs.jobs import JobsSpec
from gateway.store.jobs import StoredJobs

log = logging.getLogger("gatehouse.jobs")
Record = Callable[..., None]


class JobBook:
    """The admin API's port. record: (event, target, detail, actor=, outcome=) for the audit log. replica: this one. changed: called when
    there may be something to do. stopped: whether somebody is suspended or halted now."""

    def __init__(
        self,
        settings: JobsSpec,
        kept: StoredJobs,
        files: ClientFiles | None,
        models: Library,
        replica: str,
        record: Record,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings, self._kept, self._files, self._models = settings, kept, files, models
        self._replica, self._record = replica, record
        self._entropy: Entropy = entropy or SystemEntropy()
        self.changed: Callable[[], None] = lambda: None
        self.stopped: Callable[[Creator], bool] = lambda creator: False
        self.counts: dict[str, int] | None = None
        """By state; None until they could be counted, and while they cannot be."""
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {}
        self.running: Callable[[], int] = lambda: 0

    def new(self, task: Task, creator: Creator, *, after: Sequence[str] = (), most: int | None = None, schedule: str = "") -> JobRecord:
        return JobRecord(
            id=f"{JOB_PREFIX}{int(time.time() * 1000):011x}{self._entropy.bytes(12).hex()}",
            tenant=creator.tenant,
            kind=str(type(task).__struct_config__.tag),
            state="queued",
            task=task,
            creator=creator,
            replica=self._replica if isinstance(task, OnFiles) else "",
            schedule=schedule,
            most=self.settings.attempts if most is None else most,
            after=tuple(dict.fromkeys(after)),
        )

    async def create(
        self, task: Task, creator: Creator, actor: str, *, after: Sequence[str] = (), most: int | None = None, dry_run: bool = False
    ) -> JobRecord:
        """Raises NotFound, RequestError, PermissionDenied, AlreadyExists, QuotaExceeded."""
        await self._check(task, creator, waits=bool(after))
        job = self.new(task, creator, after=after, most=most)
        for id in after if dry_run else ():
            await self._kept.get(id, creator.tenant)
        if dry_run:
            return job
        made = await self._kept.add(job, self.settings.max_open)
        self.told("job_created", made, actor)
        self.changed()
        return made

    async def _check(self, task: Task, creator: Creator, *, waits: bool) -> None:
        """What can be known now. waits: what it needs may be made by another job first."""
        if isinstance(task, Warm):
            if creator.kind != "api_key" and creator.kind not in KINDS:
                raise PermissionDenied(f"Requests cannot be asked with a credential of the kind {creator.kind}: use an API key.")
            if self._files is None:
                raise NotFound("Files are not enabled here (files.enabled).", param="file")
            await self._files.find(creator.tenant, task.file, creator.owner)
            return
        if isinstance(task, Export):
            if kind_of(task.to) != "folder":
                raise RequestError("An export makes a folder: give a name without a suffix.", param="task.to")
            await exporter.check(self.settings.export_python)
        if isinstance(task, Convert | Export):
            await self._models.weights(task.model)
        elif not waits:
            await self._models.source(task.model, FOLDERS.get(type(task), ""))

    async def page(
        self, tenants: Sequence[str] | None, limit: int, after: str | None, state: str | None = None, kind: str | None = None
    ) -> tuple[list[JobRecord], bool]:
        return await self._kept.page(tenants, limit, after, state, kind)

    async def get(self, id: str, tenants: Sequence[str] | None) -> JobRecord:
        """Raises NotFound."""
        return await self._kept.get(id, tenants)

    async def cancel(self, id: str, tenants: Sequence[str] | None, actor: str, *, dry_run: bool = False) -> JobRecord:
        """Raises NotFound."""
        found = await self._kept.cancel(id, tenants, dry_run=dry_run)
        if not dry_run and found.cancels:
            self.told("job_cancelled" if found.state == "cancelled" else "job_cancelling", found, actor)
            self.changed()
        return found

    async def retry(self, id: str, tenants: Sequence[str] | None, actor: str, *, dry_run: bool = False) -> JobRecord:
        """Raises NotFound, AlreadyExists."""
        found = await self._kept.retry(id, tenants, dry_run=dry_run)
        if not dry_run:
            self.told("job_retried", found, actor)
            self.changed()
        return found

    # --- schedules

    async def schedule(
        self, name: str, expression: str, timezone: str, task: Task, creator: Creator, actor: str, *, most: int | None, dry_run: bool
    ) -> ScheduleRecord:
        """Raises RequestError, NotFound, AlreadyExists, QuotaExceeded."""
        cron.checked(expression, timezone)
        await self._check(task, creator, waits=False)
        record = ScheduleRecord(
            name=name,
            tenant=creator.tenant,
            cron=expression,
            timezone=timezone,
            task=task,
            creator=creator,
            replica=self._replica if isinstance(task, OnFiles) else "",
            most=self.settings.attempts if most is None else most,
            next=cron.following(expression, timezone, time.time()),
        )
        if dry_run:
            return record
        first = lambda now: cron.following(expression, timezone, now)  # noqa: E731 - one line says it
        made = await self._kept.add_schedule(record, first, self.settings.max_schedules)
        self._record(
            "job_scheduled", f"{made.tenant}/{name}", {"tenant": made.tenant, "cron": expression, "timezone": timezone}, actor=actor
        )
        return made

    async def schedules(
        self, tenants: Sequence[str] | None, *, after: tuple[str, str] | None = None, most: int | None = None
    ) -> list[ScheduleRecord]:
        return await self._kept.schedules(tenants, after=after, most=most)

    async def unschedule(self, tenant: str, name: str, actor: str, *, dry_run: bool = False) -> ScheduleRecord:
        """Raises NotFound."""
        found = await self._kept.schedule(tenant, name)
        if not dry_run:
            await self._kept.drop_schedule(tenant, name)
            self._record("job_unscheduled", f"{tenant}/{name}", {"tenant": tenant}, actor=actor)
        return found

    async def look(self) -> None:
        """Makes the jobs of schedules that are due, and settles those that wait for others."""
        due = await self._kept.make_due(
            lambda one, now: cron.following(one.cron, one.timezone, now), self._scheduled, self.settings.max_open
        )
        for job in due:
            self.told("job_created", job)
        for job in await self._kept.settle():
            if job.state == "cancelled":
                self.told("job_cancelled", job)

    def _scheduled(self, one: ScheduleRecord) -> JobRecord | None:
        if self.stopped(one.creator):
            log.info("the schedule %s/%s makes no job: %s is suspended or halted", one.tenant, one.name, one.creator.name)
            return None
        made: JobRecord = msgspec.structs.replace(self.new(one.task, one.creator, most=one.most, schedule=one.name), replica=one.replica)
        return made

    # --- told by the work

    def told(self, event: str, job: JobRecord, actor: str | None = None) -> None:
        detail: dict[str, Any] = {"tenant": job.tenant, "kind": job.kind, "attempt": job.attempts}
        detail |= {"schedule": job.schedule} if job.schedule else {}
        if isinstance(job.task, Making):
            detail |= {"model": job.task.model, "to": job.task.to}
        if job.error is not None:
            detail |= {"code": job.error.code}
        if job.state == "done" and job.promised:
            detail |= {"sha256": job.promised}
        outcome = "failed" if job.state in ("failed", "dead") else "ok"
        self._record(event, job.id, detail, actor=actor or job.creator.name, outcome=outcome)

    def ended(self, job: JobRecord, seconds: float = 0.0) -> None:
        self.attempts[job.kind, job.state] += 1
        self.seconds[job.kind] = self.seconds.get(job.kind, 0.0) + seconds
        self.told(f"job_{job.state}", job)

    async def count(self) -> None:
        try:
            self.counts = await self._kept.counts()
        except GatehouseError:
            self.counts = None

    def collect(self) -> Iterable[Metric]:
        kept = GaugeMetricFamily("gatehouse_jobs", "Jobs of operators in the store by state", labels=["state"])
        if self.counts is not None:  # else no series: those of a store that is away would seem to be new when it is back
            for state in STATES:
                kept.add_metric([state], float(self.counts.get(state, 0)))
        yield kept
        yield GaugeMetricFamily("gatehouse_jobs_running", "Jobs of operators that run in this process", value=float(self.running()))
        attempts = CounterMetricFamily("gatehouse_job_attempts", "Attempts at jobs by what became of them", labels=["kind", "outcome"])
        seconds = CounterMetricFamily("gatehouse_job_seconds", "Seconds that attempts at jobs took", labels=["kind"])
        for (kind, outcome), count in self.attempts.items():
            attempts.add_metric([kind, outcome], float(count))
        for kind, took in self.seconds.items():
            seconds.add_metric([kind], took)
        yield attempts
        yield seconds
