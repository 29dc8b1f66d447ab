"""Budgets and long rates of a running gateway: over its end and its kill, over workers, in money, and without being enforced."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.e2e.test_cli import environment
from tests.morning import TIMEZONE
from tests.waiting import until


def settings(directory: Path, engine: EngineThread, limits: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    models = [{"name": "m1", "pool": ["fake"]}]
    return configuration(directory / "state", engines=[external("fake", engine.port)], models=models, limits=limits, **more)


def admitted(gateway: Gatehouse, most: int = 40) -> int:
    """How many requests pass, one after the other, until one is refused."""
    for count in range(most):
        response = gateway.chat(max_tokens=5)
        if response.status_code != 200:
            assert response.status_code == 429, response.text
            return count
    return most


def test_a_budget_lasts_over_an_end_and_a_kill(tmp_path: Path, engine: EngineThread) -> None:
    config = settings(
        tmp_path, engine, [{"name": "all", "budget": {"amount": 12, "unit": "requests", "window": "month", "timezone": TIMEZONE}}]
    )
    with Gatehouse(tmp_path, config) as gateway:
        assert [gateway.chat(max_tokens=5).status_code for _ in range(4)] == [200] * 4
    killed = Gatehouse(tmp_path, config).start()
    try:
        assert [killed.chat(max_tokens=5).status_code for _ in range(2)] == [200] * 2
    finally:
        killed.stop(signal.SIGKILL)
    with Gatehouse(tmp_path, config) as gateway:
        assert 4 <= admitted(gateway) <= 6, "what was in hand of the killed one counts as used"
        response = gateway.chat(max_tokens=5)
        error = errors_of(response)
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert response.headers["x-should-retry"] == "false" and 0 < int(response.headers["retry-after"]) <= 31 * 86400


@pytest.mark.parametrize("workers", [0, 2])
def test_money_is_counted_by_what_was_used(tmp_path: Path, engine: EngineThread, workers: int) -> None:
    config = settings(
        tmp_path,
        engine,
        [{"name": "money", "per": "tenant", "budget": {"amount": 0.001, "unit": "usd", "window": "month", "timezone": TIMEZONE}}],
        prices=[{"model": "m1", "request": 0.0001, "currency": "usd"}],
    )
    with Gatehouse(tmp_path, config, arguments=["--workers", str(workers)] if workers else []) as gateway:
        assert admitted(gateway) == 10
        assert "has 0 usd left" in errors_of(gateway.chat(max_tokens=5))["message"]


def test_a_long_rate_counts_once_over_workers_and_restarts(tmp_path: Path, engine: EngineThread) -> None:
    config = settings(tmp_path, engine, [{"name": "few", "requests": {"rate": 6, "per": "1d"}}])
    with Gatehouse(tmp_path, config, arguments=["--workers", "2"]) as gateway:
        assert [gateway.chat(max_tokens=5).status_code for _ in range(3)] == [200] * 3
    with Gatehouse(tmp_path, config) as gateway:
        assert admitted(gateway) == 3
        assert gateway.chat(max_tokens=5).headers["x-ratelimit-remaining-requests"] == "0"


def test_what_is_not_enforced_is_counted_and_recorded(tmp_path: Path, engine: EngineThread) -> None:
    config = settings(tmp_path, engine, [{"name": "trial", "requests": {"rate": 1, "per": "1m"}, "enforce": False}])
    with Gatehouse(tmp_path, config) as gateway:
        answers = [gateway.chat(max_tokens=5) for _ in range(3)]
        assert [one.status_code for one in answers] == [200] * 3
        outcome = gateway.outcome(answers[2].headers["x-request-id"])
        assert outcome["detail"]["limits_not_enforced"] == ["trial"]
        until(lambda: 'gatehouse_limit_not_enforced_total{limit="trial"} 2.0' in gateway.metrics(), 10, "the metric")


def test_it_is_seen_changed_and_reset(tmp_path: Path, engine: EngineThread) -> None:
    limits = [
        {"name": "few", "budget": {"amount": 10, "unit": "requests", "window": "month", "timezone": TIMEZONE}},
        {"name": "minute", "requests": {"rate": 10, "per": "1m", "burst": 100}},  # a machine that stands still fills it by little
        {"name": "large", "budget": {"amount": 1_000_000, "unit": "requests", "window": "month", "timezone": TIMEZONE}},
    ]
    config = adminapi.config(tmp_path / "state", engine.port, limits=limits)
    with Gatehouse(tmp_path, config, arguments=["--workers", "2"]) as gateway:

        def cli(*arguments: str) -> str:
            environ = {"GATEHOUSE_URL": gateway.admin_url, "GATEHOUSE_KEY": adminapi.KEYS["admin"]}
            done = CliRunner().invoke(app, list(arguments), env={**environment(tmp_path / "home"), **environ})
            assert done.exit_code == 0, (arguments, done.stdout, done.stderr)
            return done.stdout

        assert admitted(gateway) == 10
        shown = json.loads(cli("limits", "show", "test", "--output", "json"))
        by_name = {one["limit"]: one for one in shown}
        assert (by_name["few"]["binds"], by_name["few"]["left"], by_name["minute"]["binds"]) == (True, 0, False)
        assert by_name["few"]["amounts"][0] | {"resets_in": 0} == {
            "amount": "budget_requests", "unit": "requests", "most": 10, "used": 10, "left": 0, "resets_in": 0, "in_hand": 0,
        }  # fmt: skip
        assert 85 <= by_name["minute"]["amounts"][0]["left"] < 100
        large = by_name["large"]["amounts"][0]
        assert large["in_hand"] > 0 and large["used"] + large["left"] == 1_000_000
        assert 10 <= large["used"] - large["in_hand"] <= 20, "what was used is what is not in hand"
        (bucket,) = json.loads(cli("limits", "state", "few", "--output", "json"))
        assert bucket["scope"] == by_name["few"]["scope"] == "acme/api_key/test"

        def told() -> list[int]:
            return [one["detail"]["percent"] for one in gateway.audit() if one.get("event") == "budget_used"]

        until(lambda: 100 in told(), what="the record of the last one")
        assert told() == sorted(told()) and told()[-1] == 100
        assert '"reset": 1' in cli("limits", "reset", "few", "--principal", "test", "--output", "json")
        assert admitted(gateway) == 10
        assert any(one.get("target") == "limits/few" for one in gateway.audit())
