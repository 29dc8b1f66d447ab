"""Searches and reports where records are encrypted as a whole. Everything here blocks.

The index has of such a record what is in the clear (tenant, outcome, an event's name) and tokens for the rest (gateway.audit.blind_index),
by which records are found before they are opened. Without a token, and for the beginning of a text, they are opened, the newest first; a
report indexes the period anew, in memory. Nothing that was opened is written anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from heapq import merge
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from msgspec.structs import replace

from gateway.audit.blind_index import Tokened
from gateway.audit.entries import Entry, completed, entries_of
from gateway.audit.index import BLIND, SECONDS, Index, count_sealed, reading, search
from gateway.audit.lines import LinesAt
from gateway.audit.opening import SEALED, Opener
from gateway.audit.outcome_figures import storable
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment, segment_time
from gateway.audit.sinks.file import list_segments
from gateway.audit.summary import summary, summary_of
from gateway.core.audit_questions import NO_KEYS, AuditSearch, Unopened, fits, is_pattern
from gateway.core.errors import AuditSearchTooLong
from gateway.core.ledger import Position

MOST: Final = 20_000
"""Records that one search opens."""
PAGE: Final = 256
"""Sealed entries that are read from the index at once, and then twice as many each time."""
MOST_REPORTED: Final = 500_000
"""Lines that one report opens."""
LATER: Final = 3600.0
"""Seconds after a period in which outcomes of its requests are looked for."""
_PEOPLE: Final = frozenset({"principal", "user", "agent", "session", "method", "peer"})
"""What a record says nothing of that is withheld (gateway.audit.envelopes)."""
WITHHELD: Final = "withheld"
"""Why it cannot be told who asked: the tenant's key could not be had when the record was written."""
_OWN: Final = ("sealed", "-opened", "-withheld")
_START: Final = 96
"""Bytes of a line that have its time."""
_BLOCK: Final = 256
"""Lines between which other threads get their turn."""


def search_opened(
    path: Path, asked: AuditSearch, directory: Path, opener: Opener, seconds: float = SECONDS, most: int | None = None
) -> tuple[list[dict[str, Any]], Unopened]:
    """As gateway.audit.index.search, with the records in `directory` opened, `most` (MOST) at most; and how many that may be wanted, too,
    could not be: of what is newer than the last entry where there may be more. Raises GatehouseError where their keys cannot be had now."""
    found = search(path, asked, seconds)
    conditions, unopened = _hidden(asked), Unopened()
    with closing(LinesAt(directory, opener)) as lines:
        if conditions and opener.fetch is None:
            unopened = _counted(NO_KEYS, count_sealed(path, replace(asked, **dict.fromkeys(conditions)), seconds))
        elif conditions:
            left = _Left()
            clear = replace(asked, **dict.fromkeys(conditions))
            exact = {name: text for name, text in conditions.items() if not is_pattern(text)}
            with closing(Tokened(path, clear, exact, opener, seconds)) as tokened:
                wide = _bounded([_untokened(path, clear, seconds), *tokened.by_key(asked.limit)], MOST if most is None else most)
                found = _merged(found, _matching(wide, conditions, lines, left), asked.limit)
                last = found[-1] if len(found) == asked.limit else None
                unopened = dict(Counter(left.told(last)) + Counter(tokened.unopened(last)))
        shown = [
            completed(entry, lines(entry["writer"], entry["place"])) if entry.get("sealed") and "-opened" not in entry else entry
            for entry in found
        ]
    return [{name: value for name, value in entry.items() if name not in _OWN} for entry in shown], unopened


def _counted(why: str, count: int) -> Unopened:
    return {why: count} if count else {}


def _hidden(asked: AuditSearch) -> dict[str, str]:
    """What is asked of texts that are not in the clear."""
    return {name: text for name in BLIND if (text := getattr(asked, name)) is not None}


class _Left:
    """The entries that may be wanted and could not be opened, each with why."""

    def __init__(self) -> None:
        self._all: list[tuple[float, int, str]] = []

    def note(self, entry: dict[str, Any], why: str) -> None:
        self._all.append((entry["time"], entry["id"], why))

    def told(self, last: dict[str, Any] | None) -> Unopened:
        """How many of each reason; last: older ones than this entry are told with the next page."""
        after = (0.0, -1) if last is None else (last["time"], last["id"])
        return dict(Counter(why for time, id, why in self._all if (time, id) > after))


