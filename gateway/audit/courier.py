"""Carries the log to one sink: the lines of all writers in a directory, in their order, each at least once.

The log itself is the sink's queue. How far the sink has come is kept in a file (gateway.audit.sink_positions), so nothing is lost when the
process is killed, and a sink that was away for a day gets that day's lines. A sink that is slow or down holds up nobody, unless it is
required (gateway.audit.spool).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.audit.ledger import LedgerReader, Mark, after, bytes_behind, end_of, head_at
from gateway.audit.opening import Opener
from gateway.audit.segments import open_segment, segment_size
from gateway.audit.sink_positions import SinkPositions, SinkPositionsFile
from gateway.audit.sinks.contract import Sink, Unacceptable, Unsure, batch_of
from gateway.core.clock import Clock, SystemClock
from gateway.core.ledger import Position

log = logging.getLogger("gatehouse.audit")

BLOCK: Final = 256 * 1024
"""About the most bytes of a batch."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at a log in which nothing was new."""
SETTLED_SECONDS: Final = 0.05
"""What is at least this old is sent: a batch whose write failed has been cut off again by then."""
SAVE_SECONDS: Final = 1.0
FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 30.0
SHORT_PAUSE: Final = 2.0
"""The same for our own disk, and for a sink for which requests may be refused: so much longer they are when it is back."""
UNSURE_SECONDS: Final = 60.0
"""After which a receiver that confirms nothing is believed to have read what it got."""
TIMEOUT: Final = 30.0
"""Seconds after which a call of the sink counts as hanging. A thread cannot be interrupted: the call goes on, and is reported."""
CLOSE_SECONDS: Final = 5.0

Segments = list[tuple[int, Path]]


class Sent(NamedTuple):
    """A batch that may come again: when it was accepted, whose it is, where it begins, its bytes."""

    at: float
    position: Position
    size: int


