"""Single lines of the audit log, by their places."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.record import MAX_LINE
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments


def lines_at(directory: Path, writer: str, places: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """The records that begin at these places (segment, offset) of a writer's log, decoded. What is not there any more is left out. Blocks;
    raises OSError."""
    paths = dict(list_segments(directory).get(writer, []))
    found = []
    for segment, offset in places:
        path = paths.get(segment)
        if path is None:
            continue
        with open_segment(path) as file:
            file.seek(offset)
            line = file.readline(MAX_LINE)
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found
