"""One batch, from its validation to its files of results, in the process that holds it.

A line is noted as begun, in the store, before it is run, and its outcome is noted with the next step; so after a crash every line is known
to have an outcome, not to have begun, or to have begun without a known outcome. The last are few (at most as many as run at once): they are
run again and counted (`repeated`), or reported (`unknown`), never dropped and never run again unsaid.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec

from gateway.app.batches.book import BatchBook
from gateway.app.batches.results import Results, unreadable
from gateway.app.clients.files import MISSING, ClientFiles
from gateway.batches.lines import Asked, Check, LineRefused, Splitter, asked
from gateway.batches.sealed import Damaged, SealedTexts
from gateway.core.batches import OVER, BatchError, BatchRecord, LineLost, LineOutcome, LineRow, Lines
from gateway.core.clock import Clock, Entropy
from gateway.core.errors import NotFound, PermissionDenied, Shredded, StoreUnavailable
from gateway.core.specs.batches import BatchesSpec
from gateway.core.tasks import TaskOwner
from gateway.store.batches import StoredBatches
from gateway.wire.openai.batches import failure, result

log = logging.getLogger("gatehouse.batches")
POLL_SECONDS: Final = 0.02
"""Between two looks for a free slot, at least."""
MOST_PAUSE: Final = 0.1
PAUSE_SHARE: Final = 0.125
"""A share of the time that a line takes. Ended lines wait so long, but at most `MOST_PAUSE`, for others: they are written to the store
together, which costs it and this process as little as one would. Looks for a free slot come no more often."""
USUAL_SHARE: Final = 0.1
"""What the newest line counts for in the time that a line takes."""
STEP_SECONDS: Final = 1.0
"""The store is asked at least so often whether the batch is cancelled."""
RETRY_SECONDS: Final = 1.0
MOST_WAIT: Final = 60.0
"""Until a line is tried again that was not served."""
DEFERRED: Final = 4
"""For each line that may run, so many may wait to be tried again before no further ones are read."""
UNKNOWN: Final = "outcome_unknown"


class Shared:
    """What the runs of a process share. leaving: whether the process serves no more. running: lines at the moment. closing: no more lines
    are begun."""

    def __init__(
        self,
        settings: BatchesSpec,
        kept: StoredBatches,
        book: BatchBook,
        files: ClientFiles,
        lines: Lines,
        leaving: Callable[[], bool],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.settings, self.kept, self.book, self.files, self.lines = settings, kept, book, files, lines
        self.leaving, self.clock, self.entropy = leaving, clock, entropy
        self.running = 0
        self.closing = False

    @property
    def stopping(self) -> bool:
        return self.closing or self.leaving()


class Begun(NamedTuple):
    """since: when it was sent, by the monotonic clock."""

    line: Asked
    attempt: int
    place: str
    since: float = 0.0


class BatchRun:
    """`run` returns when the batch is over, or when this process stops. Raises LeaseLost; other GatehouseErrors where it cannot go on."""

    def __init__(self, shared: Shared, batch: BatchRecord) -> None:
        self._shared, self.batch = shared, batch
        self._texts: SealedTexts | None = None
        self._tasks = TaskOwner(batch.id)
        self._running: dict[asyncio.Task[LineOutcome], Begun] = {}
        self._known: dict[int, LineRow] = {}
        self._deferred: list[tuple[float, int, Asked]] = []
        self._ended: list[LineRow] = []
        self._begins: list[Begun] = []
        self._undone: list[LineRow] = []
        self._next: Asked | None = None
        self._stepped = shared.clock.monotonic()
        self._expired = False
        self._usual = 0.0
        """Seconds that a line takes."""

    def hurry(self) -> None:
        """Something may have been asked of it."""
        self._stepped = float("-inf")

    async def run(self) -> None:
        try:
            if self.batch.state == "validating":
                await self._validate()
                if self.batch.state == "validating":  # this process stops
                    await self._shared.kept.release(self.batch)
                    return
            if self.batch.state in ("in_progress", "cancelling"):
                await self._prepare()
                await self._work()
            if self.batch.state in OVER:
                return
            if self._shared.stopping and not self._over:
                await self._shared.kept.release(self.batch)
                return
            await self._finalize()
        except Shredded as error:  # neither can its results be read by anybody
            await self._close(msgspec.structs.replace(self.batch, state="failed", errors=(unreadable(error),)))
        finally:
            self._shared.running -= len(self._running)
            await self._tasks.aclose()

    @property
    def _over(self) -> bool:
        """Whether no line is to be begun any more."""
        batch = self.batch
        return batch.state not in ("validating", "in_progress") or self._expired or bool(batch.errors) or self._done >= batch.total

    @property
    def _done(self) -> int:
        return self.batch.completed + self.batch.failed

    # --- validation

    async def _validate(self) -> None:
        settings, batch = self._shared.settings, self.batch
        check = Check(batch.endpoint, settings.max_lines, settings.max_line_bytes)
        try:
            _, content = await self._shared.files.read(batch.creator.tenant, batch.input)
            async for block in content:
                await asyncio.to_thread(check.feed, block)
                if check.over or self._shared.stopping:
                    break
                await self._step_if_due()
                if self.batch.state != "validating":
                    return
            else:
                check.finish()
        except (NotFound, Shredded, Damaged) as error:
            check.errors = [unreadable(error)]
        if check.errors:
            await self._close(msgspec.structs.replace(self.batch, state="failed", errors=tuple(check.errors)))
        elif not self._shared.stopping:
            key, _ = await self._shared.files.keys.current(batch.creator.tenant)
            moments = {**self.batch.moments, "in_progress": -1.0}
            self.batch = msgspec.structs.replace(self.batch, state="in_progress", total=check.total, moments=moments, key=key)
            await self._step()

    # --- lines

    async def _prepare(self) -> None:
        """What was begun before, here or elsewhere."""
        batch = self.batch
        self._known = {row.number: row for row in await self._shared.kept.begun(batch.id)}
        self._texts = await self._sealing()

    async def _sealing(self) -> SealedTexts:
        batch, shared = self.batch, self._shared
        key = await shared.files.keys.opening(batch.creator.tenant, batch.key)
        return SealedTexts(batch.id, key, bytes.fromhex(batch.salt), shared.entropy)

    async def _work(self) -> None:
        if self._over:
            return
        source = self._requests()
        more = True
        while True:
            if not self._over and not self._shared.stopping:
                more = await self._fill(source, more)
            if self._ended or self._begins or self._undone:
                await self._step()
            else:
                await self._step_if_due()
            self._spawn()
            ends = self._over or self._shared.stopping or not (more or self._deferred or self._next)
            if ends and not self._running and not self._ended and not self._undone:
                return
            await self._wait()

    async def _fill(self, source: AsyncIterator[Asked], more: bool) -> bool:
        """Chooses lines to begin; whether there are more to be read."""
        shared, settings = self._shared, self._shared.settings
        while shared.running + len(self._begins) < settings.parallel:
            line = self._due()
            if line is None and (len(self._deferred) >= DEFERRED * settings.parallel or not more):
                break
            if line is None:
                line = await self._read(source)
                if line is None:
                    more = False
                    continue
            row = self._known.get(line.number)
            same = sum(begun.line.model == line.model for begun in self._begins)
            place = await shared.lines.place(line.model, same)
            if place is None:
                self._next = line
                break
            self._begin(line, row, place)
        return more

    async def _read(self, source: AsyncIterator[Asked]) -> Asked | None:
        """None at the end, or where the rest is lost: then the batch fails with what it has. Content that is only not here may be at the
        next process that takes the batch."""
        try:
            return await anext(source, None)
        except (Damaged, NotFound) as error:
            if error.code == MISSING:
                raise
            self.batch = msgspec.structs.replace(self.batch, errors=(unreadable(error),))
            return None

    def _due(self) -> Asked | None:
        if self._next is not None:
            line, self._next = self._next, None
            return line
        if self._deferred and self._deferred[0][0] <= self._shared.clock.monotonic():
            return heapq.heappop(self._deferred)[2]
        return None

    def _begin(self, line: Asked, row: LineRow | None, place: str) -> None:
        attempt = 1
        if row is not None:
            attempt = row.attempt + 1
            if row.state == "begun":
                settings = self._shared.settings
                if settings.unknown == "report" or attempt > settings.attempts or self.batch.endpoint == "/v1/responses":
                    message = "The gateway ended while the request ran: whether an engine answered it is not known."
                    self._fails(line, row.attempt, UNKNOWN, message)
                    self._count(unknown=1)
                    return
                self._count(repeated=1)
        self._known[line.number] = LineRow(line.number, attempt, "running", None)
        self._begins.append(Begun(line, attempt, place))

    def _fails(self, line: Asked, attempt: int, code: str, message: str) -> None:
        text = failure(self.batch.id, line.number, line.custom_id, code, message, attempt)
        self._ends(line.number, attempt, "failed", text)

    def _ends(self, number: int, attempt: int, state: str, text: bytes) -> None:
        assert self._texts is not None
        row = LineRow(number, attempt, state, self._texts.seal(number, text))
        self._ended.append(row)
        self._known[number] = LineRow(number, attempt, state, None)
        self._count(**{"completed" if state == "done" else "failed": 1})

    def _count(self, **more: int) -> None:
        self.batch = msgspec.structs.replace(self.batch, **{name: getattr(self.batch, name) + count for name, count in more.items()})
        for name, count in more.items():
            self._shared.book.lines[name] += count

    def _spawn(self) -> None:
        """Only what is noted as begun is run."""
        begins, self._begins = self._begins, []
        now = self._shared.clock.monotonic()
        for begun in begins:
            self._running[self._tasks.spawn(self._line(begun), name="line")] = begun._replace(since=now)
        self._shared.running += len(begins)

    async def _line(self, begun: Begun) -> LineOutcome:
        line = begun.line
        return await self._shared.lines.run(begun.place, self.batch, line.number, line.body, begun.attempt)

    async def _wait(self) -> None:
        """For lines that end, or for a moment."""
        pause = min(self._usual * PAUSE_SHARE, MOST_PAUSE)
        if self._running:
            free = self._shared.running < self._shared.settings.parallel and not self._over
            timeout = max(pause, POLL_SECONDS) if free else STEP_SECONDS
            ended, rest = await asyncio.wait(self._running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if ended and rest and pause:
                await asyncio.wait(rest, timeout=pause)
        else:
            await asyncio.sleep(max(pause, POLL_SECONDS))
        now = self._shared.clock.monotonic()
        for task in [one for one in self._running if one.done()]:
            begun = self._running.pop(task)
            self._shared.running -= 1
            took = now - begun.since
            self._usual += (took - self._usual) * (USUAL_SHARE if self._usual else 1.0)
            self._took(begun, task)

    def _took(self, begun: Begun, task: asyncio.Task[LineOutcome]) -> None:
        line, attempt = begun.line, begun.attempt
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PermissionDenied):  # before it was sent
            self.batch = msgspec.structs.replace(self.batch, errors=(BatchError(code=error.code, message=error.message),))
            self._undo(line, attempt)
        elif isinstance(error, LineLost):  # the store says that it has begun, which stays true
            log.warning("the outcome of line %d of %s is lost: %s", line.number, self.batch.id, error.message)
            self._known[line.number] = LineRow(line.number, attempt, "begun", None)
            self._later(line, RETRY_SECONDS)
        elif error is not None or task.cancelled():
            if error is not None and not isinstance(error, StoreUnavailable):
                log.warning("the line %d of %s could not be run: %r", line.number, self.batch.id, error)
            self._defer(line, attempt, RETRY_SECONDS)
        else:
            outcome = task.result()
            if outcome.again is not None and self._shared.clock.wall() + outcome.again < self.batch.expires:
                self._defer(line, attempt, min(outcome.again, MOST_WAIT))
            else:
                state = "done" if outcome.status == 200 else "failed"
                answer = (outcome.status, outcome.request_id, outcome.body, attempt)
                self._ends(line.number, attempt, state, result(self.batch.id, line.number, line.custom_id, *answer))

    def _defer(self, line: Asked, attempt: int, seconds: float) -> None:
        self._shared.book.lines["deferred"] += 1
        self._undo(line, attempt)
        self._later(line, seconds)

    def _later(self, line: Asked, seconds: float) -> None:
        heapq.heappush(self._deferred, (self._shared.clock.monotonic() + seconds, line.number, line))

    def _undo(self, line: Asked, attempt: int) -> None:
        row = LineRow(line.number, attempt - 1, "waiting", None)
        self._known[line.number] = row
        self._undone.append(row)

    # --- steps

    async def _step_if_due(self) -> None:
        if self._shared.clock.monotonic() - self._stepped >= STEP_SECONDS:
            await self._step()

    async def _step(self) -> None:
        """Writes what has happened, and renews the lease. A store that does not answer is asked again; what came meanwhile is kept. Raises
        LeaseLost."""
        shared = self._shared
        while True:
            begins = [LineRow(begun.line.number, begun.attempt, "begun", None) for begun in self._begins]
            try:
                found = await shared.kept.advance(self.batch, shared.settings.lease, self._ended, begins, self._undone)
                break
            except StoreUnavailable as error:
                if shared.closing:
                    raise
                log.warning("%s waits for the store: %s", self.batch.id, error.message)
                await asyncio.sleep(RETRY_SECONDS)
        self._ended, self._undone = [], []
        self._stepped = shared.clock.monotonic()
        if found.state == "expired":
            self._expired = True
            found = msgspec.structs.replace(found, state=self.batch.state)
        self.batch = found

    def _has_ended(self, number: int) -> bool:
        row = self._known.get(number)
        return row is not None and row.state in ("done", "failed")

    async def _requests(self) -> AsyncIterator[Asked]:
        """Those that have not ended. Raises GatehouseError where the input cannot be read any more."""
        batch, most = self.batch, self._shared.settings.max_line_bytes
        _, content = await self._shared.files.read(batch.creator.tenant, batch.input)
        splitter = Splitter(max(most, 64 * 1024**2))  # it was found good: a bound that has become smaller since does not count

        def wanted(block: bytes, last: bool) -> list[Asked]:
            lines = splitter.feed(block, last)
            return [asked(number, line, batch.endpoint, len(line)) for number, line in lines if not self._has_ended(number)]

        try:
            async for block in content:
                for line in await asyncio.to_thread(wanted, block, False):
                    yield line
            for line in await asyncio.to_thread(wanted, b"", True):
                yield line
        except LineRefused as refused:
            raise Damaged(f"The input of {batch.id} is not what it was: {refused}") from None

    # --- the end

    async def _finalize(self) -> None:
        batch = self.batch
        if batch.state != "finalizing":
            self.batch = msgspec.structs.replace(batch, state="finalizing", moments={**batch.moments, "finalizing": -1.0})
            await self._step()
        results = Results(self._shared.kept, self._shared.files, await self._sealing(), self._shared.settings.lease)
        rest = self._requests() if self._done < self.batch.total else None
        try:
            made = await results.write(self.batch, rest)
            await self._close(made, results)
        except BaseException:
            await results.abandon()
            raise

    async def _close(self, batch: BatchRecord, results: Results | None = None) -> None:
        made = [] if results is None else results.records
        keep = batch.keep or self._shared.files.settings.expire_after
        self.batch = await self._shared.kept.finish(batch, made, keep)
        self._shared.book.ended(self.batch)
        log.info("%s is %s: %d lines, %d completed", batch.id, batch.state, batch.total, batch.completed)
