"""The audit log as the pipeline sees it: group commit through a writer thread.

The event loop only appends records to a list. The first intent of a batch schedules one hand-over; the writer's thread encodes, chains and
writes the whole batch and completes its one Signal. While it works, the next batch gathers, so the work for each request falls as the
load grows. Outcomes wait for the next intent, 5 ms at most.

With `durability: write`, and under a steady load that the log keeps up with, no request waits for the thread: its record is copied into the
journal, which outlives the process just as a write does, and is in the chain within FLUSH_DELAY. The parts:

- gateway.audit.batch: the batch that gathers, and the one that is being written;
- gateway.audit.fastpath: the journal, and linking ahead;
- gateway.audit.reliance: the decision, 20 times a second, whether requests may rely on the journal;
- gateway.audit.fault: the log's states, why it takes no records, what that cost.

When the log cannot be written (an error, or a write that hangs for longer than `timeout`), everyone who waits gets AuditUnavailable and new
intents are refused at once. Outcomes are kept, up to `queue` records. Each second one batch is tried: an event that tells what happened,
then the kept outcomes. The first that succeeds opens the log again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import thread_time
from typing import Final

from gateway.audit.batch import TRIAL, Gathering, Writing
from gateway.audit.chain import Draft, Entry
from gateway.audit.crypto import BodyHasher, load_body_key, no_hash
from gateway.audit.envelopes import RecordSealer
from gateway.audit.event_tenants import with_tenants
from gateway.audit.fastpath import FastPath
from gateway.audit.fault import FAILED, FULL, HUNG, OPEN, STARTED, TRYING, Fault, reason_of
from gateway.audit.job_thread import JobThread
from gateway.audit.keyring import KeyRing
from gateway.audit.opening import Opener
from gateway.audit.privacy import privacy_of
from gateway.audit.reliance import STEADY, Reliance
from gateway.audit.sealing import seal_all
from gateway.audit.signing_keys import KeyWatch, present_signer
from gateway.audit.sinks import local_sink, segment_age
from gateway.audit.sinks.file import FileSink
from gateway.audit.writer import ChainWriter
from gateway.core.clock import Clock, SystemClock
from gateway.core.deadlines import within
from gateway.core.errors import AuditUnavailable, ConfigError, MasterUnavailable, StoreUnavailable
from gateway.core.pauses import Pauses
from gateway.core.specs import AuditSpec
from gateway.core.types import AuditRecord, EventRecord, IntentRecord, OutcomeRecord
from gateway.core.waiting import Signal
from gateway.telemetry.metrics import Histogram

log = logging.getLogger("gatehouse.audit")

FLUSH_DELAY: Final = 0.005
"""Seconds after which a batch that nobody waits for is written."""
TICK: Final = 1.0
"""Seconds between looks at a hanging write, tries while the log is broken, and checks whether a checkpoint is due."""
_TRIAL_BATCH: Final = 4096
WRITE_BOUNDS: Final[tuple[float, ...]] = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Seconds that a batch took to write."""

Job = tuple[list[Entry], Draft | None] | Callable[[], None]


