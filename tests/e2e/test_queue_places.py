"""A limit on places in queues (`queued`) over running gateways: in one process, over workers, over Redis."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, external
from tests.waiting import until

LIMITS = [{"name": "waiting", "match": {"key": "test"}, "queued": 2}]
SERVICE = 1.0


@pytest.fixture(params=["one process", "workers", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Gatehouse, EngineThread]]:
    engine = EngineThread(slots=1, service=SERVICE)
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name:
        redis = RedisServer(Path(name))
        parts: dict[str, Any] = {}
        if request.param == "redis":
            redis.start()
            parts["redis"] = {"url": f"unix://{redis.socket}", "timeout": "30s"}
        made = adminapi.config(
            tmp_path / "state",
            engine.port,
            engines=[external("fake", engine.port, slots=1)],
            models=[{"name": "m1", "pool": ["fake"]}],
            limits=LIMITS,
            **parts,
        )
        arguments = [] if request.param == "one process" else ["--workers", "2"]
        try:
            with Gatehouse(tmp_path, made, arguments=arguments) as running:
                yield running, engine
        finally:
            redis.stop()
            engine.close()


async def _asked(gateway: Gatehouse, key: str, times: int) -> list[httpx.Response]:
    body = {"model": "m1", "messages": [{"role": "user", "content": "Hi"}]}
    limits = httpx.Limits(max_connections=times, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {key}"}, limits=limits, timeout=60) as client:
        return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(times)))


def test_so_many_wait_and_the_others_are_told_when_to_come_back(place: tuple[Gatehouse, EngineThread]) -> None:
    gateway, engine = place
    engine.play("hold")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asyncio.run, _asked(gateway, KEY, 9))
        until(lambda: gateway.metric("gatehouse_requests_total", status="429") >= 4, what="the refusals")
        engine.release()
        found = asked.result()
    statuses = Counter(one.status_code for one in found)
    assert set(statuses) == {200, 429} and statuses[429] >= 4, statuses
    refused = next(one for one in found if one.status_code == 429)
    assert refused.json()["error"]["code"] == "concurrency_exceeded" and "queued" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    again = asyncio.run(_asked(gateway, KEY, 2))  # over workers both may wait for the slot, which another worker has
    assert [one.status_code for one in again] == [200, 200], "every place was given back"
    others = asyncio.run(_asked(gateway, OTHER_KEY, 4))
    assert [one.status_code for one in others] == [200] * 4, "nobody else is bounded"
    with adminapi.admin(gateway) as admin:

        def shown() -> list[tuple[str, int, int]]:
            items = admin.post("/limits:applying", json={"key": "test", "model": "m1"}).json()["items"]
            return [(one["limit"], one["queued"], one["in_use"]) for one in items]

        until(lambda: shown() == [("waiting", 2, 0)], what="the end of what was taken")
