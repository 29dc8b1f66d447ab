"""Single lines of the audit log, by their places."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from gateway.audit.opening import CLOSED, Opener
from gateway.audit.record import MAX_LINE
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments

FILES: Final = 8
"""That are kept open."""


class LinesAt:
    """Lines by their places, opened where they were encrypted as a whole. Keeps the newest files open between two calls; `close` ends that.
    Blocks; raises OSError, GatehouseError."""

    def __init__(self, directory: Path, opener: Opener = CLOSED) -> None:
        self._directory, self._opener = directory, opener
        self._paths: dict[str, dict[int, Path]] = {}
        self._files: dict[Path, BinaryIO] = {}

    def __call__(self, writer: str, places: Iterable[tuple[int, int]]) -> list[bytes]:
        """Those that begin at these places (segment, offset) of a writer's log. What is not there any more is left out."""
        if not self._paths:
            self._paths = {name: dict(segments) for name, segments in list_segments(self._directory).items()}
        paths, found = self._paths.get(writer, {}), []
        for segment, offset in places:
            path = paths.get(segment)
            if path is None:
                continue
            file = self._file(path)
            file.seek(offset)
            found.append(self._opener.line(writer, file.readline(MAX_LINE)))
        return found

    def _file(self, path: Path) -> BinaryIO:
        file = self._files.get(path)
        if file is None:
            if len(self._files) >= FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._files[path] = open_segment(path)
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def lines_at(directory: Path, writer: str, places: Iterable[tuple[int, int]], opener: Opener = CLOSED) -> list[dict[str, Any]]:
    """The same, decoded, once."""
    found = []
    with closing(LinesAt(directory, opener)) as at:
        for line in at(writer, places):
            try:
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return found
