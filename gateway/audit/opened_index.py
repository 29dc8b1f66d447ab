"""Searches and reports where records are encrypted as a whole. Everything here blocks.

The index has of such a record only what is in the clear (tenant, outcome, an event's name). For any other condition the records are opened,
the newest first; a report indexes the period anew, in memory. Nothing that was opened is written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any, Final

from msgspec.structs import replace

from gateway.audit.entries import NUMBERS, Entry, entries_of
from gateway.audit.index import SECONDS, Index, count_sealed, reading, search
from gateway.audit.lines import LinesAt
from gateway.audit.opening import SEALED, Opener
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment, segment_time
from gateway.audit.sinks.file import list_segments
from gateway.audit.spent import storable
from gateway.audit.summary import summary, summary_of
from gateway.core.audit_questions import TEXTS, AuditSearch
from gateway.core.errors import AuditSearchTooLong
from gateway.core.ledger import Position

MOST: Final = 20_000
"""Records that one search opens."""
MOST_REPORTED: Final = 500_000
"""Lines that one report opens."""
LATER: Final = 3600.0
"""Seconds after a period in which outcomes of its requests are looked for."""
CLEAR: Final = frozenset({"tenant", "outcome", "event", "writer"})
"""Texts of an entry that are in the clear."""
_HIDDEN: Final = tuple(name for name in TEXTS if name not in CLEAR)
_START: Final = 96
"""Bytes of a line that have its time."""
_BLOCK: Final = 256
"""Lines between which other threads get their turn."""


def search_opened(path: Path, asked: AuditSearch, directory: Path, opener: Opener, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """As gateway.audit.index.search, with the records in `directory` opened. Raises GatehouseError where their keys cannot be had now."""
    found = search(path, asked, seconds)
    conditions = _hidden(asked)
    with closing(LinesAt(directory, opener)) as lines:
        if conditions:
            found = _merged(found, _matching(path, asked, conditions, lines, seconds), asked.limit)
        shown = [_completed(entry, lines) if entry.get("sealed") and "-opened" not in entry else entry for entry in found]
    return [{name: value for name, value in entry.items() if name not in ("sealed", "-opened")} for entry in shown]


def unsearched(path: Path, asked: AuditSearch, seconds: float = SECONDS) -> int:
    """How many encrypted entries whoever has no keys cannot hold against what is asked: they fit as far as they are in the clear."""
    conditions = _hidden(asked)
    return count_sealed(path, replace(asked, **dict.fromkeys(conditions)), seconds) if conditions else 0


def _hidden(asked: AuditSearch) -> dict[str, str]:
    """What is asked of texts that are not in the clear."""
    return {name: text for name in _HIDDEN if (text := getattr(asked, name)) is not None}


def _matching(path: Path, asked: AuditSearch, conditions: dict[str, str], lines: LinesAt, seconds: float) -> Iterator[dict[str, Any]]:
    """The sealed entries that fit, the newest first."""
    wide = replace(asked, **dict.fromkeys(conditions), limit=MOST + 1)
    for number, entry in enumerate(search(path, wide, seconds, sealed=True)):
        if number == MOST:
            raise AuditSearchTooLong(f"the search would open more than {MOST} encrypted records: narrow it by tenant or time")
        if number % _BLOCK == 0:
            sleep(0)
        opened = _completed(entry, lines)
        if all(_fits(storable(str(opened.get(name, ""))), storable(text)) for name, text in conditions.items()):
            yield opened


def _fits(text: str, wanted: str) -> bool:
    return text.startswith(wanted[:-1]) and bool(text) if wanted.endswith("*") else text == wanted


def _merged(first: list[dict[str, Any]], second: Iterator[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The newest of both, each entry once."""
    seen = {entry["id"] for entry in first}
    both = [*first, *islice((entry for entry in second if entry["id"] not in seen), limit)]
    return sorted(both, key=lambda entry: (entry["time"], entry["id"]), reverse=True)[:limit]


def _completed(entry: dict[str, Any], lines: LinesAt) -> dict[str, Any]:
    """An entry with what its records hold."""
    found, outcomes = entries_of(Position(entry["writer"]), b"".join(lines(entry["writer"], entry["place"])))
    one: Entry | None = next(iter([*found, *outcomes]), None)
    told = {} if one is None else {name: value for name in (*TEXTS, *NUMBERS) if name != "sealed" and (value := getattr(one, name))}
    return {**entry, **told, "-opened": True}


def summary_opened(
    path: Path, since: float, until: float, tenants: frozenset[str] | None, directory: Path, opener: Opener
) -> dict[str, Any]:
    """As gateway.audit.summary.summary, with the records in `directory` opened."""
    with closing(reading(path)) as db:
        sealed = db.execute("SELECT 1 FROM entries WHERE sealed = 1 AND time >= ? AND time < ? LIMIT 1", (since, until)).fetchone()
    if sealed is None:
        return summary(path, since, until, tenants)
    index = Index.in_memory()
    try:
        left = MOST_REPORTED
        for writer, segments in list_segments(directory).items():
            for number, name in _of_period(segments, since, until):
                left = _add(index, writer, number, name, opener, left, (since - LATER, until + LATER))
        return summary_of(index.db, since, until, tenants)
    finally:
        index.close()


def _of_period(segments: list[tuple[int, Path]], since: float, until: float) -> Iterator[tuple[int, Path]]:
    """The segments that may have records of a period."""
    for number, path in segments:
        if segment_time(path) + LATER >= since:  # written last
            yield number, path
            with open_segment(path) as file:
                header = read_header(file.readline(MAX_LINE))
            if header is not None and header.time > until + LATER:
                return


def _time(line: bytes) -> float:
    """When a sealed line was written, which is in the clear."""
    found = line[:_START].partition(b'"time":')[2].partition(b",")[0]
    try:
        return float(found)
    except ValueError:
        return 0.0


def _add(index: Index, writer: str, number: int, path: Path, opener: Opener, left: int, period: tuple[float, float]) -> int:
    place = Position(writer, number, 0)
    with open_segment(path) as file:
        while lines := list(islice(file, _BLOCK)):
            lines = [line for line in lines if SEALED not in line or period[0] <= _time(line) <= period[1]]
            left -= len(lines)
            if left < 0:
                raise AuditSearchTooLong(f"the report would open more than {MOST_REPORTED} lines: choose a shorter period")
            block = b"".join([opener.line(writer, line) for line in lines])
            index.add(*entries_of(place, block), place)
            sleep(0)
    return left
