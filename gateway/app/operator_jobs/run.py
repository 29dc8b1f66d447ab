"""One attempt at a job, under its lease: begun, watched, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from engines.host.catalogue.library import Library
from engines.jobs import torch_export
from engines.jobs.order import MAIN, Order
from gateway.app.clients.files import ClientFiles
from gateway.app.operator_jobs import exporter
from gateway.app.operator_jobs.book import JobBook
from gateway.app.operator_jobs.child import JobChild
from gateway.app.operator_jobs.warming import Warming
from gateway.core.batches import Lines
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, LeaseLost
from gateway.core.jobs import FOLDERS, Benchmark, Convert, Export, JobError, JobFailed, JobRecord, Making, QuantizeOnnx, Warm, failed, pause
from gateway.core.modelfiles import UploadSettings, kind_of
from gateway.core.specs.jobs import JobsSpec
from gateway.core.tasks import TaskOwner
from gateway.store.jobs import StoredJobs

log = logging.getLogger("gatehouse.jobs")
BEAT_SECONDS: Final = 1.0
END_SECONDS: Final = 30.0
Why = Literal["cancelled", "stopping", "deadline"]


class Shared(msgspec.Struct):
    """What all attempts of a process share. folder: for their files, on the file system of the model files. lines: None where none run."""

    settings: JobsSpec
    kept: StoredJobs
    book: JobBook
    models: Library
    files: ClientFiles | None
    lines: Lines | None
    leaving: Callable[[], bool]
    folder: Path
    clock: Clock
    closing: bool = False

    @property
    def stopping(self) -> bool:
        return self.closing or self.leaving()


class JobRun:
    def __init__(self, shared: Shared, job: JobRecord) -> None:
        self._shared, self.job = shared, job
        self._tasks = TaskOwner(job.id)
        self._writing = asyncio.Lock()
        self._worker: JobChild | Warming | None = None
        self._placing = False
        self._began = self._renewed = shared.clock.monotonic()

    async def run(self) -> None:
        """Raises LeaseLost; other GatehouseErrors where the store cannot be told of the end."""
        self._shared.book.told("job_started", self.job)
        work = self._tasks.spawn(self._work(), name="work")
        why: Why | None = None
        try:
            while not (await asyncio.wait((work,), timeout=BEAT_SECONDS))[0]:
                why = await self._beat()
                if why is not None and not self._placing:  # what is as good as done is finished
                    work.cancel()
                    await asyncio.wait((work,), timeout=END_SECONDS)
                    break
        finally:
            await self._tasks.aclose(END_SECONDS)
        await self._end(work, why)

    async def _beat(self) -> Why | None:
        """Renews the lease; whether and why the attempt is to end."""
        now = self._shared.clock.monotonic()
        try:
            await self._write()
            self._renewed = now
        except LeaseLost:
            raise
        except GatehouseError as error:
            if now - self._renewed > self._shared.settings.lease:
                raise LeaseLost(f"The lease of {self.job.id} could not be renewed: {error.message}") from None
        if self.job.cancels:
            return "cancelled"
        if self._shared.stopping or self._shared.book.stopped(self.job.creator):
            return "stopping"  # given back: it begins anew, once it may
        return "deadline" if now - self._began > self._shared.settings.deadline else None

    def _leased(self) -> bool:
        """Whether no other process can have taken the job meanwhile."""
        return self._shared.clock.monotonic() - self._renewed < self._shared.settings.lease

    async def _write(self, **changes: Any) -> None:
        async with self._writing:
            self.job = await self._shared.kept.advance(self._told(**changes), self._shared.settings.lease)

    def _told(self, **changes: Any) -> JobRecord:
        worker = self._worker
        if worker is not None:
            changes["progress"] = round(worker.progress, 4)
        if isinstance(worker, JobChild):
            changes["log"] = worker.log
        told: JobRecord = msgspec.structs.replace(self.job, **changes)
        return told

    async def _end(self, work: asyncio.Task[dict[str, Any]], why: Why | None) -> None:
        settings, kept, book = self._shared.settings, self._shared.kept, self._shared.book
        seconds = self._shared.clock.monotonic() - self._began
        if work.done() and not work.cancelled() and work.exception() is None:
            ended = await kept.finish(self._told(result=work.result(), error=None, progress=1.0), "done")
        elif why == "stopping":
            await kept.release(self._told())
            return
        elif why == "cancelled":
            ended = await kept.finish(self._told(), "cancelled")
        else:
            error = self._failure(work, why)
            state = failed(self.job.attempts, self.job.most, lasting=error.lasting)
            told = self._told(error=JobError(code=error.code, message=error.message))
            ended = await kept.finish(told, state, pause(self.job.attempts, settings.backoff, settings.max_backoff))
        self.job = ended
        book.ended(ended, seconds)

    def _failure(self, work: asyncio.Task[dict[str, Any]], why: Why | None) -> JobFailed:
        if why == "deadline" or not work.done() or work.cancelled():
            return JobFailed(f"The attempt was not over after {self._shared.settings.deadline:.0f} s (jobs.deadline).", code="deadline")
        error = work.exception()
        if isinstance(error, JobFailed):
            return error
        if isinstance(error, GatehouseError):
            return JobFailed(error.message, code=error.code, lasting=400 <= error.status < 500 and error.status not in (408, 429))
        log.error("%s has failed", self.job.id, exc_info=error)
        return JobFailed("The gateway failed while the job ran; its log says more.", code="internal_error")

    # --- the work

    async def _work(self) -> dict[str, Any]:
        task = self.job.task
        if isinstance(task, Warm):
            files, lines = self._shared.files, self._shared.lines
            if files is None or lines is None:
                raise JobFailed("Files are not enabled here (files.enabled).", lasting=True)
            self._worker = warming = Warming(self.job, task, files, lines, self._leased)
            return dict(await warming.run())
        if isinstance(task, Making) and (there := await self._there(task)) is not None:
            return there
        folder = self._shared.folder / f"{self.job.id}-{self.job.fence}"
        try:
            return await self._processed(task, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _processed(self, task: Making | Benchmark, folder: Path) -> dict[str, Any]:
        settings, models = self._shared.settings, self._shared.models
        source, size = await self._source(task)
        target = "" if isinstance(task, Benchmark) else task.to
        if target:
            await models.room(min(size, settings.max_output_bytes), settings.reserve_bytes)
        work = folder / "w"
        await asyncio.to_thread(work.mkdir, 0o700, True)
        options = {name: value for name, value in msgspec.to_builtins(task).items() if name not in ("kind", "model", "to", "replace")}
        order = Order(
            kind=self.job.kind,
            source=str(source),
            folder=str(work),
            target=target,
            options=options,
            threads=settings.threads,
            niceness=settings.niceness,
            memory_bytes=settings.memory_bytes,
            output_bytes=settings.max_output_bytes,
            seconds=settings.deadline,
        )
        result = await (self._exported(folder, order) if isinstance(task, Export) else self._run(JobChild(folder, order)))
        return result if isinstance(task, Benchmark) else {**result, **await self._placed(task, work / target)}

    async def _run(self, child: JobChild) -> dict[str, Any]:
        self._worker = child
        return (await child.run()).result

    async def _exported(self, folder: Path, order: Order) -> dict[str, Any]:
        """PyTorch exports in an environment of its own; what came of it is compared and packed in the gateway's."""
        first = folder / "x"
        await asyncio.to_thread((first / "w").mkdir, 0o700, True)
        program = exporter.command(self._shared.settings.export_python, exporter.PROGRAM)
        made = await self._run(JobChild(first, msgspec.structs.replace(order, folder=str(first / "w"), target=""), program))
        source = first / "w" / torch_export.MADE
        if await asyncio.to_thread(os.path.realpath, source) != os.path.realpath(first / "w") + f"/{torch_export.MADE}":
            raise JobFailed("The exporter left no folder.", code="process_failed")
        compared = await JobChild(folder, msgspec.structs.replace(order, source=str(source))).run()  # the log shown is the exporter's
        return {**made, **compared.result}

    async def _source(self, task: Making | Benchmark) -> tuple[Path, int]:
        """What is read, and about how many bytes are made of it."""
        models = self._shared.models
        if isinstance(task, Convert | Export):
            folder, size = await models.weights(task.model)
            return folder, size * 2 if isinstance(task, Export) or task.type == "F32" else size
        source = await models.source(task.model, FOLDERS.get(type(task), ""))
        whole = await asyncio.to_thread(source.is_dir)
        if not whole and source.suffix != (".onnx" if isinstance(task, QuantizeOnnx) else ".gguf"):
            raise JobFailed(f"The model {task.model!r} is not of the kind that this job takes.", code="model_unusable", lasting=True)
        if isinstance(task, QuantizeOnnx) and (kind_of(task.to) == "folder") != whole:
            like = "a name without a suffix: it is a folder" if whole else "a name that ends in .onnx: it is a file"
            raise JobFailed(f"What is made of {task.model!r} needs {like}.", code="model_unusable", lasting=True)
        return source, await asyncio.to_thread(_size, source)

    async def _placed(self, task: Making, path: Path) -> dict[str, Any]:
        """Adds what was made to the model files, as an upload that has arrived is added."""
        models = self._shared.models
        status = await asyncio.to_thread(_plain, path)
        if status is None:
            raise JobFailed("The process left no file.", code="process_failed")
        sha256 = await models.digest(path)
        main = path.with_name(MAIN) if kind_of(task.to) == "folder" else path  # a folder is known by its graph
        promised = sha256 if main == path else await models.digest(main)
        await self._write(promised=promised)
        if self.job.cancels:
            raise JobFailed("The job was cancelled.", code="cancelled")
        self._placing = True
        settings = UploadSettings(name=task.to, size=status, sha256=sha256, replace=task.replace)
        await models.adopt(path, settings, actor=self.job.creator.name)
        return {"model": task.to, "sha256": promised}

    async def _there(self, task: Making) -> dict[str, Any] | None:
        """What an earlier attempt has added before its process ended."""
        if not self.job.promised:
            return None
        try:
            found = await self._shared.models.checksum(task.to)
        except GatehouseError:
            return None
        same = found["sha256"] == self.job.promised and found["source"] == "registry"
        return {"model": task.to, "sha256": self.job.promised, "bytes": found["size"]} if same else None


def _size(source: Path) -> int:
    files = source.rglob("*") if source.is_dir() else (source,)
    return sum(file.stat().st_size for file in files if file.is_file())


def _plain(path: Path) -> int | None:
    """The size of a plain file; None where it is none, or not its own alone."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size else None
