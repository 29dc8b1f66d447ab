"""Two replicas with stores and logs of their own, one Redis: after kill -9 of one, or of a worker, budgets are what both logs say."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, alive, external
from tests.morning import TIMEZONE
from tests.waiting import until

STREAMS = 5
LIMITS = [
    {"name": "month", "per": "tenant", "budget": {"amount": 10_000_000, "window": "month", "timezone": TIMEZONE}},
    {"name": "week", "per": "global", "budget": {"amount": 1_000_000, "unit": "requests", "window": {"rolling": "7d"}}},
    {"name": "money", "per": "key", "budget": {"amount": 50_000, "unit": "eur", "window": "month", "timezone": TIMEZONE}},
]
Line = dict[str, Any]


@pytest.fixture
def gateways(tmp_path: Path, short_path: Path, engine: EngineThread) -> Iterator[list[Gatehouse]]:
    with ExitStack() as stack:
        server = RedisServer(short_path).start()
        stack.callback(server.stop)
        made = []
        for name, arguments in (("a", []), ("b", ["--workers", "2"])):
            directory = tmp_path / name
            directory.mkdir()
            config = adminapi.config(
                directory / "state",
                engine.port,
                engines=[external("fake", engine.port, slots=64)],
                models=[
                    {"name": "m1", "pool": ["fake"]},
                    {"name": "endless", "pool": ["fake"], "upstream_model": "fake:hang:at=mid,chunks=3"},
                ],
                prices=[{"model": "*", "prompt": 10, "completion": 30, "currency": "eur"}],
                limits=LIMITS,
                redis={"url": f"unix://{server.socket}", "timeout": "30s"},
            )
            made.append(Gatehouse(directory, config, arguments=arguments))
        for one in made:
            one.launch()
            stack.callback(one.stop)
        yield [one.await_start() for one in made]


def lines(gateway: Gatehouse) -> dict[str, Line]:
    headers = {"authorization": f"Bearer {KEYS['admin']}"}
    found = httpx.get(f"{gateway.admin_url}/admin/v1/usage:reconcile", headers=headers, trust_env=False, timeout=60).json()
    assert found["difference"] == 0 and not found["not_compared"]
    return {one["limit"]: one for one in found["budgets"]}


def used(gateway: Gatehouse) -> dict[str, int]:
    """What Redis says is used of each budget, over all replicas; of money, in billionths."""
    with adminapi.admin(gateway) as admin:
        found = {name: admin.get(f"/limits/{name}/state").json()["items"] for name in ("month", "week", "money")}
    return {name: round(items[0]["amounts"][0]["used"] * (1e9 if name == "money" else 1)) for name, items in found.items() if items}


def equal(gateways: list[Gatehouse]) -> list[dict[str, Line]]:
    """What each replica says, once what both logs say is what Redis says."""

    def look() -> Any:
        found = [lines(gateway) for gateway in gateways]
        every = [line for one in found for line in one.values()]
        fine = every and not any(line["difference"] or line["under_way"] for line in every)
        sums = {name: sum(one[name]["from_audit"] for one in found if name in one) for name in ("month", "week", "money")}
        return found if fine and sums == used(gateways[0]) else None

    return until(look, 60, "the budgets to be as both logs say")


def stream(gateway: Gatehouse) -> None:
    with httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60) as client:
        try:
            client.post(
                "/v1/chat/completions",
                json={"model": "endless", "stream": True, "max_tokens": 70, "messages": [{"role": "user", "content": "Hi"}]},
            )
        except httpx.HTTPError:
            pass  # it is killed


def streams(gateway: Gatehouse, engine: EngineThread) -> list[threading.Thread]:
    before = len(engine.received)
    threads = [threading.Thread(target=stream, args=(gateway,)) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    until(lambda: len(engine.received) >= before + STREAMS, what="all streams")
    return threads


def test_what_a_killed_replica_had_reserved_comes_back_while_the_other_serves(gateways: list[Gatehouse], engine: EngineThread) -> None:
    one, two = gateways
    assert [gateway.chat(max_tokens=5).status_code for gateway in gateways for _ in range(3)] == [200] * 6
    before = equal(gateways)
    assert [found["week"]["from_audit"] for found in before] == [3, 3]
    threads = streams(one, engine)
    busy = used(two)["month"]
    one.stop(signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert two.chat(max_tokens=5).status_code == 200
    assert lines(two)["month"]["difference"] == 0 and used(two)["month"] >= busy, "only its own replica knows what it used"
    going = threading.Event()

    def serve() -> None:
        while not going.wait(0.02):
            assert two.chat(max_tokens=5).status_code == 200

    traffic = threading.Thread(target=serve)
    traffic.start()
    try:
        one.start()
        reserved = sum(record["reserved_prompt"] + record["reserved_completion"] for record in intents(one, "endless"))
        mine = before[0]["month"]["from_audit"] + reserved
        until(lambda: (lines(one)["month"]["from_audit"], lines(one)["month"]["difference"]) == (mine, 0), 60, "its streams' reservations")
    finally:
        going.set()
        traffic.join(60)
    after = equal(gateways)
    assert after[0]["month"]["charged"] == mine and after[0]["week"]["charged"] == 3 + STREAMS


def test_what_killed_workers_had_reserved_is_settled_by_itself(gateways: list[Gatehouse], engine: EngineThread) -> None:
    one, two = gateways
    assert [gateway.chat(max_tokens=5).status_code for gateway in gateways for _ in range(3)] == [200] * 6
    equal(gateways)
    threads = streams(two, engine)
    workers = [int(line.split()[-1].rstrip(")")) for line in list(two.lines) if " serves (process " in line]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    until(lambda: not any(alive(pid) for pid in workers), what="their end")
    assert until(lambda: two.chat(max_tokens=5).status_code == 200, what="their successors")

    def settled() -> bool:
        outcomes = [record for gateway in gateways for record in gateway.audit() if record["kind"] == "outcome" and record.get("charged")]
        return used(one)["month"] == sum(record.get("prompt_tokens", 0) + record.get("completion_tokens", 0) for record in outcomes)

    until(settled, 60, "nobody asks for it")
    equal(gateways)


def intents(gateway: Gatehouse, model: str) -> list[dict[str, Any]]:
    return [record for record in gateway.audit() if record["kind"] == "intent" and record["model"] == model]
