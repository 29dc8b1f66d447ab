"""Reports of usage that look at thousands of rows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from admin.resources.usage import COUNTS, CentreQuery, EngineQuery, by_cost_centre, engines
from gateway.core import slices
from gateway.core.errors import NotFound
from gateway.core.ledger import EngineRow
from gateway.core.storage import Page
from policies.patterns import matches

RULES = [{"name": "CC-1", "tenant": "t1*"}, {"name": "CC-2", "key": "batch-*"}]


async def test_a_month_of_thousands_of_callers_is_summed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE", 0.0)  # each step is a turn of the loop
    rows = [
        {"tenant": f"t{number}", "key": "batch-1" if number % 2 else "k", "user": "", "currency": "usd", **dict.fromkeys(COUNTS, 10**9)}
        for number in range(2000)
    ]

    async def listed(kind: str, *, limit: int, cursor: str | None) -> Page[Any]:
        return Page((SimpleNamespace(name="t200", body={"cost_centre": "CC-3"}),))

    async def report_usage(*arguments: Any, **more: Any) -> list[dict[str, Any]]:
        return rows

    config = SimpleNamespace(current=lambda: {"usage": {"cost_centres": RULES}})
    call: Any = SimpleNamespace(
        query=CentreQuery(month="2026-11"),
        store=SimpleNamespace(list=listed, report_usage=report_usage),
        ports=SimpleNamespace(config=config, matches=matches),
        access=SimpleNamespace(tenants=lambda permission: None),
    )
    report, turns = asyncio.ensure_future(by_cost_centre(call)), 0
    while not report.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(rows)
    sums = {item["cost_centre"]: (item["requests"] // 10**9, item["cost"]) for item in report.result().value["items"]}
    assert sums == {"": (444, "444"), "CC-1": (1111, "1111"), "CC-2": (444, "444"), "CC-3": (1, "1")}


async def test_the_time_of_each_engine_is_that_of_its_own_rows() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
    used = {"requests": 1, "prefill_us": 3_600_000_000, "decode_us": 0}
    rows = [EngineRow(**{**used, "engine": name, "day": day}) for name in ("a", "b") for day in ("2026-11-28", "2026-11-29")]

    async def get(kind: str, name: str) -> Any:
        raise NotFound(name)

    async def usage_of_engines(since: str, until: str) -> list[EngineRow]:
        return rows

    rate = {"cost": {"rate": 1.0, "currency": "eur"}}
    config = SimpleNamespace(current=lambda: {"engines": [{"name": "a", **rate}, {"name": "b"}, {"name": "c", **rate}]})
    fleet = SimpleNamespace(status=lambda: {"started_at": now - 7200.0})
    call: Any = SimpleNamespace(
        query=EngineQuery(since="2026-11-29"),
        store=SimpleNamespace(get=get, usage_of_engines=usage_of_engines),
        ports=SimpleNamespace(config=config, fleet=fleet, clock=SimpleNamespace(wall=lambda: now)),
    )
    found = {item["engine"]: item for item in (await engines(call)).value["items"]}
    assert list(found) == ["a", "c"]
    assert (found["a"]["requests"], found["a"]["hours"], found["a"]["busy_hours"]) == (1, 36.0, 1.0)
    assert (found["c"]["requests"], found["c"]["hours"], found["c"]["busy_hours"]) == (0, 2.0, 0.0)
