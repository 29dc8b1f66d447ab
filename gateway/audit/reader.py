"""Reads the local audit log: the newest records, filters, export, verification. Everything here blocks: call it in a thread."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from itertools import accumulate, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.chain import read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.event_tenants import EVERY
from gateway.audit.exports import HEADS, converted
from gateway.audit.opening import CLOSED, SEALED, Opener
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import verify_log
from gateway.core.audit_questions import AuditFilter, AuditScope, fits

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_BLOCK = 64 * 1024
_MARGIN = 3600.0
MOST_LINES = 2_000_000
"""That are looked at by those who read backwards."""
_OF_REQUESTS = (b',"kind":"intent",', b',"kind":"outcome",')


class LogReader:
    """Implements gateway.core.ports.AuditReader over the directory of a `file` sink. Leaves out a line that is being written."""

    def __init__(self, directory: str | Path, verifier: CheckpointVerifier, opener: Opener = CLOSED) -> None:
        """opener: opens records that are encrypted as a whole; of those that it cannot open, only the part in the clear is returned. All
        methods that read records raise GatehouseError if keys cannot be fetched now."""
        self._directory, self._verifier, self._opener = Path(directory), verifier, opener

    def tail(self, count: int, writer: str | None = None) -> list[dict[str, Any]]:
        """The newest `count` records, oldest first, each with its `writer`; those of several writers are merged by time. Each writer's stay
        in their order, although a record may be a little older than the one before it."""
        chosen = {name: segments for name, segments in self._segments().items() if writer is None or name == writer}
        tails = [_by_time(name, self._tail_of(name, segments, count)) for name, segments in chosen.items()]
        merged = [{"writer": name, **record} for _, name, record in heapq.merge(*tails, key=itemgetter(0, 1))]
        return merged[-count:] if count > 0 else []

    def verify(self, scope: AuditScope = AuditScope()) -> dict[str, Any]:  # noqa: B008 - immutable
        """gateway.audit.verify.Report.as_dict. scope: what must be there."""
        if not self._directory.is_dir():
            problem = {"file": str(self._directory), "line": 0, "reason": "no such directory", "writer": ""}
            return {"ok": False, "first_problem": problem, "writers": []}
        return verify_log(self._directory, self._verifier, scope=scope).as_dict()

    def records(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """The records that match an AuditFilter with these fields, writer by writer, oldest first."""
        return map(_decode, self.export(AuditFilter(**wanted)))

    def export(self, wanted: AuditFilter = AuditFilter()) -> Iterator[bytes]:  # noqa: B008 - immutable
        """The lines that match, with their line feeds, exactly as in the log, so that an export can still be proven. Lines that are
        encrypted as a whole are opened, unless `sealed` is wanted."""
        for writer, segments in self._segments().items():
            if wanted.writer is None or writer == wanted.writer:
                yield from self._exported(writer, segments, wanted)

    def export_as(self, wanted: AuditFilter, format: str) -> Iterator[bytes]:
        """The same in another format (gateway.audit.exports); not to be proven."""
        yield HEADS.get(format, b"")
        for writer, segments in self._segments().items():
            if wanted.writer is None or writer == wanted.writer:
                yield from converted(writer, self._exported(writer, segments, wanted), format)

    def _exported(self, writer: str, segments: list[Path], wanted: AuditFilter) -> Iterator[bytes]:
        chosen = _Filter(wanted)
        for path in _in_time(segments, wanted.since, wanted.until):
            for line in _lines(path):
                if not chosen.may_take(line):
                    continue
                opened = self._opener.line(writer, line)
                if chosen.takes(opened):
                    yield line if wanted.sealed else opened

    def newest(self, since: float | None = None, text: str = "", lines: int = MOST_LINES) -> Iterator[dict[str, Any]]:
        """Intents and outcomes of all writers, the newest first by time, none before `since` (seconds since the epoch).

        text: only records that hold it, as the value of any field. lines: so many are looked at, of each writer.
        """
        needle = _encode(text) if text and text.isascii() else b""
        writers = [self._newest(name, segments, since, needle, lines) for name, segments in self._segments().items()]
        return (record for _, _, record in heapq.merge(*writers, key=itemgetter(0, 1), reverse=True))

    def _segments(self) -> dict[str, list[Path]]:
        if not self._directory.is_dir():
            return {}
        return {writer: [path for _, path in segments] for writer, segments in list_segments(self._directory).items()}

    def _newest(
        self, name: str, segments: list[Path], since: float | None, needle: bytes, most: int
    ) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """The records of one writer, down to one that is much older than `since`, so that a clock that was set back a little hides none."""
        lines = (line for path in reversed(segments) for line in _lines_backwards(path))
        for line in islice(lines, most):
            if (needle not in line and SEALED not in line) or not any(mark in line[:64] for mark in _OF_REQUESTS):
                continue
            opened = self._opener.line(name, line)
            record = _parse(opened) if needle in opened else None
            if record is None:
                continue
            moment = float(record.get("time", 0.0))
            if since is None or moment >= since:
                yield moment, name, record
            elif moment + _MARGIN < since:
                return

    def _tail_of(self, writer: str, segments: list[Path], count: int) -> list[dict[str, Any]]:
        lines: list[bytes] = []
        for path in reversed(segments):
            if len(lines) >= count:
                break
            lines = _last_lines(path, count - len(lines)) + lines
        return [record for line in lines if (record := _parse(self._opener.line(writer, line))) is not None]


_SUBJECT = ("tenant", "principal", "model")


class _Filter:
    """Decides on a line; searches it for bytes before it decodes it."""

    def __init__(self, wanted: AuditFilter) -> None:
        self._wanted = wanted
        given = ((name, getattr(wanted, name)) for name in _SUBJECT)
        self._subject = {name: value for name, value in given if value is not None}
        needles = [wanted.request_id]
        if not self._subject and wanted.outcome != "ok":  # an event's line leaves "ok" out
            needles.append(wanted.outcome)
        self._needles = [_encode(text) for text in needles if text is not None and text.isascii()]
        request_id = wanted.request_id
        self._clear = [_encode(request_id)] if request_id is not None and request_id.isascii() else []
        self._kind_mark = b',"kind":"%b",' % wanted.kind.encode() if wanted.kind and not self._subject else b""
        self._open: set[str] = set()

    def may_take(self, line: bytes) -> bool:
        """Whether a line that may be sealed is worth opening, by its part in the clear."""
        return SEALED not in line or (self._kind_mark in line[:64] and all(needle in line for needle in self._clear))

    def takes(self, line: bytes) -> bool:
        if self._kind_mark not in line[:64] or any(needle not in line for needle in self._needles):
            return False
        record = _parse(line)
        if record is None:
            return False
        wanted, kind = self._wanted, record.get("kind")
        return (
            (wanted.request_id is None or record.get("request_id") == wanted.request_id)
            and (not self._subject or self._belongs(record))
            and (wanted.kind is None or kind == wanted.kind)
            and (wanted.event is None or fits(str(record.get("event", "")), wanted.event))
            and (wanted.outcome is None or record.get("outcome", "ok" if kind == "event" else "") == wanted.outcome)
            and self._timely(record.get("time", 0.0))
        )

    def _belongs(self, record: dict[str, Any]) -> bool:
        request_id = str(record.get("request_id", ""))
        if all(record.get(name) == value or (name == "tenant" and _is_about(record, value)) for name, value in self._subject.items()):
            if record.get("kind") == "intent":
                self._open.add(request_id)
            return True
        if record.get("kind") == "outcome" and request_id in self._open:
            self._open.discard(request_id)
            return not any(record.get(name) for name in self._subject)
        return False

    def _timely(self, time: float) -> bool:
        since, until = self._wanted.since, self._wanted.until
        return (since is None or time >= since) and (until is None or time < until)


def _is_about(record: dict[str, Any], tenant: str) -> bool:
    """Whether it is an event about this tenant."""
    tenants = record.get("tenants")
    return isinstance(tenants, list) and (tenant in tenants or EVERY in tenants)


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """The whole lines of a file, the last one first."""
    with open_segment(path) as file:
        position = file.seek(0, os.SEEK_END)
        rest = b""
        whole = False  # what follows the last line feed is being written
        while position > 0:
            step = min(_BLOCK, position)
            position -= step
            file.seek(position)
            lines = (file.read(step) + rest).split(b"\n")
            rest = lines[0]
            found = lines[1:] if whole else lines[1:-1]
            whole = whole or len(lines) > 1
            yield from (line for line in reversed(found) if line)
            if len(rest) > MAX_LINE:
                rest = b""  # no line is so long: this is no log
        if whole and rest:
            yield rest


def _by_time(writer: str, records: list[dict[str, Any]]) -> list[tuple[float, str, dict[str, Any]]]:
    """Each record with the time by which it is sorted: its own, but never earlier than that of a record before it."""
    times = accumulate((float(record.get("time", 0.0)) for record in records), max)
    return [(time, writer, record) for time, record in zip(times, records, strict=True)]


def _in_time(segments: list[Path], since: float | None, until: float | None) -> Iterator[Path]:
    """Leaves out the segments that, by their headers, end before `since` or begin after `until`. A record may be a little older than the
    header before it, hence the margin; and when the clock was set back, a segment ends before it began."""
    margin = _MARGIN
    starts = [_start(path) for path in segments] if since is not None or until is not None else []
    for index, path in enumerate(segments):
        around = starts[index : index + 2]
        if since is not None and index + 1 < len(segments) and min(around) > 0 and max(around) + margin < since:
            continue
        if until is not None and min(around) - margin >= until:
            continue
        yield path


def _start(path: Path) -> float:
    with open_segment(path) as file:
        header = read_header(file.readline(MAX_LINE))
    return header.time if header else 0.0


def _lines(path: Path) -> Iterator[bytes]:
    with open_segment(path) as file:
        for line in read_lines(file):
            if line[-1:] == b"\n":
                yield line


def _last_lines(path: Path, count: int) -> list[bytes]:
    """The last `count` whole lines of a file, read from its end."""
    with open_segment(path) as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    lines = data.split(b"\n")[:-1]
    if position > 0:
        lines = lines[1:]
    return lines[-count:] if count > 0 else []


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
