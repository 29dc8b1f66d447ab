"""The audit log as the pipeline sees it: group commit through a writer thread.

The event loop only appends record objects to a list. The first intent of a batch schedules one hand-over; the writer's thread
encodes, chains and writes the whole batch and completes its one Signal. While it works, the next batch gathers, so the work for each
request falls as the load grows. Outcomes wait for the next intent, 5 ms at most.

With `durability: write`, and under a steady load that the log keeps up with, nobody waits for the thread: a record is copied into the
journal, which outlives the process as what was written does, and is in the chain within FLUSH_DELAY: linked by the loop after the
request's answer, written by the thread. That is decided each PROOF: STEADY records were written in the last one, and left room on the
disk. So a disk that is full, fails or hangs is met by requests that wait for it, but for those of one PROOF, whose records are kept. A
loop that is BUSY lets requests wait, too: those that go on together are cheaper than those that go on one by one, by a fifth of all work.

When the log cannot be written (an error, or a write that hangs for longer than `timeout`), what waits fails with AuditUnavailable,
new intents are refused at once, outcomes are kept up to `queue` records, and each second one batch is tried: an event that tells
what happened, then the kept outcomes. The first that succeeds opens the log again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import thread_time
from typing import Final

from gateway.audit.chain import Draft, Entry, payload
from gateway.audit.crypto import BodyHasher, load_body_key, load_signer, no_hash
from gateway.audit.journal import Journal
from gateway.audit.sinks import local_sink
from gateway.audit.sinks.file import FileSink
from gateway.audit.worker import Worker
from gateway.audit.writer import ChainWriter
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import AuditUnavailable, ConfigError, GatehouseError
from gateway.core.specs import AuditSpec
from gateway.core.types import AuditRecord, EventRecord, IntentRecord, OutcomeRecord
from gateway.core.waiting import Signal

log = logging.getLogger("gatehouse.audit")

FLUSH_DELAY: Final = 0.005
PROOF: Final = 0.05
"""Seconds for which the log may be relied on before it is looked at again."""
STEADY: Final = 100
"""Records of one PROOF from which on a request need not wait: 1,000 requests a second. With fewer nothing is gained by it."""
BUSY: Final = 0.65
"""Share of its core that the loop uses when throughput counts for more than the wait of one request."""
TICK: Final = 1.0
_HEAL_BATCH: Final = 4096

AHEAD: Final = 8
"""How many records are linked ahead at one time; what gathered while a write took long is not linked by one request."""

Job = tuple[list[Entry], Draft | None] | Callable[[], None]


class AuditBroker:
    """Implements gateway.core.ports.AuditLog. Life: construct (reads or makes the keys; ConfigError), `start`, `aclose`.

    Everything but the writer's thread belongs to the event loop that `start` ran on. `refused` and `lost` count, since the start, the
    intents that were turned away and the outcomes that found no room.
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
        if spec.encryption is not None:
            raise ConfigError("encryption of audit records is not available yet", path="audit.encryption")
        self._spec, self._clock, self._cpu, self._steady = spec, clock or SystemClock(), cpu, steady
        self._tick = min(TICK, max(spec.timeout / 4, 0.05)) if tick is None else tick
        chosen = sink or local_sink(spec, state_dir, writer)
        self._writer = ChainWriter(chosen, load_signer(state_dir), self._clock, config)
        self.hash_body: Callable[[bytes | memoryview], str] = BodyHasher(load_body_key(state_dir)) if spec.body_hashes else no_hash
        self._worker: Worker[Job] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = _completed()
        # the batch that gathers
        self._pending: list[Entry] = []
        self._signal: Signal[None] | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        # whether records go to the journal, and the position in it that the batch settles
        self._journal: Journal | None = None
        self._quick = False
        self._mark = 0
        self._draft: Draft | None = None
        # when the log was last looked at: how many records had been written, the time, and what the loop had used of its core
        self._doubter: asyncio.TimerHandle | None = None
        self._proofs = 0
        self._doubted = self._used = 0.0
        # the batch that is being written
        self._inflight: list[Entry] | None = None
        self._inflight_signal: Signal[None] | None = None
        self._since = 0.0
        self._healing = False
        # how many records the gathering batch may hold: intents none while closed or broken
        self._room = 0
        self._outcome_room = 0
        # the fault, and what it cost
        self._fault: str | None = "not started"
        self._fault_time = 0.0
        self.refused = self.lost = 0
        self._told = self._telling = (0, 0)
        self._checkpoint_due = 0.0
        self._idle: asyncio.Event | None = None
        self._closing = False

    def follow(self, *followers: Callable[[bytes], None]) -> None:
        """Each gets every batch once it is in the chain, in the writer's thread, and must not block. Before `start`."""
        self._writer.followers = followers

    def configured(self, version: int) -> None:
        """The configuration's version, for the headers of the segments that begin from now on."""
        self._writer.config = version

    # --- the port

    @property
    def accepting(self) -> bool:
        return self._fault is None

    @property
    def fault(self) -> str | None:
        """Why nothing is accepted, or None."""
        return self._fault

    @property
    def records(self) -> int:
        """How many lines have been written since the start."""
        return self._writer.written

    @property
    def batches(self) -> int:
        """How many writes they took."""
        return self._writer.batches

    def intent(self, record: IntentRecord) -> Signal[None]:
        pending = self._pending
        if len(pending) >= self._room:
            raise self._refusal()
        if self._quick and (entry := self._journaled(record)) is not None:
            pending.append(entry)
            if self._timer is None and not self._scheduled:
                self._flush_later()
            return self._ready
        pending.append(record)
        return self._signal or self._open_batch()

    def outcome(self, record: OutcomeRecord) -> None:
        pending = self._pending
        if len(pending) >= self._outcome_room:
            self._lose()
            return
        if self._quick:
            pending.append(self._journaled(record) or record)
            if self._inflight is None:
                self._link_ahead()
        else:
            pending.append(record)
        if self._timer is None and not self._scheduled:
            self._flush_later()

    def event(self, record: AuditRecord) -> Signal[None]:
        """As `intent`, but a refusal is a failed Signal: nothing raises."""
        if len(self._pending) >= self._room:
            log.error("an audit event could not be recorded: %s", getattr(record, "event", type(record).__name__))
            signal: Signal[None] = Signal()
            signal.fail(self._refusal())
            return signal
        self._pending.append(record)
        return self._signal or self._open_batch()

    # --- the journal

    def _journaled(self, record: AuditRecord) -> bytes | None:
        """What stands in the journal for the record; None when it has no room."""
        journal = self._journal
        if journal is None:
            return None
        entry = payload(record)
        return entry if journal.append(entry) else None

    def _link_ahead(self) -> None:
        """Links to the chain what the journal holds of the gathering batch, a request at a time: the thread that would do it for the whole
        batch keeps the interpreter from the loop meanwhile. The chain may be read, because the writer has nothing to do."""
        draft = self._draft
        if draft is None:
            draft = self._draft = Draft(self._writer.chain)
        entries: list[bytes] = []
        for entry in self._pending[draft.count : draft.count + AHEAD]:
            if not isinstance(entry, bytes):
                break
            entries.append(entry)
        draft.extend(entries)

    def _proven(self) -> None:
        """A batch was written: the log is looked at from now on."""
        if self._doubter is None and self._journal is not None:
            self._doubt_later()

    def _doubt_later(self) -> None:
        self._proofs, self._doubted, self._used = self._writer.written, self._clock.monotonic(), self._cpu()
        self._doubter = self._running_loop().call_later(PROOF, self._doubt)

    def _doubt(self) -> None:
        """Each PROOF, while batches are written: need the requests of the next one wait?"""
        self._doubter = None
        written = self._writer.written - self._proofs
        busy = self._cpu() - self._used > BUSY * (self._clock.monotonic() - self._doubted)
        sound = self._writer.roomy and self._fault is None and not self._closing
        self._quick = sound and not busy and written >= self._steady
        if written:
            self._doubt_later()

    # --- gathering

    def _open_batch(self) -> Signal[None]:
        if self._spec.durability == "async":
            if self._timer is None and not self._scheduled:
                self._flush_later()
            return self._ready
        signal: Signal[None] = Signal()
        self._signal = signal
        if self._inflight is None and not self._scheduled:
            self._scheduled = True
            self._running_loop().call_soon(self._hand_over_soon)
        return signal

    def _flush_later(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(FLUSH_DELAY, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._pending and self._inflight is None and self._fault is None:
            self._hand_over()

    def _hand_over_soon(self) -> None:
        self._scheduled = False
        if self._inflight is None and self._fault is None and self._pending:
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives the gathered batch to the writer, which must be free."""
        batch, draft = self._pending, self._draft
        self._pending, self._draft = [], None
        self._inflight, self._inflight_signal, self._signal = batch, self._signal, None
        if self._journal is not None:
            self._mark = self._journal.position
        self._make_room()
        self._since = self._clock.monotonic()
        self._give((batch, draft))

    def _make_room(self) -> None:
        """How many records the gathering batch may hold now."""
        self._outcome_room = self._spec.queue - len(self._inflight or ())
        self._room = self._outcome_room if self._fault is None and not self._closing else 0

    # --- the writer's thread

    def _work(self, job: Job) -> None:
        if isinstance(job, tuple):
            self._writer.write(*job)
        else:
            job()

    def _give(self, job: Job) -> None:
        if self._worker is not None:
            self._worker.give(job)

    # --- back on the loop

    def _done(self, error: Exception | None) -> None:
        """The writer finished a job."""
        batch, signal = self._inflight, self._inflight_signal
        self._inflight = self._inflight_signal = None
        self._make_room()
        if error is None and batch and self._journal is not None:
            self._journal.settle(self._mark)
        if error is not None:
            self._keep(batch or [])
            if signal is not None:
                signal.fail(_unavailable(str(error)))
            self._break(_reason(error))
        elif self._fault is not None:
            self._after_fault()
        elif self._signal is not None and not self._scheduled:
            self._hand_over()
        elif self._pending and self._timer is None:
            self._flush_later()
        if error is None and batch:
            self._proven()
        if self._idle is not None:
            self._idle.set()
        if signal is not None:
            signal.set(None)

    def _break(self, reason: str) -> None:
        """The log takes no records: fails what waits, keeps the outcomes."""
        if self._fault is None:
            self._fault, self._fault_time = reason, self._clock.wall()
            log.error("the audit log takes no records: %s", reason)
        self._room = 0
        self._quick = False
        self._draft = None
        signal, self._signal = self._signal, None
        if signal is not None:
            waiting, self._pending = self._pending, []
            self._keep(waiting)
            signal.fail(_unavailable(reason))

    def _keep(self, batch: list[Entry]) -> None:
        """Puts the outcomes of a batch that was not written back, and what was forwarded on its entry in the journal, as many as there is
        room for; counts the rest."""
        kept: list[Entry] = [record for record in batch if isinstance(record, OutcomeRecord | bytes)]
        kept += self._pending
        room = self._spec.queue
        self.lost += max(0, len(kept) - room)
        self._pending = kept[:room]

    def _after_fault(self) -> None:
        """A job succeeded while the log counted as broken: the healing batch, or a write that hung and came back."""
        if not self._healing:
            self._heal()
            return
        self._healing = False
        log.warning("the audit log takes records again, after %s", self._fault)
        self._fault = None
        self._told = self._telling
        self._make_room()
        if self._pending and self._timer is None:
            self._flush_later()

    def _heal(self) -> None:
        """Tries the log with an event that tells what happened and with the first of the kept outcomes."""
        self._telling = self.refused, self.lost
        refused, lost = self.refused - self._told[0], self.lost - self._told[1]
        detail = {"reason": self._fault, "since": self._fault_time, "refused_intents": refused, "lost_records": lost}
        event = EventRecord(self._clock.wall(), "audit.recovered", actor="gatehouse", target=f"audit-{self.writer}", detail=detail)
        waiting = self._pending
        self._pending = [event, *waiting[:_HEAL_BATCH]]
        self._healing = True
        self._hand_over()
        self._pending = waiting[_HEAL_BATCH:]
        if self._pending and self._journal is not None:
            self._mark = self._journal.done

    def _lose(self) -> None:
        if self.lost == self._told[1]:
            log.error("outcomes of requests are lost: the audit log has no room for them")
        self.lost += 1
        if self._fault is None:
            self._break("the queue is full")

    @property
    def writer(self) -> str:
        return self._writer.sink.writer

    def _refusal(self) -> AuditUnavailable:
        self.refused += 1
        return _unavailable(self._fault or ("it is being closed" if self._closing else "the queue is full"))

    # --- each second

    def _on_tick(self) -> None:
        now = self._clock.monotonic()
        self._ticker = self._running_loop().call_later(self._tick, self._on_tick)
        if self._inflight is not None:
            if now - self._since >= self._spec.timeout:
                self._hang(f"a write has been waiting for {self._spec.timeout:g} s")
        elif self._fault is not None:
            if not self._closing:
                self._heal()
        elif now >= self._checkpoint_due:
            self._checkpoint_due = now + self._spec.checkpoint.every
            self._order(self._writer.checkpoint)

    def _hang(self, reason: str) -> None:
        """The writer does not come back: fails what waits for it."""
        signal, self._inflight_signal = self._inflight_signal, None
        self._break(reason)
        if signal is not None:
            signal.fail(_unavailable(reason))

    def _order(self, job: Callable[[], None]) -> None:
        """Has the writer do something else than a batch, when it is free."""
        self._inflight, self._since, self._draft = [], self._clock.monotonic(), None
        self._give(job)

    # --- life

    async def start(self) -> None:
        """Repairs and opens the log and starts the writer's thread. Raises ConfigError when the log cannot be opened."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._loop.run_in_executor(None, self._writer.open)
        except OSError as error:
            self._writer.abandon()
            raise ConfigError(f"cannot open the audit log: {_reason(error)}", path="audit.sinks") from error
        if self._spec.durability == "write":
            self._journal = await self._loop.run_in_executor(None, self._writer.make_journal)
        self._worker = Worker(self._loop, self._work, self._done)
        self._fault = None
        self._make_room()
        self._checkpoint_due = self._clock.monotonic() + self._spec.checkpoint.every
        self._ticker = self._loop.call_later(self._tick, self._on_tick)

    async def aclose(self, timeout: float | None = None) -> None:
        """Writes what waits, the last checkpoint, and ends the thread; gives up after `timeout` seconds (default: the setting)."""
        if self._closing or self._loop is None:
            return
        self._closing = True
        self._quick = False
        self._room = 0
        if self._worker is not None:
            try:
                await asyncio.wait_for(self._finish(), self._spec.timeout if timeout is None else timeout)
            except TimeoutError:
                self._hang("it could not be closed in time")
                log.error("the audit log could not be closed in time; %d records are lost", len(self._pending))
        self._outcome_room = 0
        self._fault = self._fault or "closed"
        for timer in (self._timer, self._ticker, self._doubter):
            if timer is not None:
                timer.cancel()
        if self._journal is not None:
            self._journal.close()
        if self._worker is not None:
            self._worker.end(wait=self._inflight is None)

    async def _finish(self) -> None:
        """Everything that waits, then the writer's own farewell."""
        await self._free()
        if self._fault is not None:
            self._heal()
            await self._free()
        while self._pending and self._fault is None:
            self._hand_over()
            await self._free()
        if self._fault is not None:
            log.error("the audit log is closed while it takes no records; %d are lost", len(self._pending))
        self._order(self._writer.close if self._fault is None else self._writer.abandon)
        await self._free()

    async def _free(self) -> None:
        """Waits until the writer has nothing to do."""
        while self._inflight is not None:
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


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return error.message if isinstance(error, GatehouseError) else f"{type(error).__name__}: {error}"


def _unavailable(reason: str) -> AuditUnavailable:
    return AuditUnavailable(f"the audit log takes no records: {reason}", retry_after=1.0)
