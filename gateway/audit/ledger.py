"""Sums the outcomes in the audit log: usage by day, caller, model and operation. Everything here blocks: call it in a thread.

A reader goes on where it stopped, so that each line counts once. It leaves the newest lines for the next look: a batch whose write fails
half-way is cut off again. What a look has found at the end is counted by the next one if it is still there, which the chain's hash proves
for everything before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from time import sleep
from typing import Final, NamedTuple

import msgspec

from gateway.audit.chain import read_line, read_lines
from gateway.audit.opening import CLOSED, SEALED, Opener
from gateway.audit.outcome_figures import DAY, SHORT, OutcomeFigures, SessionAndEngineSums, day_name, decode_figures, storable
from gateway.audit.record import MAX_LINE
from gateway.audit.segments import open_segment, segment_size
from gateway.audit.sinks.file import list_segments
from gateway.core.ledger import Position, UsageRow

log = logging.getLogger("gatehouse.usage")

BLOCK: Final = 256 * 1024
PART: Final = 4 * 1024 * 1024
"""About the most bytes that one part of a reading covers."""
ROWS: Final = 2000
"""About the most sums of one part."""
_BREATH: Final = 64
"""Lines between which other threads get their turn."""
_OUTCOME: Final = b'"kind":"outcome"'
_HEAD: Final = 48
_TAIL: Final = 68
"""Bytes of `<64 hex>"}` and the line feed at a line's end, with one before."""


Key = tuple[int, str, str, str, str, str, str, str]
Sums = dict[Key, list[int]]
"""(day since the epoch, tenant, key, model, user, agent, operation, currency) to requests, prompt, completion, cached and reasoning tokens,
cost, unknown outcomes."""


class Part(NamedTuple):
    """A stretch of one writer's log: where it ends, its sums, and those of sessions and engines."""

    after: Position
    sums: Sums
    others: SessionAndEngineSums


class Mark(NamedTuple):
    """The end of the last whole line of a segment."""

    segment: int
    offset: int
    head: str


