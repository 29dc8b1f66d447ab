"""Workers that are killed in mid-stream: each request is charged its reservation by a recovery record, in the log and in the budget."""

from __future__ import annotations

import os
import signal
import threading
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

STREAMS = 6
LIMITS = [
    {"name": "month", "per": "tenant", "budget": {"amount": 100_000, "window": "month", "timezone": TIMEZONE}},
    {"name": "calls", "per": "global", "budget": {"amount": 1000, "unit": "requests", "window": "day", "timezone": TIMEZONE}},
]


def reconciled(gatehouse: Gatehouse) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {KEYS['admin']}"}
    found: dict[str, Any] = httpx.get(
        f"{gatehouse.admin_url}/admin/v1/usage:reconcile", headers=headers, trust_env=False, timeout=60
    ).json()
    return found


def equal(gatehouse: Gatehouse) -> dict[str, dict[str, Any]]:
    """The budgets, once nothing differs and all is counted."""

    def look() -> Any:
        found = reconciled(gatehouse)
        assert found["difference"] == 0 and not found["not_compared"]
        fine = len(found["budgets"]) == 2 and not any(one["difference"] or one["lost"] or one["under_way"] for one in found["budgets"])
        return found["budgets"] if fine else None

    return {one["limit"]: one for one in until(look, 60, "the budgets to be as the log says")}


def made_full(gatehouse: Gatehouse, limit: str) -> None:
    headers = {"authorization": f"Bearer {KEYS['admin']}"}
    done = httpx.post(f"{gatehouse.admin_url}/admin/v1/limits/{limit}/reset", headers=headers, json={}, trust_env=False, timeout=60)
    assert done.status_code == 200, done.text


def stream(gatehouse: Gatehouse) -> None:
    with httpx.Client(base_url=gatehouse.url, headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60) as client:
        try:
            client.post(
                "/v1/chat/completions",
                json={"model": "endless", "stream": True, "max_tokens": 70, "messages": [{"role": "user", "content": "Hi"}]},
            )
        except httpx.HTTPError:
            pass  # the worker is killed


@pytest.mark.parametrize("shared", [False, True], ids=["local", "redis"])
def test_a_worker_killed_in_mid_stream_charges_what_its_requests_had_reserved(tmp_path: Path, engine: EngineThread, shared: bool) -> None:
    with ExitStack() as stack:
        more: dict[str, Any] = {}
        if shared:
            server = RedisServer(tmp_path).start()
            stack.callback(server.stop)
            more = {"redis": {"url": f"unix://{server.socket}", "timeout": "30s"}}
        config = adminapi.config(
            tmp_path / "state",
            engine.port,
            engines=[external("fake", engine.port, slots=64)],
            models=[{"name": "m1", "pool": ["fake"]}, {"name": "endless", "pool": ["fake"], "upstream_model": "fake:hang:at=mid,chunks=3"}],
            limits=LIMITS,
            **more,
        )
        gatehouse = stack.enter_context(Gatehouse(tmp_path, config, arguments=["--workers", "2"]))
        assert [gatehouse.chat(max_tokens=5).status_code for _ in range(4)] == [200] * 4
        before = len(engine.received)
        threads = [threading.Thread(target=stream, args=(gatehouse,)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine.received) == before + STREAMS, what="all streams")
        workers = [int(line.split()[-1].rstrip(")")) for line in list(gatehouse.lines) if " serves (process " in line]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        until(lambda: not any(alive(pid) for pid in workers), what="their end")
        assert until(lambda: gatehouse.chat(max_tokens=5).status_code == 200, what="their successors")
        found = equal(gatehouse)
        records = gatehouse.audit()
        unknown = [one for one in records if one.get("code") == "outcome_unknown"]
        intents = {one["request_id"]: one for one in records if one["kind"] == "intent"}
        assert len(unknown) == STREAMS
        for one in unknown:
            reserved = intents[one["request_id"]]
            assert one["completion_tokens"] == reserved["reserved_completion"] == 70 and one["prompt_tokens"] == reserved["reserved_prompt"]
        counted = [one for one in records if one["kind"] == "outcome" and one.get("charged")]
        assert found["calls"]["charged"] - found["calls"]["in_hand"] == found["calls"]["from_audit"] == len(counted)
        assert found["month"]["from_audit"] == sum(one.get("prompt_tokens", 0) + one.get("completion_tokens", 0) for one in counted)
        if shared:
            made_full(gatehouse, "month")
            assert gatehouse.chat(max_tokens=5).status_code == 200
            again = equal(gatehouse)
            assert 0 < again["month"]["from_audit"] < found["month"]["from_audit"] and again["calls"]["from_audit"] == len(counted) + 1
            found = again
        gatehouse.stop(signal.SIGKILL)
        gatehouse.start()
        again = equal(gatehouse)
        assert [again[name]["from_audit"] for name in ("calls", "month")] == [found[name]["from_audit"] for name in ("calls", "month")]