class AuditBroker:
    """Implements gateway.core.ports.AuditLog. Life: construct (reads or makes the keys; ConfigError), `start`, `aclose`.

    Everything but the writer's thread belongs to the event loop that `start` ran on. cpu, steady: see Reliance. tick: TICK, or less where
    `timeout` is short.
    """

    def __init__(
        self,
        spec: AuditSpec,
        state_dir: str,
        *,
        writer: str = "0",
        config: int = 0,
        clock: Clock | None = None,
        sink: FileSink | None = None,
        tick: float | None = None,
        cpu: Callable[[], float] = thread_time,
        steady: int = STEADY,
    ) -> None:
        self._spec, self._clock = spec, clock or SystemClock()
        self._tick = min(TICK, max(spec.timeout / 4, 0.05)) if tick is None else tick
        chosen = sink or local_sink(spec, state_dir, writer)
        self._writer = ChainWriter(chosen, present_signer(state_dir, chosen.directory, chosen.writer), self._clock, config)
        self._writer.renew, self._writer.age = KeyWatch(state_dir), segment_age(spec)
        self.hash_body: Callable[[bytes | memoryview], str] = BodyHasher(load_body_key(state_dir)) if spec.body_hashes else no_hash
        self._ready, self._fault = _completed(), Fault(self._clock)
        self._gathering = Gathering(spec.queue, spec.durability == "async")
        self._writing, self._path = Writing(), FastPath()
        self._reliance = Reliance(self._path, self._writer, self._fault, self._clock, cpu, steady)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs_thread: JobThread[Job] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._checkpoint_due = self._ticked = 0.0
        self._pauses, self._closing = Pauses(self._tick, self._clock.monotonic()), False
        self._seals = spec.encryption is not None
        self._whole = spec.encryption is not None and spec.encryption.scope == "record"
        self._sealer: RecordSealer | None = None
        self._privacy = privacy_of(spec.privacy, lambda: load_body_key(state_dir))
        self._writer.seal = seal_all if self._seals else None
        self._idle: asyncio.Event | None = None
        self.writes = Histogram(WRITE_BOUNDS)

    def obey(self, spools: Callable[[], str | None]) -> None:
        """No records are taken while `spools` gives a reason. It is called in the writer's thread, each tick. Before `start`."""
        self._writer.spools = spools

    def encrypt(self, keys: KeyRing | None, opener: Opener) -> None:
        """Has whole records encrypted with these keys, of the loop that `start` runs on, where the settings say so. opener: opens what is
        in the log already. Before `start`."""
        self._writer.opener = opener
        if self._whole and keys is not None:
            self._sealer = self._writer.cover = RecordSealer(keys)

    def prepare(self, chain: ChainWriter) -> None:
        """Has another writer's chain encrypt as this one does."""
        chain.cover, chain.opener = self._sealer, self._writer.opener

    def named(self, process: str) -> None:
        """The name under which this process takes from limits in Redis: its log says whose requests it has. Before `start`."""
        self._writer.process = process

    def configured(self, version: int) -> None:
        """The configuration's version, for the headers of the segments that begin from now on."""
        self._writer.config = version

    # --- the port

    @property
    def accepting(self) -> bool:
        return self._fault.reason is None

    @property
    def fault(self) -> str | None:
        """Why no records are taken, or None."""
        return self._fault.reason

    @property
    def refused(self) -> int:
        """How many intents were refused since the start."""
        return self._fault.refused

    @property
    def lost(self) -> int:
        """How many outcomes found no room since the start."""
        return self._fault.lost

    @property
    def withheld(self) -> int:
        """How many records have nothing of people since the start, because their tenant's data key could not be had."""
        return 0 if self._sealer is None else self._sealer.withheld

    @property
    def damaged(self) -> float:
        """When damage of the log, or deleted files of it, were last found; 0: not since the start."""
        return self._writer.damaged

    @property
    def records(self) -> int:
        """How many lines have been written since the start."""
        return self._writer.written

    @property
    def batches(self) -> int:
        """How many writes they took."""
        return self._writer.batches

    @property
    def waiting(self) -> int:
        """How many records are not written yet."""
        return len(self._gathering.entries) + len(self._writing.batch or ())

    @property
    def lag(self) -> float:
        """For how many seconds the oldest record that is not written yet has been waiting, as far as that is known; 0 without any."""
        if self._writing.batch:
            return self._clock.monotonic() - self._writing.since
        taken = (entry.time for entry in self._gathering.entries if not isinstance(entry, bytes))
        return max(0.0, self._clock.wall() - next(taken, float("inf")))

    def intent(self, record: IntentRecord) -> Signal[None]:
        batch = self._gathering
        if len(batch.entries) >= batch.room:
            raise self._refusal()
        if self._privacy is not None:
            record = self._privacy.request(record)
        path = self._path
        if path.open and (not self._seals or record.text is None) and (entry := path.take(record)) is not None:
            batch.entries.append(entry)
            if batch.timer is None and not batch.scheduled:
                self._flush_later()
            return self._ready
        batch.entries.append(record)
        return batch.signal or self._open_batch()

    def outcome(self, record: OutcomeRecord) -> None:
        batch, path = self._gathering, self._path
        if len(batch.entries) >= batch.outcome_room:
            self._lose()
            return
        if self._privacy is not None:
            record = self._privacy.request(record)
        if path.open:
            batch.entries.append(record if self._seals and record.text is not None else path.take(record) or record)
            if self._writing.batch is None:
                path.link_ahead(batch.entries, self._writer.chain)
        else:
            batch.entries.append(record)
        if batch.timer is None and not batch.scheduled:
            self._flush_later()

    def event(self, record: AuditRecord) -> Signal[None]:
        """Like `intent`, but a refusal is a failed Signal: nothing is raised."""
        batch = self._gathering
        if len(batch.entries) >= batch.room:
            log.error("an audit event could not be recorded: %s", getattr(record, "event", type(record).__name__))
            signal: Signal[None] = Signal()
            signal.fail(self._refusal())
            return signal
        if isinstance(record, EventRecord):
            record = with_tenants(record)
        batch.entries.append(record if self._privacy is None else self._privacy(record))
        return batch.signal or self._open_batch()

    # --- gathering

    def _open_batch(self) -> Signal[None]:
        """Somebody waits for the gathering batch, as the first."""
        batch = self._gathering
        if self._spec.durability == "async":
            if batch.timer is None and not batch.scheduled:
                self._flush_later()
            return self._ready
        signal: Signal[None] = Signal()
        batch.signal = signal
        if self._writing.batch is None and not batch.scheduled:
            batch.scheduled = True
            self._running_loop().call_soon(self._hand_over_soon)
        return signal

    def _flush_later(self) -> None:
        if self._loop is not None:
            self._gathering.timer = self._loop.call_later(FLUSH_DELAY, self._flush)

    def _flush(self) -> None:
        self._gathering.timer = None
        self._hand_over_if_free()

    def _hand_over_soon(self) -> None:
        self._gathering.scheduled = False
        self._hand_over_if_free()

    def _hand_over_if_free(self) -> None:
        if self._writing.batch is None and self._fault.state == OPEN and self._gathering.entries:
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives the gathered batch to the writer, which must be free."""
        batch, signal = self._gathering.take()
        draft = self._path.hand_over()
        self._writing.begin(batch, signal, self._clock.monotonic())
        self._make_room()
        self._give((batch, draft))

    def _make_room(self) -> None:
        self._gathering.resize(len(self._writing.batch or ()), self._fault.reason is None and not self._closing)

    def _refusal(self) -> AuditUnavailable:
        self._fault.refused += 1
        return _unavailable("" if self._fault.reason else "it is being closed" if self._closing else FULL)

    def _lose(self) -> None:
        """There is no room for an outcome."""
        if self._fault.silent:
            log.error("outcomes of requests are lost: the audit log has no room for them")
        self._fault.lose(1)
        if self._fault.state == OPEN:
            self._break(FAILED, FULL)

    # --- the writer's thread

    def _work(self, job: Job) -> None:
        if isinstance(job, tuple):
            self._writer.write(*job)
        else:
            job()

    def _give(self, job: Job) -> None:
        if self._jobs_thread is not None:
            self._jobs_thread.give(job)

    def _order(self, job: Callable[[], None]) -> None:
        """Has the writer, which must be free, do something else than write a batch."""
        self._writing.begin([], None, self._clock.monotonic())
        self._path.draft = None
        self._give(job)

    # --- back on the loop

    def _done(self, error: Exception | None) -> None:
        """The writer finished a job."""
        batch, signal = self._writing.end()
        self._make_room()
        if error is None:
            self._written(batch)
        else:
            self._fault.lose(self._gathering.put_back(batch))
            if signal is not None:
                signal.fail(_unavailable())
            self._break(FAILED, reason_of(error))
        if self._idle is not None:
            self._idle.set()
        if signal is not None:
            signal.set(None)

    def _written(self, batch: list[Entry]) -> None:
        """The writer's job succeeded; `batch` is empty when it was something else than a write."""
        if batch:
            self._path.settle()
            self.writes.observe(self._clock.monotonic() - self._writing.since)
        gathering = self._gathering
        if self._fault.state == TRYING:
            self._recover()
        elif self._fault.state != OPEN:  # a write that hung came back, or the sinks were looked at
            if not self._closing and self._writer.behind is None:
                self._try()
        elif gathering.signal is not None and not gathering.scheduled:
            self._hand_over()
        elif gathering.entries and gathering.timer is None:
            self._flush_later()
        if batch and self._loop is not None:
            self._reliance.watch(self._loop)

    def _break(self, what: str, reason: str) -> None:
        """The log takes no records: fails what waits, keeps the outcomes."""
        self._fault.broke(what, reason)
        self._gathering.room = 0
        self._path.shut()
        if self._gathering.signal is not None:
            waiting, signal = self._gathering.take()
            self._fault.lose(self._gathering.put_back(waiting))
            if signal is not None:
                signal.fail(_unavailable())

    def _try(self) -> None:
        """Tries the broken log with an event that tells what happened, and with the first of the kept outcomes."""
        detail, target = self._fault.trial(), f"audit-{self.writer}"
        event = EventRecord(time=self._clock.wall(), event=TRIAL, actor="gatehouse", target=target, detail=detail)
        gathering = self._gathering
        waiting = gathering.entries
        gathering.entries = [event, *waiting[:_TRIAL_BATCH]]
        self._hand_over()
        gathering.entries = waiting[_TRIAL_BATCH:]
        if gathering.entries:
            self._path.keep()

    def _recover(self) -> None:
        """The trial succeeded. Outcomes that were lost while it was written are told by another one, at once."""
        self._fault.recovered()
        if not self._fault.silent and not self._closing:
            self._break(FAILED, FULL)
            self._try()
            return
        self._make_room()
        if self._gathering.entries and self._gathering.timer is None:
            self._flush_later()

    @property
    def writer(self) -> str:
        return self._writer.sink.writer

    # --- each tick

    def _on_tick(self) -> None:
        now = self._clock.monotonic()
        self._ticker = self._running_loop().call_later(self._tick, self._on_tick)
        self._writer.look = True
        stood, self._ticked = self._pauses.since(now), now  # and so did the writer: what it writes gets its time
        self._writing.since = min(now, self._writing.since + stood)
        if self._sealer is not None:
            self._sealer.refresh()
        if self._writing.batch is not None:
            if now - self._writing.since >= self._spec.timeout:
                self._hang(f"a write has been waiting for {self._spec.timeout:g} s")
        elif self._writer.behind is not None:
            if self._fault.state == OPEN:
                self._break(FAILED, self._writer.behind)
            self._order(self._writer.mind)
        elif self._fault.state != OPEN:
            if not self._closing:
                self._try()
        elif now >= self._checkpoint_due:
            self._checkpoint_due = now + self._spec.checkpoint.every
            self._order(self._writer.checkpoint)
        else:
            self._order(self._writer.mind)

    def _hang(self, reason: str) -> None:
        """The writer does not come back: fails what waits for it."""
        signal, self._writing.signal = self._writing.signal, None
        self._break(HUNG, reason)
        if signal is not None:
            signal.fail(_unavailable())

    # --- life

    async def start(self) -> None:
        """Repairs and opens the log and starts the writer's thread. Raises ConfigError when the log cannot be opened."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._have_keys()
            await self._loop.run_in_executor(None, self._writer.open)
        except (OSError, MasterUnavailable, StoreUnavailable) as error:
            self._writer.abandon()
            raise ConfigError(f"cannot open the audit log: {reason_of(error)}", path="audit.sinks") from error
        if self._spec.durability == "write" and not self._whole:  # a journal would hold records in the clear
            self._path.attach(await self._loop.run_in_executor(None, self._writer.make_journal))
        self._jobs_thread = JobThread(self._loop, self._work, self._done)
        self._fault.happened(STARTED)
        self._make_room()
        if self._writer.behind is not None:
            self._break(FAILED, self._writer.behind)
        self._ticked = self._clock.monotonic()
        self._checkpoint_due = self._ticked + self._spec.checkpoint.every
        self._ticker = self._loop.call_later(self._tick, self._on_tick)

    async def _have_keys(self) -> None:
        """Where whole records are encrypted. Raises ConfigError, MasterUnavailable, StoreUnavailable."""
        if self._sealer is not None:
            await self._sealer.begin()
        elif self._whole:
            raise ConfigError("there are no keys to encrypt records with", path="audit.encryption.scope")

    async def aclose(self, timeout: float | None = None) -> None:
        """Writes what waits and the last checkpoint, and ends the thread; gives up after `timeout` seconds (default: the setting)."""
        if self._closing or self._loop is None:
            return
        self._closing = True
        self._reliance.end()
        self._path.open = False
        self._gathering.room = 0
        if self._jobs_thread is not None:
            try:
                async with within(self._spec.timeout if timeout is None else timeout):
                    await self._finish()
            except TimeoutError:
                self._hang("it could not be closed in time")
                log.error("the audit log could not be closed in time; %d records are lost", len(self._gathering.entries))
        self._gathering.outcome_room = 0
        self._fault.end()
        for timer in (self._gathering.timer, self._ticker):
            if timer is not None:
                timer.cancel()
        self._path.close()
        if self._jobs_thread is not None:
            self._jobs_thread.end(wait=self._writing.batch is None)

    async def _finish(self) -> None:
        """Writes everything that waits, then the writer's last words."""
        await self._free()
        if self._fault.state != OPEN:
            self._try()
            await self._free()
        while self._gathering.entries and self._fault.state == OPEN:
            self._hand_over()
            await self._free()
        if self._fault.state != OPEN:
            log.error("the audit log is closed while it takes no records; %d are lost", len(self._gathering.entries))
        self._order((lambda: self._writer.close(self._fault.lost)) if self._fault.state == OPEN else self._writer.abandon)
        await self._free()

    async def _free(self) -> None:
        """Waits until the writer has nothing to do."""
        while self._writing.batch is not None:
            self._idle = asyncio.Event()
            await self._idle.wait()
        self._idle = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise _unavailable("not started")
        return self._loop


def _completed() -> Signal[None]:
    signal: Signal[None] = Signal()
    signal.set(None)
    return signal


def _unavailable(reason: str = "") -> AuditUnavailable:  # clients see it: what a disk or a sink said is in the log and in `fault`
    return AuditUnavailable(f"The audit log takes no records{reason and ': '}{reason}.", retry_after=1.0)
