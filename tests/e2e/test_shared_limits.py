"""Limits in Redis over running gateways: two replicas, one of them with workers; with Redis frozen and gone."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, errors_of, external
from tests.fakes.hammer import hammer, request_bytes
from tests.morning import TIMEZONE
from tests.steady import at_most
from tests.waiting import until

LIMITS = [
    {"name": "few", "match": {"key": "other"}, "requests": {"rate": 20, "per": "1h"}},
    {"name": "spent", "match": {"key": "other"}, "budget": {"amount": 25, "unit": "requests", "window": "month", "timezone": TIMEZONE}},
    {"name": "rate", "match": {"key": "test"}, "requests": {"rate": 20, "per": "1s", "burst": 10}},
    {"name": "paid", "match": {"key": "narrow"}, "concurrent": 4, "on_failure": "closed"},
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name:
        server = RedisServer(Path(name)).start()
        yield server
        server.stop()


def settings(directory: Path, port: int, server: RedisServer, **more: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {"redis": {"url": f"unix://{server.socket}"}, "limits": LIMITS, **more}
    made = adminapi.config(
        directory / "state", port, engines=[external("fake", port, slots=256)], models=[{"name": "m1", "pool": ["fake"]}], **parts
    )
    for key in made["identity"]["api_keys"]["static"]:
        key["models"] = ["*"]
    return made


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, redis: RedisServer) -> Iterator[list[Gatehouse]]:
    """They wait for Redis, however late it is: all is counted there."""
    yield from started(tmp_path_factory, engine, redis, timeout="30s")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, redis: RedisServer) -> Iterator[list[Gatehouse]]:
    """They wait for the usual 50 ms, after which each counts by itself."""
    yield from started(tmp_path_factory, engine, redis, prefix="hasty")


def started(
    tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, redis: RedisServer, **options: str
) -> Iterator[list[Gatehouse]]:
    made = []
    shared = {"redis": {"url": f"unix://{redis.socket}", **options}}
    for number, arguments in enumerate(([], ["--workers", "2"])):
        directory = tmp_path_factory.mktemp(f"shared{number}")
        made.append(Gatehouse(directory, settings(directory, engine.port, redis, **shared), arguments=arguments))
    for gateway in made:
        gateway.launch()
    try:
        yield [gateway.await_start() for gateway in made]
    finally:
        codes = [gateway.stop() for gateway in made]
    assert codes == [0, 0]


def chat(gateway: Gatehouse, key: str) -> httpx.Response:
    with gateway.client(key) as client:
        return client.post("/v1/chat/completions", json={"model": "m1", "messages": [{"role": "user", "content": "Hi"}]})


def test_a_limit_counts_once_over_replicas_and_workers(gateways: list[Gatehouse]) -> None:
    statuses = [chat(gateways[number % 2], OTHER_KEY).status_code for number in range(30)]
    assert statuses.count(200) == 20 and statuses.count(429) == 10
    refused = chat(gateways[0], OTHER_KEY)
    assert errors_of(refused)["code"] == "rate_limit_exceeded"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0" and int(refused.headers["retry-after"]) > 100


def test_operators_see_and_reset_what_all_replicas_share(gateways: list[Gatehouse]) -> None:
    for gateway in gateways:
        with adminapi.admin(gateway) as admin:
            found = {one["limit"]: one for one in admin.post("/limits:applying", json={"key": "other", "model": "m1"}).json()["items"]}
            assert [found["few"]["amounts"][0][name] for name in ("most", "used", "left")] == [20, 20, 0] and found["few"]["binds"]
            assert [found["spent"]["amounts"][0][name] for name in ("most", "used", "left")] == [25, 20, 5]
            (listed,) = admin.get("/limits/few/state").json()["items"]
            assert listed["scope"] == found["few"]["scope"] == "globex/api_key/other" and listed["amounts"][0]["used"] == 20
    with adminapi.admin(gateways[1]) as admin:
        adminapi.problem(admin.post("/limits/few/reset", json={"scope": "globex/api_key/nobody"}), 404, "not_found")
        assert admin.post("/limits/few/reset?dry_run=true", json={"scope": listed["scope"]}).json()["result"]["reset"] == 1
        assert chat(gateways[0], OTHER_KEY).status_code == 429
        assert admin.post("/limits/few/reset", json={"scope": listed["scope"]}).json()["reset"] == 1
        assert admin.post("/limits/spent/reset", json={}).json()["reset"] == 1
    for gateway in gateways:
        until(lambda gateway=gateway: chat(gateway, OTHER_KEY).status_code == 200)
    written = [one["target"] for one in events(gateways[1], "admin.limits.update") if one.get("outcome", "ok") == "ok"]
    assert written == ["limits/few", "limits/spent"]

    def alerts() -> list[dict[str, Any]]:
        return [one for gateway in gateways for one in events(gateway, "budget_used")]

    until(lambda: len(alerts()) >= 2, what="the alerts")
    told = alerts()
    assert sorted(one["detail"]["percent"] for one in told) == [50, 80], "once over all replicas and workers"
    assert {(one["target"], one["detail"]["scope"]) for one in told} == {("spent", "globex/api_key/other")}


def events(gateway: Gatehouse, name: str) -> list[dict[str, Any]]:
    return [record for record in gateway.audit() if record.get("event") == name]


def hammered(gateways: list[Gatehouse], seconds: float, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, float, set[int]]:
    """How many were admitted by all, what the limit allows, and the statuses."""

    async def both() -> list[Any]:
        calls = [hammer(gateway.url, request_bytes(gateway.url, KEY), 4, seconds) for gateway in gateways]
        return (await asyncio.gather(asyncio.to_thread(meanwhile), *calls))[1:]

    found = asyncio.run(both())
    began, ended = min(one.began for one in found), max(one.ended for one in found)
    return sum(len(one.admitted) for one in found), 10 + 20 * (ended - began), {status for one in found for status in one.statuses}


def test_a_rate_is_exact_over_replicas_and_workers(gateways: list[Gatehouse]) -> None:
    def allowed_by_admitted() -> float:
        admitted, most, statuses = hammered(gateways, 1.5)
        assert statuses <= {200, 429} and admitted <= most
        return most / max(1, admitted) if 429 in statuses else math.inf

    at_most(2.0, allowed_by_admitted)  # a pause of the machine counts as time in which more could have been admitted


def test_a_frozen_redis_is_survived_within_the_limit(hasty: list[Gatehouse], redis: RedisServer) -> None:
    def freeze() -> None:
        time.sleep(0.3)
        redis.freeze()
        time.sleep(1.0)
        redis.thaw()

    def allowed_by_admitted() -> float:
        # The replicas of this test share no store, so each thinks it is alone.
        admitted, most, statuses = hammered(hasty[1:], 2.5, freeze)
        assert statuses <= {200, 429} and admitted <= most + 5, "a worker's part goes on from what it heard last"
        return most / max(1, admitted) if 429 in statuses else math.inf

    at_most(2.0, allowed_by_admitted)


def test_closed_is_refused_while_redis_is_frozen_and_it_is_told_once(hasty: list[Gatehouse], redis: RedisServer) -> None:
    for gateway in hasty:
        until(lambda gateway=gateway: chat(gateway, NARROW_KEY).status_code == 200)
    redis.freeze()
    try:
        for gateway in hasty:
            answers: list[Any] = []

            def eight(gateway: Gatehouse = gateway, answers: list[Any] = answers) -> float:
                began = time.monotonic()
                answers += [chat(gateway, NARROW_KEY) for _ in range(8)]
                return time.monotonic() - began

            at_most(30.0, eight)
            assert {answer.status_code for answer in answers} == {503}
            assert errors_of(answers[0])["code"] == "limits_unavailable" and answers[0].headers["retry-after"] == "1"
            assert chat(gateway, KEY).status_code == 200, "this limit is a local one"
    finally:
        redis.thaw()
    for gateway in hasty:
        until(lambda gateway=gateway: chat(gateway, NARROW_KEY).status_code == 200)
        until(lambda gateway=gateway: told(gateway)[-2:] == ["limits_redis_lost", "limits_redis_back"])
        until(lambda gateway=gateway: gateway.metric("gatehouse_limits_redis_up") == 1)
        assert gateway.metric("gatehouse_limits_fallbacks_total", mode="closed") >= 8


def told(gateway: Gatehouse) -> list[str]:
    return [record["event"] for record in gateway.audit() if str(record.get("event", "")).startswith("limits_redis_")]


def test_a_start_without_redis(tmp_path: Path, short_path: Path, engine: EngineThread) -> None:
    missing = RedisServer(short_path)
    with Gatehouse(
        tmp_path, settings(tmp_path, engine.port, missing, redis={"url": f"unix://{missing.socket}", "timeout_ms": 30_000})
    ) as gateway:
        assert chat(gateway, KEY).status_code == 200
        assert chat(gateway, NARROW_KEY).status_code == 503
        missing.start()
        try:
            until(lambda: chat(gateway, NARROW_KEY).status_code == 200)
        finally:
            missing.stop()
        assert sum("limits cannot be counted in redis" in line for line in gateway.lines) in (1, 2), "the start, and the stop"
        assert any("redis.timeout_ms is an older name" in line for line in gateway.lines)
