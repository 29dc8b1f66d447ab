"""Jobs of operators over two gateways, with two workers each, on one PostgreSQL: one is killed, and the other goes on, shows and ends
them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse
from tests.e2e.replicas import PEPPER
from tests.e2e.test_jobs import ROOT_KEY, ended, make, settings
from tests.integration.postgres import (
    PostgresServer,
    postgres,  # noqa: F401 - a fixture
)
from tests.waiting import until


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


def test_the_other_replica_goes_on_shows_and_cancels_when_one_is_killed(
    postgres: PostgresServer,  # noqa: F811
    engine: EngineThread,
    tmp_path: Path,
) -> None:
    url, gateways = postgres.database(), {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config: dict[str, Any] = settings(tmp_path / name / "state", engine, parallel=2, lease="20s")  # longer than a machine stands still
        config["files"] = {**config["files"], "directory": str(tmp_path / "files")}
        config["store"] = {"url": url}
        environ = {"GATEHOUSE_PEPPER": PEPPER, "GATEHOUSE_REPLICA": name}
        gateways[name] = Gatehouse(tmp_path / name, config, environ, ["--workers", "2"]).launch()
    try:
        for gateway in gateways.values():
            gateway.await_start()
        engine.play("hold*2")
        asks = [{"model": "fake", "messages": [{"role": "user", "content": f"warm {number}"}]} for number in range(4)]
        lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body} for n, body in enumerate(asks)]
        with gateways["a"].client(KEY) as http:
            content = "\n".join(map(json.dumps, lines)).encode()
            file = http.post("/v1/files", files={"file": ("w.jsonl", content)}, data={"purpose": "batch"}).json()["id"]
        with admin(gateways["a"], key=ROOT_KEY) as first:
            warm = make(first, "warm", file=file, at_once=2)["id"]
            engine.holds(2)
            held = first.get(f"/jobs/{warm}").json()["holder"].partition(":")[0]
        killed, other = gateways.pop(held), next(iter(gateways.values()))
        with admin(killed, key=ROOT_KEY) as here, admin(other, key=ROOT_KEY) as there:
            long = make(here, "benchmark", model=DEMO_MODEL, requests=10_000, max_tokens=4)["id"]
            until(lambda: there.get(f"/jobs/{long}").json()["progress"] > 0, what="the other one sees it work", seconds=60)
            shown = there.get(f"/jobs/{long}").json()
            assert (shown["replica"], shown["holder"].partition(":")[0]) == (held, held)
            with there.stream("GET", f"/jobs/{long}/events") as events:
                data = next(line for line in events.iter_lines() if line.startswith("data: "))
                assert json.loads(data[6:])["state"] == "running"
            assert killed.process is not None
            killed.process.kill()
            killed.process.wait(30)
            done = ended(there, warm)
            assert (done["state"], done["attempts"], done["result"]) == ("done", 2, {"answered": 4, "failed": 0}), done
            assert there.get(f"/jobs/{long}").json()["state"] == "running"  # its files are there; it waits for that replica
            assert there.post(f"/jobs/{long}/cancel").json()["cancels"]
            assert ended(there, long)["state"] == "cancelled"
    finally:
        codes = [gateway.stop() for gateway in gateways.values()]
    assert set(codes) == {0}
