"""Reads the local audit log: the newest records, filters, export, verification. Everything here blocks: call it in a thread."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.chain import read_lines
from gateway.audit.crypto import CheckpointVerifier
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import verify_log
from gateway.core.ports import AuditScope

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_BLOCK = 64 * 1024


class LogReader:
    """Implements gateway.core.ports.AuditReader over the directory of a `file` sink. Leaves out a line that is being written."""

    def __init__(self, directory: str | Path, verifier: CheckpointVerifier) -> None:
        self._directory, self._verifier = Path(directory), verifier

    def tail(self, count: int) -> list[dict[str, Any]]:
        """The newest `count` records, oldest first; those of several writers are merged by time."""
        tails = [self._tail_of(segments, count) for segments in self._segments().values()]
        merged = list(heapq.merge(*tails, key=lambda record: float(record.get("time", 0.0))))
        return merged[-count:] if count > 0 else []

    def verify(self, scope: AuditScope = AuditScope()) -> dict[str, Any]:  # noqa: B008 - immutable
        """gateway.audit.verify.Report.as_dict. scope: what must be there."""
        if not self._directory.is_dir():
            problem = {"file": str(self._directory), "line": 0, "reason": "no such directory", "writer": ""}
            return {"ok": False, "first_problem": problem, "writers": []}
        return verify_log(self._directory, self._verifier, scope=scope).as_dict()

    def records(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The records that match all filters, writer by writer, oldest first. Times in seconds since the epoch; `until` is exclusive.

        tenant: an outcome record names its tenant only when there was no intent; the outcomes of a tenant's intents match too.
        """
        for line in self.export(request_id=request_id, tenant=tenant, kind=kind, since=since, until=until):
            yield _decode(line)

    def export(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[bytes]:
        """Like `records`, but the lines as they are, each with its line feed, so that an export can still be proven."""
        for segments in self._segments().values():
            wanted = _Filter(request_id, tenant, kind, since, until)
            for path in _in_time(segments, since, until):
                for line in _lines(path):
                    if wanted.takes(line):
                        yield line

    def _segments(self) -> dict[str, list[Path]]:
        if not self._directory.is_dir():
            return {}
        return {writer: [path for _, path in segments] for writer, segments in list_segments(self._directory).items()}

    def _tail_of(self, segments: list[Path], count: int) -> list[dict[str, Any]]:
        lines: list[bytes] = []
        for path in reversed(segments):
            if len(lines) >= count:
                break
            lines = _last_lines(path, count - len(lines)) + lines
        return [record for line in lines if (record := _parse(line)) is not None]


class _Filter:
    """Decides on a line; searches it for bytes before it decodes it."""

    def __init__(self, request_id: str | None, tenant: str | None, kind: str | None, since: float | None, until: float | None) -> None:
        self._request_id, self._tenant, self._kind, self._since, self._until = request_id, tenant, kind, since, until
        self._needle = _encode(request_id) if request_id is not None and request_id.isascii() else b""
        self._kind_mark = b',"kind":"%b",' % kind.encode() if kind else b""
        self._open: set[str] = set()

    def takes(self, line: bytes) -> bool:
        if self._needle not in line or (self._kind_mark and self._tenant is None and self._kind_mark not in line[:64]):
            return False
        record = _parse(line)
        if record is None:
            return False
        if self._request_id is not None and record.get("request_id") != self._request_id:
            return False
        of_tenant = self._tenant is None or self._belongs(record)
        return of_tenant and (self._kind is None or record.get("kind") == self._kind) and self._timely(record.get("time", 0.0))

    def _belongs(self, record: dict[str, Any]) -> bool:
        request_id = str(record.get("request_id", ""))
        if record.get("tenant") == self._tenant:
            if record.get("kind") == "intent":
                self._open.add(request_id)
            return True
        if record.get("kind") == "outcome" and request_id in self._open:
            self._open.discard(request_id)
            return not record.get("tenant")
        return False

    def _timely(self, time: float) -> bool:
        return (self._since is None or time >= self._since) and (self._until is None or time < self._until)


def _in_time(segments: list[Path], since: float | None, until: float | None) -> Iterator[Path]:
    """Leaves out the segments that, by their headers, end before `since` or begin after `until`. A record may be a little older than the
    header before it, hence the margin; and when the clock was set back, a segment ends before it began."""
    margin = 3600.0
    starts = [_start(path) for path in segments] if since is not None or until is not None else []
    for index, path in enumerate(segments):
        around = starts[index : index + 2]
        if since is not None and index + 1 < len(segments) and min(around) > 0 and max(around) + margin < since:
            continue
        if until is not None and min(around) - margin >= until:
            continue
        yield path


def _start(path: Path) -> float:
    with path.open("rb") as file:
        header = read_header(file.readline(MAX_LINE))
    return header.time if header else 0.0


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in read_lines(file):
            if line[-1:] == b"\n":
                yield line


def _last_lines(path: Path, count: int) -> list[bytes]:
    """The last `count` whole lines of a file, read from its end."""
    with path.open("rb") as file:
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
