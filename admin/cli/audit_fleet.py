"""`gatehouse audit search` and `report` over several replicas: each answers for its own log; the answers become one, and who is missing is
told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from admin.cli.client import LONG, Client
from admin.cli.errors import CommandError

PAGE: Final = 1000


def found_by(client: Client, wanted: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], dict[str, Any], Counter[str]]:
    """What one replica has found, the newest first, whose logs its answer covers, and what could not be opened."""
    found: list[dict[str, Any]] = []
    unopened = Counter[str]()
    cursor: str | None = None
    while True:
        params = {**wanted, "limit": min(PAGE, limit - len(found)), **({} if cursor is None else {"cursor": cursor})}
        part = client.json("GET", "/audit/search", timeout=LONG, params=params)
        found += part["items"]
        unopened.update(part["unopened"])
        cursor = part["cursor"]
        if cursor is None or len(found) >= limit:
            return found, part["coverage"], unopened


def found_by_all(
    clients: Sequence[Callable[[], Client]], wanted: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], list[str], list[str], Counter[str]]:
    """The newest of all, the replicas that no answer covers, what failed, and how many could not be opened, by the reason. Raises
    CommandError where nobody answers."""
    unopened = Counter[str]()
    found: list[dict[str, Any]] = []
    covered: set[str] = set()
    known: dict[str, str] = {}
    failures: list[str] = []
    for connect in clients:
        try:
            with connect() as client:
                part, coverage, closed = found_by(client, wanted, limit)
        except CommandError as error:
            failures.append(str(error))
            continue
        if coverage["replica"] not in covered or not coverage["replica"]:
            found += part
            unopened += closed
        covered.add(coverage["replica"])
        known.update((one["id"], one["state"]) for one in coverage["missing"] or ())
        if coverage["missing"] is None:
            failures.append(f"the replica {coverage['replica'] or client.url} does not know which others there are")
    if not covered:
        raise CommandError("; ".join(failures))
    found.sort(key=lambda one: str(one["time"]), reverse=True)
    missing = [f"{name} ({state})" for name, state in sorted(known.items()) if name not in covered]
    return found[:limit], missing, failures, unopened


SUMMED: Final = ("accesses", "callers", "denials", "logins")
"""Tables of a report whose rows count something."""
LISTED: Final = ("changes", "log")
ROWS: Final = 500
"""The most rows of each table, as each replica gives them."""


def reported_by_all(clients: Sequence[Callable[[], Client]], params: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """One report of what all say, and what failed. Raises CommandError where nobody answers."""
    reports: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for number, connect in enumerate(clients):
        try:
            with connect() as client:
                found = client.json("GET", "/audit/report", timeout=LONG, params=params)
        except CommandError as error:
            failures.append(str(error))
            continue
        reports.setdefault(found["coverage"]["replica"] or f"({number + 1})", found)
    if not reports:
        raise CommandError("; ".join(failures))
    return merged(list(reports.values())), failures


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Reports of several replicas on one period as one. Each table of theirs has its first rows, so what is rare on every one may be
    missing. It is as verified as the least verified of them."""
    if len(reports) == 1:
        return reports[0]
    whole = {**reports[0], **{name: _summed([row for one in reports for row in one[name]]) for name in SUMMED}}
    for name in LISTED:
        rows = [row for one in reports for row in one[name]]
        whole[name] = sorted(rows, key=lambda row: str(row["time"]), reverse=True)[:ROWS]
    integrity = [one["integrity"] for one in reports]
    whole["integrity"] = None
    if all(integrity):
        first = next((one["first_problem"] for one in integrity if one["first_problem"]), None)
        whole["integrity"] = {
            "ok": all(one["ok"] for one in integrity),
            "first_problem": first,
            "writers": [writer for one in integrity for writer in one["writers"]],
        }
    whole["unopened"] = dict(sum((Counter[str](one["unopened"]) for one in reports), Counter[str]()))
    names = [one["coverage"]["replica"] for one in reports]
    known = {other["id"]: other for one in reports for other in one["coverage"]["missing"] or ()}
    told = all(one["coverage"]["missing"] is not None for one in reports)
    missing = [other for name, other in sorted(known.items()) if name not in names]
    whole["coverage"] = {"replica": ", ".join(names), "missing": missing if told else None}
    return whole


def _summed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are alike but for their numbers, added up; the most first."""
    sums: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple((name, value) for name, value in row.items() if isinstance(value, str))
        known = sums.setdefault(key, dict(key))
        for name, value in row.items():
            if not isinstance(value, str):
                known[name] = known.get(name, 0) + (value or 0)
    return sorted(sums.values(), key=lambda row: -max(row.get("requests", 0), row.get("times", 0)))[:ROWS]
