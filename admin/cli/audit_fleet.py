"""`gatehouse audit search` over several replicas: each searches its own log; the answers become one, and who is missing is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from admin.cli.client import LONG, Client
from admin.cli.errors import CommandError

PAGE: Final = 1000


def found_by(client: Client, wanted: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What one replica has found, the newest first, and whose logs its answer covers."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {**wanted, "limit": min(PAGE, limit - len(found)), **({} if cursor is None else {"cursor": cursor})}
        part = client.json("GET", "/audit/search", timeout=LONG, params=params)
        found += part["items"]
        cursor = part["cursor"]
        if cursor is None or len(found) >= limit:
            return found, part["coverage"]


def found_by_all(
    clients: Sequence[Callable[[], Client]], wanted: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The newest of all, the replicas that no answer covers, and what failed. Raises CommandError where nobody answers."""
    found: list[dict[str, Any]] = []
    covered: set[str] = set()
    known: dict[str, str] = {}
    failures: list[str] = []
    for connect in clients:
        try:
            with connect() as client:
                part, coverage = found_by(client, wanted, limit)
        except CommandError as error:
            failures.append(str(error))
            continue
        found += [one for one in part if coverage["replica"] not in covered or not coverage["replica"]]
        covered.add(coverage["replica"])
        known.update((one["id"], one["state"]) for one in coverage["missing"] or ())
        if coverage["missing"] is None:
            failures.append(f"the replica {coverage['replica'] or client.url} does not know which others there are")
    if not covered:
        raise CommandError("; ".join(failures))
    found.sort(key=lambda one: str(one["time"]), reverse=True)
    missing = [f"{name} ({state})" for name, state in sorted(known.items()) if name not in covered]
    return found[:limit], missing, failures
