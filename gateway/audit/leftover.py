"""What a journal holds that the chain lacks. Everything here blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.chain import payload_of, read_lines
from gateway.audit.journal import is_foreign, left_over
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.record import KINDS
from gateway.audit.segments import open_segment

RECENT: Final = 64 * 1024 * 1024
"""Bytes at the end of a log that are searched for a journal's records: more than the last batches, which hold all that were chained."""
_PREFIXES: Final = tuple(KINDS.values())


def records_in(path: Path) -> tuple[list[bytes], int]:
    """The payloads of the records in a journal that its process did not settle, in order, and the number of entries that are not records (1
    for a file that is not a journal). Raises OSError."""
    if is_foreign(path):
        return [], 1
    entries = left_over(path)
    records = [entry for entry in entries if _is_record(entry)]
    return records, len(entries) - len(records)


def missing_from(segments: Sequence[Path], records: Sequence[bytes], writer: str = "", opener: Opener = CLOSED) -> list[bytes]:
    """The payloads that no line at the end of a writer's segments (oldest first) carries, sealed or not, in order. Raises OSError,
    GatehouseError."""
    waiting = set(records)
    budget = RECENT
    for path in reversed(segments):
        if not waiting or budget <= 0:
            break
        with open_segment(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - budget))
            waiting.difference_update(opener.payload(writer, line) or payload_of(line) for line in read_lines(file))
        budget -= size
    return [record for record in records if record in waiting]


def _is_record(entry: bytes) -> bool:
    if not entry.startswith(_PREFIXES) or b"\n" in entry:
        return False
    try:
        msgspec.json.decode(b'{"seq":0' + entry + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
