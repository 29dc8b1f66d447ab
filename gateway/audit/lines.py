"""Single lines of the audit log, by their places."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.opening import CLOSED, Opener
from gateway.audit.record import MAX_LINE
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments


def texts_at(directory: Path, writer: str, places: Iterable[tuple[int, int]], opener: Opener = CLOSED) -> list[bytes]:
    """The lines that begin at these places (segment, offset) of a writer's log, opened where they were encrypted as a whole. What is not
    there any more is left out. Blocks; raises OSError, GatehouseError."""
    paths = dict(list_segments(directory).get(writer, []))
    found = []
    for segment, offset in places:
        path = paths.get(segment)
        if path is None:
            continue
        with open_segment(path) as file:
            file.seek(offset)
            line = file.readline(MAX_LINE)
        found.append(opener.line(writer, line))
    return found


def lines_at(directory: Path, writer: str, places: Iterable[tuple[int, int]], opener: Opener = CLOSED) -> list[dict[str, Any]]:
    """The same, decoded."""
    found = []
    for line in texts_at(directory, writer, places, opener):
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found