def _untokened(path: Path, asked: AuditSearch, seconds: float) -> Iterator[dict[str, Any]]:
    """The encrypted entries without tokens that are asked for, the newest first, read as they are needed."""
    size, end = PAGE, monotonic() + seconds
    while page := search(path, replace(asked, limit=size), max(end - monotonic(), 0.0), sealed=True):
        yield from page
        if len(page) < size:
            return
        size = min(size * 2, PAGE << 5)
        asked = replace(asked, before=(page[-1]["time"], page[-1]["id"]))


def _bounded(sources: list[Iterator[dict[str, Any]]], most: int) -> Iterator[dict[str, Any]]:
    """The entries of all, the newest first. Raises AuditSearchTooLong for more than `most`."""
    last = None
    for number, entry in enumerate(merge(*sources, key=lambda entry: (-entry["time"], -entry["id"]))):
        if number == most:
            raise AuditSearchTooLong(f"the search would open more than {most} encrypted records: narrow it by tenant or time")
        if entry["id"] != last:  # it may have got its tokens meanwhile
            yield entry
        last = entry["id"]


def _matching(wide: Iterator[dict[str, Any]], conditions: dict[str, str], lines: LinesAt, left: _Left) -> Iterator[dict[str, Any]]:
    """Those of the sealed entries that fit."""
    for number, entry in enumerate(wide):
        if number % _BLOCK == 0:
            sleep(0)
        opened = completed(entry, lines(entry["writer"], entry["place"]))
        unfit = [name for name, text in conditions.items() if not fits(storable(str(opened.get(name, ""))), storable(text))]
        if not unfit:
            yield opened
        elif why := _unknown(opened, unfit):
            left.note(opened, why)


def _unknown(entry: dict[str, Any], unfit: list[str]) -> str:
    """Why nobody can tell whether an entry fits; "" where it does not."""
    if any(entry.get(name) for name in unfit):
        return ""
    if entry.get("unopened"):
        return str(entry["unopened"])
    return WITHHELD if entry.get("-withheld") and all(name in _PEOPLE for name in unfit) else ""


def _merged(first: list[dict[str, Any]], second: Iterator[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The newest of both, each entry once."""
    seen = {entry["id"] for entry in first}
    both = [*first, *islice((entry for entry in second if entry["id"] not in seen), limit)]
    return sorted(both, key=lambda entry: (entry["time"], entry["id"]), reverse=True)[:limit]


def summary_opened(
    path: Path, since: float, until: float, tenants: frozenset[str] | None, directory: Path, opener: Opener
) -> dict[str, Any]:
    """As gateway.audit.summary.summary, with the records in `directory` opened."""
    with closing(reading(path)) as db:
        sealed = db.execute("SELECT 1 FROM entries WHERE sealed <> 0 AND time >= ? AND time < ? LIMIT 1", (since, until)).fetchone()
    if sealed is None:
        return {**summary(path, since, until, tenants), "unopened": Unopened()}
    index, made = Index.in_memory(), _Report(since, until, tenants)
    try:
        for writer, segments in list_segments(directory).items():
            for number, name in _of_period(segments, since, until):
                made.add(index, Position(writer, number), name, opener)
        return {**summary_of(index.db, since, until, tenants), "unopened": made.unopened()}
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


class _Report:
    """Lines on their way into the index of one report. tenants: None: of all."""

    def __init__(self, since: float, until: float, tenants: frozenset[str] | None) -> None:
        self._since, self._until, self._tenants = since, until, tenants
        self._left = MOST_REPORTED
        self._unopened: dict[tuple[str, str, int], str] = {}

    def add(self, index: Index, place: Position, path: Path, opener: Opener) -> None:
        first, last = self._since - LATER, self._until + LATER
        with open_segment(path) as file:
            while lines := list(islice(file, _BLOCK)):
                lines = [line for line in lines if SEALED not in line or first <= _time(line) <= last]
                self._left -= len(lines)
                if self._left < 0:
                    raise AuditSearchTooLong(f"the report would open more than {MOST_REPORTED} lines: choose a shorter period")
                found, outcomes = entries_of(place, b"".join([opener.line(place.writer, line) for line in lines]))
                index.add(found, outcomes, place)
                self._note((*found, *outcomes))
                sleep(0)

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.unopened and self._since <= entry.time < self._until and (self._tenants is None or entry.tenant in self._tenants):
                self._unopened[entry.writer, entry.request_id, 0 if entry.request_id else len(self._unopened)] = entry.unopened

    def unopened(self) -> Unopened:
        return dict(Counter(self._unopened.values()))
