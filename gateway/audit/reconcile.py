"""Compares what the store says was used with what the audit log says. Everything here blocks: call it in a thread.

Both are compared up to the same line of each writer's log, so that the answer is exact while requests are served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.audit.ledger import LedgerReader, Mark, Sums, rows
from gateway.audit.outcome_figures import DAY, day_name
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment
from gateway.core.ledger import Position, UsageRow

UNITS: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "unknown")
Totals = dict[tuple[str, str], int]
"""(scope, unit) to an amount. The unit of a cost is `nano-` and the currency."""


class Compared(Struct):
    """One writer: the line up to which it is counted, and the first day whose records are all there (older segments may be archived)."""

    writer: str
    up_to: int
    complete_from: str


def compare(
    reader: LedgerReader, segments: Mapping[str, Sequence[tuple[int, Path]]], positions: Mapping[str, Position], charged: Sequence[UsageRow]
) -> tuple[list[dict[str, Any]], list[Compared]]:
    """A line for each scope and unit: what the log says, what was charged, the difference. Raises OSError."""
    logged: list[UsageRow] = []
    compared = []
    for writer, position in sorted(positions.items()):
        present = list(segments.get(writer, ()))
        first_day = _complete_from(present)
        compared.append(Compared(writer, position.seq, first_day))
        logged += [row for row in _rows_of(reader, position, present) if row.day >= first_day]
    days = {one.writer: one.complete_from for one in compared}
    stored = [row for row in charged if row.day >= days[row.writer]]
    first, second = totals(logged), totals(stored)
    lines = []
    for scope, unit in sorted(first.keys() | second.keys()):
        audit, store = first.get((scope, unit), 0), second.get((scope, unit), 0)
        lines.append({"scope": scope, "unit": unit, "from_audit": audit, "charged": store, "difference": store - audit})
    return lines, compared


def totals(found: Iterable[UsageRow]) -> Totals:
    """The sums for each scope that a request counts for. Zeros are left out."""
    sums: Totals = {}
    for row in found:
        amounts = [(unit, getattr(row, unit)) for unit in UNITS]
        if row.currency:
            amounts.append((f"nano-{row.currency}", row.cost))
        for scope in scopes_of(row):
            for unit, amount in amounts:
                if amount:
                    sums[scope, unit] = sums.get((scope, unit), 0) + amount
    return sums


def scopes_of(row: UsageRow) -> list[str]:
    scopes = ["all", f"tenant/{row.tenant}", f"key/{row.tenant}/{row.key}", f"model/{row.model}", f"operation/{row.operation}"]
    if row.user:
        scopes.append(f"user/{row.user}@{row.tenant}")
    if row.agent:
        scopes.append(f"agent/{row.agent}")
    return scopes


def _rows_of(reader: LedgerReader, until: Position, segments: list[tuple[int, Path]]) -> list[UsageRow]:
    """Everything that the log says up to a position."""
    mark, position = Mark(until.segment, until.offset, until.head), Position(until.writer)
    sums: Sums = {}
    while True:
        part = reader.part(position, segments, mark)
        if part.after == position:
            return rows(until.writer, sums)
        position = part.after
        for key, counts in part.sums.items():
            known = sums.setdefault(key, [0] * len(counts))
            for place, count in enumerate(counts):
                known[place] += count


def _complete_from(segments: Sequence[tuple[int, Path]]) -> str:
    """The first day (UTC) of which no records were taken away: the day after the oldest segment begins, unless it is the first."""
    if not segments or segments[0][0] == 1:
        return ""
    with open_segment(segments[0][1]) as file:
        header = read_header(file.readline(MAX_LINE))
    return day_name(int(header.time) // DAY + 1) if header is not None else "9999-12-31"