class LedgerReader:
    """Reads the logs of all writers in one directory. counted_from: outcomes before this time were counted by other means and are skipped.
    began: if a log is not the one that was counted before (an older copy was restored), its outcomes before this time are skipped as well,
    because they have been counted. verb: what happens to the lines, for messages. opener: opens records that are encrypted as a whole.
    unopened: how many outcomes could not be opened, because their keys were destroyed; they are not counted."""

    def __init__(
        self, directory: Path, counted_from: float = 0.0, *, began: float = 0.0, verb: str = "counted", opener: Opener = CLOSED
    ) -> None:
        self._directory, self.counted_from, self._verb, self._opener = directory, counted_from, verb, opener
        self._began, self.unopened = began, 0
        self._seen: dict[str, Mark] = {}
        self._put_back: set[str] = set()
        """Writers whose lines of before `began` are passed over, until there is one since then."""

    def writers(self) -> dict[str, list[tuple[int, Path]]]:
        """Those that have a log here, with their segments in order. Raises OSError."""
        return list_segments(self._directory) if self._directory.is_dir() else {}

    def look(self, writer: str, segments: list[tuple[int, Path]], *, settled: bool = False) -> Mark | None:
        """How far this writer's log may be read: to where the last look saw it end. settled: to its present end; for a writer that nobody
        has, or to compare. Raises OSError."""
        if not segments:
            return None
        number, path = segments[-1]
        now = end_of(number, path)
        before, self._seen[writer] = self._seen.get(writer), now
        if settled:
            return now
        if before is None:
            return Mark(number, 0, "")
        if before.segment != number:
            return Mark(number, 0, "")
        return before if before.offset <= now.offset and head_at(path, before.offset) == before.head else Mark(number, 0, "")

    def resume(self, position: Position, segments: list[tuple[int, Path]]) -> Position:
        """Where to go on after `position`. When the log is not the one that was counted (somebody has replaced it), its beginning; `began`
        says what of it counts."""
        if not segments or not position.segment:
            return position
        path = dict(segments).get(position.segment)
        if path is not None and (not position.offset or head_at(path, position.offset) == position.head):
            return position
        later = [number for number, _ in segments if number > position.segment]
        if path is None and later:
            log.error("the audit log of %s lacks segments after line %d: they are not %s", position.writer, position.seq, self._verb)
            return Position(position.writer, later[0], 0, position.seq, position.head)
        if path is not None and (found := _beyond(path, position)) is not None:
            log.error("the audit log of %s was changed before line %d, up to which it is %s", position.writer, position.seq, self._verb)
            return found
        if self._began:
            self._put_back.add(position.writer)
        log.error(
            "the audit log of %s is not the one that is %s up to line %d: it begins anew%s",
            position.writer,
            self._verb,
            position.seq,
            ", with what was recorded since this start" if self._began else "",
        )
        return Position(position.writer)

    def part(self, position: Position, segments: list[tuple[int, Path]], until: Mark) -> Part:
        """The sums after `position`, up to the mark or until there is much of it. Raises OSError, GatehouseError."""
        sums: Sums = {}
        others = SessionAndEngineSums()
        read = 0
        for number, path in segments:
            if number < position.segment or number > until.segment:
                continue
            if number > position.segment:
                position = Position(position.writer, number, 0, position.seq, position.head)
            end = until.offset if number == until.segment else segment_size(path)
            with open_segment(path) as file:
                while position.offset < end and read < PART and len(sums) < ROWS and len(others.sessions) < ROWS:
                    file.seek(position.offset)
                    block = file.read(min(BLOCK, end - position.offset))
                    block = block[: block.rfind(b"\n") + 1]
                    if not block:
                        break
                    self._count(position.writer, block, sums, others)
                    read += len(block)
                    position = after(position, block)
            if read >= PART or len(sums) >= ROWS or len(others.sessions) >= ROWS:
                break
        return Part(position, sums, others)

    def _count(self, writer: str, block: bytes, sums: Sums, others: SessionAndEngineSums) -> None:
        turn = 0
        for line in block.split(b"\n"):
            if _OUTCOME not in line[:_HEAD]:
                continue
            try:
                figures = decode_figures(self._opener.line(writer, line) if SEALED in line else line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # `audit verify` tells
            self.unopened += bool(figures.unopened)
            if writer in self._put_back:
                if figures.time < self._began:
                    continue
                self._put_back.discard(writer)
            if figures.attempts and figures.time >= self.counted_from:
                add(sums, figures)
                others.add(figures)
            turn += 1
            if turn % _BREATH == 0:
                sleep(0)


def add(sums: Sums, figures: OutcomeFigures) -> None:
    key = (
        int(figures.time) // DAY,
        figures.tenant,
        figures.principal,
        figures.model,
        figures.user,
        figures.agent,
        figures.operation,
        figures.currency,
    )
    counts = sums.get(key)
    if counts is None:
        counts = sums[key] = [0, 0, 0, 0, 0, 0, 0]
    counts[0] += 1
    counts[1] += figures.prompt_tokens
    counts[2] += figures.completion_tokens
    counts[3] += figures.cached_tokens
    counts[4] += figures.reasoning_tokens
    counts[5] += figures.cost
    counts[6] += figures.outcome == "unknown"


def rows(writer: str, sums: Sums) -> list[UsageRow]:
    """The sums as rows to be stored. Names that a database cannot hold are cut."""
    days = {day: day_name(day) for day, *_ in sums}
    found = []
    for (day, tenant, key, model, user, agent, operation, currency), counts in sums.items():
        requests, prompt, completion, cached, reasoning, cost, unknown = counts
        row = UsageRow(
            day=days[day],
            tenant=storable(tenant),
            key=storable(key),
            model=storable(model),
            requests=requests,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            reasoning_tokens=reasoning,
            cost=cost,
            unknown=unknown,
            user=storable(user),
            agent=storable(agent),
            operation=operation[:SHORT],
            currency=currency[:SHORT],
            writer=writer,
        )
        found.append(row)
    return found


def end_of(number: int, path: Path) -> Mark:
    """The end of the last whole line of a segment."""
    with open_segment(path) as file:
        size = file.seek(0, 2)
        begin = max(0, size - 2 * MAX_LINE)
        file.seek(begin)
        data = file.read(size - begin)
    end = data.rfind(b"\n") + 1
    return Mark(number, begin + end if end else 0, _hash_before(data, end))


def head_at(path: Path, offset: int) -> str:
    """The hash of the line that ends at an offset; empty at a segment's beginning, or where no line ends."""
    begin = max(0, offset - _TAIL)
    with open_segment(path) as file:
        file.seek(begin)
        data = file.read(offset - begin)
    return _hash_before(data, len(data)) if len(data) == offset - begin else "-"


def bytes_behind(position: Position, segments: Iterable[tuple[int, Path]]) -> int:
    """How many bytes of a log are after a position."""
    behind = 0
    for number, path in segments:
        if number >= position.segment:
            behind += segment_size(path) - (position.offset if number == position.segment else 0)
    return max(0, behind)


def _hash_before(data: bytes, end: int) -> str:
    line = data[max(0, end - _TAIL + 1) : end]
    return line[:64].decode("ascii", "replace") if len(line) == _TAIL - 1 and line.endswith(b'"}\n') else ""


def after(position: Position, block: bytes) -> Position:
    """The place behind a block of whole lines that begins at `position`."""
    last = block[block.rfind(b"\n", 0, len(block) - 1) + 1 :]
    number = last[7 : last.find(b",", 7)] if last.startswith(b'{"seq":') else b""
    seq = int(number) if number.isdigit() else position.seq
    return Position(position.writer, position.segment, position.offset + len(block), seq, _hash_before(block, len(block)))


def _beyond(path: Path, position: Position) -> Position | None:
    """The place of the first line that is numbered higher than the last one that is counted; None if the segment has none."""
    offset = 0
    with open_segment(path) as file:
        for line in read_lines(file):
            claims = read_line(line)
            if claims is not None and claims.seq > position.seq:
                return Position(position.writer, position.segment, offset, position.seq, head_at(path, offset))
            offset += len(line)
    return None
