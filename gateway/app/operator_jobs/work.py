"""The work on operators' jobs in one process: takes some under a lease, and runs each (gateway.app.operator_jobs.run)."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from engines.host.catalogue.library import Library
from gateway.app.clients.work import ClientWork
from gateway.app.operator_jobs.book import JobBook, Record
from gateway.app.operator_jobs.run import JobRun, Shared
from gateway.app.operator_jobs.scheduling import ScheduleCheck, Schedulers
from gateway.app.rounds import Rounds
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError, GatehouseError, LeaseLost
from gateway.core.jobs import JobRecord
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.pipeline.plane import DataPlane
from gateway.store.store import Store

log = logging.getLogger("gatehouse.jobs")
PAUSE_SECONDS: Final = 30.0
"""How long a job is left alone here if its end could not be stored, or if its maker is suspended or halted."""
LEAST_LEASE: Final = 3.0
MOST_OVER: Final = 100
"""Jobs without a process that are put to an end in one round."""


class JobWork:
    """replica: this one, whose model files are here. holder: this process, unlike every other, and its `prefix`, with which no other
    process that is alive begins. Life: `start` once the store has been started, `aclose` before it closes."""

    def __init__(self, shared: Shared, check: ScheduleCheck, replica: str, prefix: str, holder: str) -> None:
        self._check = check
        self.shared, self._replica, self._prefix, self._holder = shared, replica, prefix, holder
        self._held: dict[str, JobRun] = {}
        self._paused: dict[str, float] = {}
        self._tasks = TaskOwner("operator jobs")
        self._freed = False
        forget = lambda: shared.kept.forget(shared.settings.keep)  # noqa: E731 - one line says it
        self._rounds = Rounds("jobs", log, look=self._look, count=shared.book.count, forget=forget)
        shared.book.changed = self._rounds.wake
        shared.book.running = lambda: len(self._held)

    def start(self) -> None:
        self._tasks.spawn(self._take(), name="take")

    async def _take(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.shared.folder, ignore_errors=True)  # of a process that is gone: nobody else is here
        await self._rounds.run()

    async def _look(self) -> None:
        if not self._freed:
            await self.shared.kept.free(f"{self._prefix}:")
            self._freed = True
        if self.shared.stopping:
            return
        await self._check.look()
        await self.shared.book.look()
        now = self.shared.clock.monotonic()
        self._paused = {id: until for id, until in self._paused.items() if until > now}
        for _ in range(MOST_OVER):
            if len(self._held) >= self.shared.settings.parallel or self.shared.stopping:
                return
            found = await self.shared.kept.take(self._holder, self._replica, self.shared.settings.lease, [*self._paused, *self._held])
            if found is None:
                return
            if found.state != "running":
                self.shared.book.ended(found)
                continue
            if self.shared.book.stopped(found.creator):
                await self.shared.kept.release(found)
                self._paused[found.id] = now + PAUSE_SECONDS
                continue
            run = self._held[found.id] = JobRun(self.shared, found)
            self._tasks.spawn(self._do(run, found), name=found.id)

    async def _do(self, run: JobRun, job: JobRecord) -> None:
        try:
            await run.run()
        except LeaseLost as error:
            log.warning("%s", error.message)
        except GatehouseError as error:
            log.warning("%s rests for %.0f s: %s", job.id, PAUSE_SECONDS, error.message)
            self._paused[job.id] = self.shared.clock.monotonic() + PAUSE_SECONDS
        except Exception:  # boundary: one job that fails does not stop the others
            log.exception("%s failed", job.id)
            self._paused[job.id] = self.shared.clock.monotonic() + PAUSE_SECONDS
        finally:
            self._held.pop(job.id, None)
            self._rounds.wake()

    async def aclose(self) -> None:
        """Ends what runs here and gives it back: another process begins it again."""
        self.shared.closing = True
        self._rounds.close()
        await self._tasks.finish(15.0)


class OperatorJobs:
    """The parts of operators' jobs in the process that has the store. book: None where they are not enabled. Raises ConfigError."""

    def __init__(
        self, spec: ConfigSpec, store: Store, models: Library, work: ClientWork, plane: DataPlane, record: Record, replica: str, holder: str
    ) -> None:
        self.book: JobBook | None = None
        self._work: JobWork | None = None
        settings = spec.jobs
        if not settings.enabled:
            return
        if settings.lease < LEAST_LEASE:
            raise ConfigError(f"is at least {LEAST_LEASE:.0f}s: it is renewed every second", path="jobs.lease")
        self.book = JobBook(settings, store.jobs, work.files, models, replica, record)
        folder = Path(spec.state_dir).resolve() / "jobs"
        leaving = lambda: plane.draining or plane.closing  # noqa: E731 - one line says it
        parts = (settings, store.jobs, self.book, models, work.files, work.lines, leaving, folder, SystemClock())
        fixed = lambda: {(one.tenant, one.id) for one in plane.current().spec.identity.api_keys.static}  # noqa: E731 - one line says it
        schedulers = Schedulers(store.get_key, fixed, work.revocations, plane.standing, SystemClock(), store.jobs.deleted)
        check = ScheduleCheck(store.jobs, schedulers, record, SystemClock())
        self.book.stopped = schedulers.stopped
        self._work = JobWork(Shared(*parts), check, replica, holder.partition(":")[0], holder)

    def start(self) -> None:
        if self._work is not None:
            self._work.start()

    async def aclose(self) -> None:
        if self._work is not None:
            await self._work.aclose()

    def collect(self) -> Iterable[Metric]:
        return () if self.book is None else self.book.collect()