class Courier:
    """One sink and its thread. Life: `prepare` (blocks), `start`, `aclose`.

    name: of the sink. history: whether a sink that is new gets what was logged before. required: whether requests
    may be refused because it is behind; it is tried more often. on_fault(reason or None): called in the thread when
    the sink begins or ceases to fail. opener: opens what was encrypted as a whole; None: the sink gets it as it is.
    sent, lost, refused: lines since the start: accepted; gone from the log before they were sent; that the receiver will never take.
    waiting: bytes that the sink has not accepted yet. fault: why it takes nothing now, or None.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        directory: Path,
        positions: SinkPositionsFile,
        *,
        history: bool = False,
        required: bool = False,
        on_fault: Callable[[str, str | None], None] = lambda name, reason: None,
        opener: Opener | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name, self.sink = name, sink
        self.sent = self.lost = self.refused = self.waiting = 0
        self.fault: str | None = None
        self._directory, self._file, self._history, self._on_fault = directory, positions, history, on_fault
        self._clock, self._opener = clock or SystemClock(), opener
        self._reader = LedgerReader(directory, verb="sent")
        self._at: dict[str, Position] = {}
        self._marks: dict[str, Mark] = {}
        self._looked = -1.0
        self._confirms_nothing = sink if isinstance(sink, Unsure) else None
        self._unsure: deque[Sent] = deque()
        self._saved: SinkPositions | None = None
        self._saved_at = 0.0
        self._pause, self._longest = 0.0, SHORT_PAUSE if required else LONGEST_PAUSE
        self._disk = False  # the fault is our own disk's
        self._wake = threading.Event()
        self._closing = False
        self._since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"audit-{name}", daemon=True)

    # --- life

    def prepare(self) -> None:
        """Finds the position to go on from, and writes it down if there was none. Blocks; raises OSError."""
        positions = self._file.read()
        if positions is None:
            positions = SinkPositions(
                {} if self._history else {writer: _end(writer, of) for writer, of in self._reader.writers().items() if of}
            )
            self._file.write(positions)
        self._at, self._saved = dict(positions.writers), positions

    def start(self) -> None:
        self._thread.start()

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> None:
        """Gives the sink this long to take what waits; the next start goes on with the rest. The sink itself is closed by its owner."""
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, seconds)
        if self.waiting:
            log.warning(
                "the audit sink %s has not taken the last %d bytes of the log; the next start goes on there", self.name, self.waiting
            )

    def segment(self, writer: str) -> int:
        """The segment that is sent next; 0 as long as that is not known."""
        position = self._at.get(writer)
        return 0 if position is None else position.segment

    # --- the thread

    def _run(self) -> None:
        self._call(self.sink.probe)
        while True:
            last, longest = self._closing, self._longest
            try:
                moved = self._round(settled=last)
                self._save()
                if self._disk:
                    self._succeeded()
            except OSError as error:
                self._failed(f"the log cannot be read: {error.strerror or error}", disk=True)
                moved, longest = False, SHORT_PAUSE
            if last and (not moved or self.fault is not None):
                break
            if self.fault is not None:
                self._pause = min(longest, max(FIRST_PAUSE, 2 * self._pause))
                self._wait(self._pause)
            elif not moved:
                self._wait(LOOK_SECONDS)
        self._end_in_order()

    def _wait(self, seconds: float) -> None:
        if not self._closing:
            self._wake.wait(seconds)

    def _end_in_order(self) -> None:
        if self._confirms_nothing is not None and self._unsure and self.fault is None and self._confirms_nothing.finish():
            self._unsure.clear()
        try:
            self._save(now=True)
        except OSError as error:
            log.warning("how far the audit sink %s has come cannot be saved (%s): some records will be sent again", self.name, error)

    def _round(self, *, settled: bool) -> bool:
        """A batch of each writer; whether there was one. settled: everything may be sent, because the writers are closed."""
        writers = {writer: segments for writer, segments in self._reader.writers().items() if segments}
        self._look(writers, settled)
        moved, waiting = False, 0
        for writer, segments in writers.items():
            position = self._position(writer, segments)
            found = self._next(position, segments, self._marks[writer])
            if found is not None:
                lines, then = found
                if not self._carry(writer, lines):
                    self._go_back()
                    self.waiting = sum(bytes_behind(self._at[one], writers[one]) for one in writers if one in self._at)
                    return False
                if self._confirms_nothing is not None:
                    self._unsure.append(Sent(self._clock.monotonic(), position, len(lines)))
                self._at[writer], moved = then, True
            waiting += bytes_behind(self._at[writer], segments)
        self.waiting = waiting
        return moved

    def _look(self, writers: dict[str, Segments], settled: bool) -> None:
        """How far each log may be sent."""
        now = self._clock.monotonic()
        if not settled and now - self._looked < SETTLED_SECONDS and writers.keys() <= self._marks.keys():
            return
        self._looked = now
        for writer, segments in writers.items():
            mark = self._reader.look(writer, segments, settled=settled)
            assert mark is not None
            self._marks[writer] = mark

    def _position(self, writer: str, segments: Segments) -> Position:
        """Where to go on. If the log is not the one that was sent, the beginning of what is there."""
        position = self._at.get(writer) or Position(writer)
        path = dict(segments).get(position.segment)
        if path is None:
            later = next((number for number, _ in segments if number > position.segment), segments[0][0])
            if position.segment:
                self._tell_lost(writer, position, dict(segments)[later])
            position = Position(writer, later, 0, position.seq, position.head)
        elif position.offset and head_at(path, position.offset) != position.head:
            log.error(
                "the audit log of %s was changed before line %d: its segment %d is sent again", writer, position.seq, position.segment
            )
            position = Position(writer, position.segment)
        self._at[writer] = position
        return position

    def _tell_lost(self, writer: str, position: Position, path: Path) -> None:
        first = _first_seq(path)
        missing = max(0, first - 1 - position.seq)
        if missing:
            self.lost += missing
            log.error("the audit sink %s lacks %d lines of %s: they were removed before they could be sent", self.name, missing, writer)

    def _next(self, position: Position, segments: Segments, until: Mark) -> tuple[bytes, Position] | None:
        """The next lines and the position behind them."""
        for number, path in segments:
            if number < position.segment:
                continue
            if number > until.segment:
                return None
            if number > position.segment:
                position = Position(position.writer, number, 0, position.seq, position.head)
            end = until.offset if number == until.segment else segment_size(path)
            if position.offset >= end:
                continue
            with open_segment(path) as file:
                file.seek(position.offset)
                block = file.read(min(BLOCK, end - position.offset))
            if block := block[: block.rfind(b"\n") + 1]:
                return block, after(position, block)
        return None

    # --- the sink

    def _carry(self, writer: str, lines: bytes) -> bool:
        """Whether the sink has accepted the lines, those apart that its receiver will never take."""
        try:
            if not self._call(partial(self._write, writer, lines)):
                return False
        except Unacceptable as refusal:
            several = lines.splitlines(keepends=True)
            if len(several) > 1:
                half = len(several) // 2
                return self._carry(writer, b"".join(several[:half])) and self._carry(writer, b"".join(several[half:]))
            if not self.refused:
                log.error("the audit sink %s refuses a record (%s); it stays in the log", self.name, refusal)
            self.refused += 1
            return True
        self.sent += lines.count(b"\n")
        return True

    def _write(self, writer: str, lines: bytes) -> None:
        """Raises what the sink does; GatehouseError where the lines cannot be opened now."""
        self.sink.write(batch_of(writer, lines if self._opener is None else self._opener.lines(writer, lines)))

    def _go_back(self) -> None:
        """What a receiver that confirms nothing may not have read is sent again."""
        for one in reversed(self._unsure):
            self._at[one.position.writer] = one.position
        self._unsure.clear()

    def _call(self, call: Callable[[], Any]) -> bool:
        """Calls the sink; whether it succeeded. Raises Unacceptable."""
        self._since = self._clock.monotonic()
        failure: Exception | None = None
        try:
            call()
        except Unacceptable:
            self._succeeded()
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a sink that fails is tried again
            failure = error
        finally:
            self._since = None
        if failure is None:
            self._succeeded()
        else:
            self._failed(str(failure) or type(failure).__name__)
        return failure is None

    def _succeeded(self) -> None:
        self._pause, self._disk = 0.0, False
        if self.fault is not None:
            log.warning("the audit sink %s takes records again", self.name)
            self.fault = None
            self._on_fault(self.name, None)

    def _failed(self, reason: str, disk: bool = False) -> None:
        self._disk = disk
        if self.fault is None:
            log.error("the audit sink %s takes no records: %s", self.name, reason)
            self._on_fault(self.name, reason)
        self.fault = reason

    @property
    def hangs(self) -> bool:
        """Whether a call of the sink does not come back."""
        since = self._since
        return since is not None and self._clock.monotonic() - since >= TIMEOUT

    # --- how far it has come

    def _save(self, *, now: bool = False) -> None:
        moment = self._clock.monotonic()
        most = 0 if self._confirms_nothing is None else self._confirms_nothing.unsure_bytes
        while self._unsure and (moment - self._unsure[0].at > UNSURE_SECONDS or sum(one.size for one in self._unsure) > most):
            self._unsure.popleft()
        if not now and moment - self._saved_at < SAVE_SECONDS:
            return
        positions = dict(self._at)
        for one in reversed(self._unsure):
            positions[one.position.writer] = one.position
        found = SinkPositions(positions)
        if found != self._saved:
            self._file.write(found)
            self._saved = found
        self._saved_at = moment


def _end(writer: str, segments: Segments) -> Position:
    number, path = segments[-1]
    mark = end_of(number, path)
    if not mark.offset:
        return Position(writer, number)
    line = _last_line(path, mark.offset)
    return after(Position(writer, number, mark.offset - len(line)), line)


def _last_line(path: Path, end: int) -> bytes:
    with open_segment(path) as file:
        begin = max(0, end - 2 * BLOCK)
        file.seek(begin)
        data = file.read(end - begin)
    return data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]


def _first_seq(path: Path) -> int:
    with open_segment(path) as file:
        number = file.readline(64)[7:].split(b",", 1)[0]
    return int(number) if number.isdigit() else 0
