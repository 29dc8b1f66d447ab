"""Budgets against the audit log: equal once nothing is under way; never charged less, also after a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.fakes.ports import empty_port
from tests.morning import TIMEZONE
from tests.waiting import until


def reconciled(gatehouse: Gatehouse, home: Path) -> dict[str, Any]:
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}
    done = CliRunner().invoke(app, ["limits", "reconcile", "--output", "json"], env=environ)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def settled(gatehouse: Gatehouse, home: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The budgets, once nothing differs: what was used is in the log a moment after the answer."""

    def equal() -> Any:
        found = reconciled(gatehouse, home)["budgets"]
        return found if found and not any(one["difference"] or one["under_way"] for one in found) else None

    return {(one["limit"], one["scope"]): one for one in until(equal, 60, "the budgets to be as the log says")}


@pytest.mark.parametrize("workers", [0, 2])
def test_budgets_are_as_the_audit_log_says(tmp_path: Path, engine: EngineThread, workers: int) -> None:
    day = {"window": "day", "timezone": TIMEZONE}
    with empty_port() as nobody:
        config = adminapi.config(
            tmp_path / "state",
            engine.port,
            engines=[external("fake", engine.port), external("away", nobody)],
            models=[{"name": "m1", "pool": ["fake"]}, {"name": "gone", "pool": ["away"], "fallbacks": ["m1"]}],
            prices=[{"model": "m1", "prompt": 10, "completion": 30, "currency": "eur"}, {"model": "gone", "prompt": 1, "currency": "usd"}],
            responses={"retention": "1h"},
            limits=[
                {"name": "tokens", "per": "tenant", "budget": {"amount": 100_000, **day}, "weights": {"completion": 3}},
                {"name": "eur", "budget": {"amount": 10, "unit": "eur", **day}},
                {"name": "usd", "budget": {"amount": 10, "unit": "usd", **day}},
                {"name": "calls", "per": "user", "budget": {"amount": 50, "unit": "requests", **day}, "enforce": False},
                {"name": "week", "budget": {"amount": 50, "unit": "requests", "window": {"rolling": "7d"}}},
                {"name": "group", "per": "group", "budget": {"amount": 50_000, **day}},
                {"name": "rate", "tokens": {"rate": 36, "per": "1h", "burst": 10_000}},
                {"name": "month", "per": "global", "budget": {"amount": 40, "unit": "requests", "window": "month", "timezone": TIMEZONE}},
            ],
        )
        gatehouse = Gatehouse(tmp_path, config, arguments=["--workers", str(workers)] if workers else []).start()
        try:
            assert [gatehouse.chat(max_tokens=5).status_code for _ in range(4)] == [200] * 4
            assert gatehouse.chat(model="gone", max_tokens=5).status_code == 200
            assert gatehouse.chat(model="nobody").status_code == 404
            found = settled(gatehouse, tmp_path)
            records = [one for one in gatehouse.audit() if one["kind"] == "outcome" and one["outcome"] == "ok"]
            assert found["eur", "acme/api_key/test"]["from_audit"] == sum(one["cost"] for one in records) > 0
            assert found["tokens", "acme"]["from_audit"] == sum(one["prompt_tokens"] + 3 * one["completion_tokens"] for one in records)
            assert ("usd", "acme/api_key/test") not in found or found["usd", "acme/api_key/test"]["from_audit"] == 0
            assert found["week", "acme/api_key/test"]["from_audit"] == 6 == found["month", ""]["from_audit"]
            tokens = sum(one["prompt_tokens"] + one["completion_tokens"] for one in records)
            assert 0 < found["rate", "acme/api_key/test"]["from_audit"] <= tokens
            assert reconciled(gatehouse, tmp_path)["not_compared"] == []
            late = [{"name": "late", "budget": {"amount": 9000, **day}}, {"name": "slow", "requests": {"rate": 60, "per": "1h"}}]
            with adminapi.admin(gatehouse) as admin:
                assert [admin.post("/limits", json=one).status_code for one in late] == [201] * 2
                assert admin.post("/limits/rate/reset", json={"scope": "acme/api_key/test"}).status_code == 200
            assert gatehouse.chat(max_tokens=5).status_code == 200
            found = settled(gatehouse, tmp_path)
            assert 0 < found["late", "acme/api_key/test"]["from_audit"] < tokens, "what came before it was added is not its own"
            assert found["rate", "acme/api_key/test"]["from_audit"] < tokens
            with gatehouse.client() as client:
                kept = client.post("/v1/responses", json={"model": "m1", "input": "x", "max_output_tokens": 5}).json()["id"]
                assert [client.get(f"/v1/responses/{name}").status_code for name in (kept, "resp_1")] == [200, 404]
            assert settled(gatehouse, tmp_path)["month", ""]["from_audit"] == 10, "reading what is kept costs a request, too"
            assert reconciled(gatehouse, tmp_path)["not_compared"] == [], "the log says to whom each limit applied"
        finally:
            gatehouse.stop(signal.SIGKILL)
        with gatehouse:
            assert gatehouse.chat(max_tokens=5).status_code == 200
            after = settled(gatehouse, tmp_path)
            assert after["month", ""]["from_audit"] == 11, "what was in hand of the process that was killed came back"
            assert reconciled(gatehouse, tmp_path)["difference"] == 0
