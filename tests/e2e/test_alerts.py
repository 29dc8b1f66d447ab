"""Alerts of budgets to a webhook, what own engines cost, sessions and the public table: through a running gateway."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.morning import TIMEZONE
from tests.waiting import until

SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes or so!").decode()


class Receiver:
    """A server that takes webhooks as its docs say, and refuses the first `failing`."""

    def __init__(self) -> None:
        self.failing = 0
        self.bodies: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.forged = 0

    def take(self, headers: Any, body: bytes) -> int:
        id, stamp, given = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        expected = hmac.digest(key, f"{id}.{stamp}.".encode() + body, "sha256")
        if not hmac.compare_digest(given, "v1," + base64.b64encode(expected).decode()):
            self.forged += 1
            return 401
        self.ids.append(id)
        if self.failing:
            self.failing -= 1
            return 503
        self.bodies.append(json.loads(body))
        return 200


@contextmanager
def receiving() -> Iterator[tuple[Receiver, int]]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(receiver.take(self.headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver, server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cli(gatehouse: Gatehouse, home: Path, *arguments: str, code: int = 0) -> Result:
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}
    done = CliRunner().invoke(app, list(arguments), env=environ)
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done


def config(tmp_path: Path, port: int, hook: int) -> dict[str, Any]:
    budget = {"amount": 10, "unit": "requests", "window": "month", "timezone": TIMEZONE}
    return adminapi.config(
        tmp_path / "state",
        port,
        listen={"trusted_peers": ["127.0.0.1"]},
        engines=[external("fake", port, slots=4, cost={"rate": 3.6, "devices": 2, "currency": "eur"}), external("plain", port)],
        models=[
            {"name": "m1", "pool": ["fake"]},
            {"name": "gpt-4o-mini", "pool": ["plain"]},
            {"name": "ours", "pool": ["plain"]},
        ],
        prices=[
            {"model": "*", "table": "public"},
            {"model": "ours", "table": "public", "listed_as": "openai/gpt-4o"},
        ],
        usage={"cost_header": True},
        limits=[
            {"name": "kept", "match": {"model": "m1"}, "budget": budget},
            {"name": "trial", "match": {"model": "ours"}, "budget": {**budget, "amount": 4}, "enforce": False},
        ],
        alerts={
            # a receiver that stands still is not told twice
            "webhooks": [{"name": "ops", "url": f"http://127.0.0.1:{hook}/in?token=x", "secret": SECRET, "timeout": "60s"}]
        },
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_shares_of_budgets_are_told_once_and_devices_are_paid_for(tmp_path: Path, engine: EngineThread, workers: int) -> None:
    with receiving() as (receiver, port):
        settings = config(tmp_path, engine.port, port)
        with Gatehouse(tmp_path, settings, arguments=["--workers", str(workers)] if workers else []) as gatehouse:
            receiver.failing = 1
            tested = cli(gatehouse, tmp_path, "webhooks", "test", "ops", code=1)
            assert '"failed"' in tested.stdout or "failed" in tested.stdout
            assert "delivered" in cli(gatehouse, tmp_path, "webhooks", "test", "ops").stdout
            receiver.failing = 1  # the first alert is sent again

            with gatehouse.client() as client:
                body = {"model": "m1", "messages": [{"role": "user", "content": "Hi"}]}
                answers = [client.post("/v1/chat/completions", json=body, headers={"x-gatehouse-session": "s-1"}) for _ in range(11)]
            assert [one.status_code for one in answers] == [200] * 10 + [429]
            assert answers[-1].json()["error"]["code"] == "insufficient_quota"
            statuses = [gatehouse.chat(model="ours").status_code for _ in range(6)]
            assert statuses == [200] * 6
            priced = gatehouse.outcome(gatehouse.chat(model="gpt-4o-mini").headers["x-request-id"])
            prices = {one["model"]: one for one in json.loads(cli(gatehouse, tmp_path, "prices", "models", "--output", "json").stdout)}
            mini = prices["gpt-4o-mini"]
            assert (mini["prompt"], mini["completion"], mini["basis"], mini["version"]) == ("0.15", "0.6", "tokens", priced["price"])
            assert prices["m1"]["basis"] == "device_time" and prices["m1"].get("prompt") is None
            assert priced["cost"] == priced["prompt_tokens"] * 150 + priced["completion_tokens"] * 600
            _costs_of_the_engine(gatehouse, tmp_path, [one.headers["x-request-id"] for one in answers[:10]])

            def told() -> Any:
                found = {(one["data"]["limit"], one["data"]["percent"]) for one in receiver.bodies if one["type"] == "budget_used"}
                return found if {("kept", 100), ("trial", 100)} <= found else None

            until(told, 60, "the alerts")
            seen = [(one["data"]["limit"], one["data"]["percent"]) for one in receiver.bodies if one["type"] == "budget_used"]
            assert len(seen) == len(set(seen)), seen
            data = next(one["data"] for one in receiver.bodies if one["type"] == "budget_used" and one["data"]["limit"] == "trial")
            assert (data["enforced"], data["unit"], data["amount"]) == (False, "requests", 4) and data["scope"].startswith("acme/")
            assert not receiver.forged
            listed = cli(gatehouse, tmp_path, "webhooks", "deliveries").stdout
            assert "budget_used" in listed and "webhook_test" in listed
            assert "token=" not in cli(gatehouse, tmp_path, "webhooks", "list").stdout


def _costs_of_the_engine(gatehouse: Gatehouse, home: Path, requests: list[str]) -> None:
    records = [gatehouse.outcome(one) for one in requests]
    for one in records:
        held = one.get("prefill_us", 0) + one["decode_us"]
        assert (one["basis"], one["slots"], one["currency"]) == ("device_time", 4, "eur") and held > 0
        assert one["cost"] == -(-held * 7_200_000_000 // (3_600_000_000 * 4))

    def counted() -> Any:
        rows = json.loads(cli(gatehouse, home, "usage", "engines", "--output", "json").stdout)
        return rows if rows and rows[0]["requests"] == 10 else None

    (row,) = until(counted, 60, "the engine's usage")
    assert (row["engine"], row["devices"], row["currency"]) == ("fake", 2, "eur")
    assert 0 < row["hours"] < 0.3, "it began with this gateway, not at midnight"
    whole, idle, cost = (float(row[name]) for name in ("whole_cost", "idle_cost", "cost"))
    assert abs(whole - row["hours"] * 7.2) < 0.01 * max(1.0, whole) and cost > 0 and abs(idle + cost - whole) < 1e-6
    (session,) = json.loads(cli(gatehouse, home, "usage", "sessions", "--output", "json").stdout)
    assert (session["session"], session["requests"], session["key"], session["currency"]) == ("s-1", 10, "test", "eur")
    assert float(session["cost"]) == sum(one["cost"] for one in records) / 1e9
