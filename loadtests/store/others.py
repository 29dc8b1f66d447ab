"""Rows of the store beside keys, roles and engines, for loadtests.store.large: what operators make now and then, in large numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
import msgspec
import sqlalchemy as sa

from gateway.app.audit.legal_holds import HoldBody, LegalHolds, name_of
from gateway.core.batches import Creator
from gateway.core.jobs import ScheduleRecord, Warm
from gateway.store import tables
from gateway.store.jobs import _schedule_values
from gateway.store.store import Store

LISTS: Final = ("halts", "audit/holds", "captures", "job-schedules", "endpoints")
"""Of the admin API."""
FIXED: Final[dict[str, Any]] = {"tenant": "", "version": 1, "created": 1.0, "updated": 1.0, "actor": "bench"}


def written(store: Store, count: int) -> Callable[[sa.Connection], None]:
    """Writes so many halts, suspensions, limits of one tenant each, legal holds, captures, schedules, and decided approvals."""
    now = time.time()
    holds = LegalHolds(
        cast(Any, store), lambda: store.derived("legal holds"), cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace())
    )
    found: list[dict[str, Any]] = []
    schedules: list[dict[str, Any]] = []
    approvals: list[dict[str, Any]] = []
    for number in range(count):
        name = f"{number:06d}"
        hold = holds._signed(HoldBody(tenant=f"t{name}", since=now, why="a case", actor="bench"))
        limit = {"match": {"tenant": f"t{name}"}, "requests": {"rate": 1000, "per": 60}}
        bodies: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("halts", f"agent/a{name}", {"target": f"agent/a{name}", "reason": "one of many"}),
            ("suspensions", f"tenant/x{name}", {"target": f"tenant/x{name}", "reason": "one of many"}),
            ("limits", f"l{name}", limit),
            ("tenants", f"t{name}", {"description": "one of many"}),
            ("audit_holds", name_of(f"t{name}"), hold),
            ("captures", f"c{name}", {"until": now + 3600, "reason": "one of many"}),
        )
        found += [{**FIXED, "kind": kind, "name": one, "body": body} for kind, one, body in bodies]
        creator = Creator(id="root", tenant="ops", kind="api_key")
        parts = {"cron": "0 0 1 1 *", "timezone": "UTC", "task": Warm(file="f"), "creator": creator, "replica": "", "most": 1}
        record = ScheduleRecord(name="s", tenant=f"t{name}", next=now + 86400 * 300, created=now, **cast(Any, parts))
        schedules.append(_schedule_values(record))
        approvals.append(_approval(name, now))

    def insert(connection: sa.Connection) -> None:
        for table, rows in ((tables.resources, found), (tables.job_schedules, schedules), (tables.approvals, approvals)):
            for start in range(0, len(rows), 10_000):
                connection.execute(sa.insert(table), rows[start : start + 10_000])

    return insert


def _approval(name: str, now: float) -> dict[str, Any]:
    texts = dict.fromkeys(("guardrail", "model", "operation", "request_id", "request", "reason", "proof"), "x")
    requester = msgspec.to_builtins(Creator(id="k", tenant=f"t{name}", kind="api_key"))
    shown = {"id": f"apr_{name}", "tenant": f"t{name}", "principal": "p", "state": "denied", "form": "answer", "requester": requester}
    times = {"created": now, "expires": now + 86400, "decided": now, "decider": "d", "size": 0, "sealed": None, "used": None}
    return {**texts, **shown, **times, "tools": [], "approvers": []}


def plan(admin: httpx.Client, count: int, turn: int) -> list[tuple[str, Callable[[], httpx.Response], bool]]:
    """(what, how, whether it changes the configuration)."""
    name = f"{count // 2 + turn:06d}"
    hold = {"tenant": f"new-{turn}", "why": "a case"}
    return [
        ("limit changed", lambda: admin.patch(f"/limits/l{name}", json={"requests": {"rate": 7 + turn, "per": 60}}), True),
        ("halt made", lambda: admin.post("/halts", json={"target": f"agent/new-{turn}", "reason": "x"}), False),
        ("tenant suspended", lambda: admin.post(f"/tenants/t{name}/suspend", json={}), False),
        ("tenant shown", lambda: admin.get(f"/tenants/t{name}"), False),
        ("hold made", lambda: admin.post("/audit/holds", json=hold), False),
        ("schedule ended", lambda: admin.delete(f"/job-schedules/s?tenant=t{name}"), False),
        *((f"list of {one}", lambda one=one: admin.get(f"/{one}"), False) for one in LISTS),
    ]
