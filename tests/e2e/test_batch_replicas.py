"""Batches over two gateways on one PostgreSQL with one directory of files: the other one goes on when one is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.replicas import PEPPER
from tests.e2e.test_batches import ROOT_KEY, line, settings, text
from tests.integration.postgres import (
    PostgresServer,
    postgres,  # noqa: F401 - a fixture
)
from tests.waiting import until

OVER = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


def client(gateway: Gatehouse) -> httpx.Client:
    return httpx.Client(base_url=f"{gateway.url}/v1", headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60)


def holder(gateway: Gatehouse, id: str) -> str:
    with admin(gateway, key=ROOT_KEY) as http:
        return str(http.get(f"/batches/{id}").json()["holder"].partition(":")[0])


def test_a_batch_goes_on_at_the_other_replica_when_the_one_that_works_on_it_is_killed(
    postgres: PostgresServer,  # noqa: F811
    engine: EngineThread,
    tmp_path: Path,
) -> None:
    url, gateways = postgres.database(), {}
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        config: dict[str, Any] = settings(directory / "state", engine, lease="10s")  # longer than a machine stands still
        config["files"] = {**config["files"], "directory": str(tmp_path / "files")}
        config["store"] = {"url": url}
        gateways[name] = Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER, "GATEHOUSE_REPLICA": name}).launch()
    try:
        a, b = (gateway.await_start() for gateway in gateways.values())
        engine.play("normal*10; hold*6")
        with client(a) as first, client(b) as second:
            content = text(*(line(f"n{number}") for number in range(30)))
            file = first.post("/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()["id"]
            assert second.get(f"/files/{file}/content").content == content
            wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            id = second.post("/batches", json=wanted).json()["id"]
        engine.holds(6)
        held = holder(a, id)
        assert held == holder(b, id) and held in gateways
        killed, other = gateways.pop(held), next(one for name, one in gateways.items() if name != held)
        assert killed.process is not None
        killed.process.kill()
        killed.process.wait(30)
        with client(other) as http:
            until(lambda: http.get(f"/batches/{id}").json()["status"] in OVER, what="the end of the batch", seconds=60)
            batch = http.get(f"/batches/{id}").json()
            assert batch["status"] == "completed" and batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
            found = [json.loads(one) for one in http.get(f"/files/{batch['output_file_id']}/content").text.splitlines()]
        assert sorted(one["custom_id"] for one in found) == sorted(f"n{number}" for number in range(30))
        repeated = sum(one.get("gatehouse", {}).get("attempts", 1) > 1 for one in found)
        assert batch["gatehouse"] == {"repeated": repeated, "unknown": 0} and repeated >= 6
        assert len(engine.received) == 30 + repeated
    finally:
        codes = [gateway.stop() for gateway in gateways.values()]
    assert set(codes) == {0}
