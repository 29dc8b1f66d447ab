"""Copies of a sidecar follow the load: real sidecars, in one process and over workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import KEY, Gatehouse, configuration
from tests.waiting import until

Launch = Callable[..., Gatehouse]
DEMO = Path(__file__).parents[2] / "engines" / "demo" / "artefacts" / "demo-chat.gguf"


def scaled(tmp_path: Path, **scale: Any) -> dict[str, Any]:
    engine = {"name": "chat", "runtime": "llama.cpp", "model": str(DEMO), "slots": 1, "context": 256, "threads": 1}
    made = configuration(
        tmp_path / "state",
        engines=[{**engine, "scale": {"min": 1, "max": 2, "stabilization": "2s", **scale}}],
        models=[{"name": "demo-chat", "pool": ["chat"], "routing": {"policy": "least_outstanding"}}],
    )
    made["identity"]["api_keys"]["static"].append(
        {"id": "operator", "key": KEYS["operator"], "tenant": "acme", "models": [], "roles": ["operator"]}
    )
    return made


class Traffic:
    """So many requests at a time, until told to end. Every answer that is not whole is a failure."""

    def __init__(self, gatehouse: Gatehouse, streams: int) -> None:
        self.served: dict[str, int] = {}
        self.failures: list[str] = []
        self._gatehouse, self._end = gatehouse, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(streams)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        body = {"model": "demo-chat", "messages": [{"role": "user", "content": "Tell me something long"}], "max_tokens": 48}
        with httpx.Client(base_url=self._gatehouse.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            while not self._end.is_set():
                answer = client.post("/v1/chat/completions", json=body)
                where = answer.headers.get("x-gatehouse-endpoint", "")
                self.served[where] = self.served.get(where, 0) + 1
                if answer.status_code != 200 or not answer.json()["choices"]:
                    self.failures.append(f"{answer.status_code} {answer.text}")

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["one process", "workers"])
def test_a_copy_comes_with_the_load_and_goes_with_it_and_no_request_is_lost(tmp_path: Path, arguments: list[str]) -> None:
    with Gatehouse(tmp_path, scaled(tmp_path), arguments=arguments) as gatehouse, admin(gatehouse, "operator") as api:
        traffic = Traffic(gatehouse, 4)
        try:
            until(lambda: traffic.served.get("chat~2", 0) >= 3 or traffic.failures, what="requests at the copy")

            def hinted() -> dict[str, Any] | None:
                """The engine's hint, once both are there and wanted, which they are again once clients that stood still go on."""
                hint, pool = api.get("/scaling/engines/chat").json(), api.get("/scaling/pools/demo-chat").json()
                return hint if hint["ready"] == hint["desired"] == pool["desired"] == pool["max"] == 2 else None

            hint: dict[str, Any] = until(hinted, what="the hint that follows")
            assert hint["load_seconds"] is not None, hint
        finally:
            traffic.end()
        until(lambda: state(api, "chat~2") == "unloaded", what="the end of the copy")  # kept for twice the time that it took to load
        assert traffic.failures == []
        assert set(traffic.served) == {"chat", "chat~2"}
        assert gatehouse.chat(model="demo-chat", max_tokens=3).status_code == 200
        until(lambda: api.get("/scaling/engines/chat").json()["replicas"] == 1, what="the hint that follows")
        until(lambda: gatehouse.metric("gatehouse_scaling_desired_replicas", pool="demo-chat") == 1, what="the hint as a metric")
        for outcome, event in (("started", "engine_ready"), ("stopped", "engine_unloaded")):
            # Once each, unless all clients stood still for so long that the copy went and came again.
            until(lambda outcome=outcome, event=event: copies(gatehouse, outcome) == counted(gatehouse, event) > 0, what=event)


def counted(gatehouse: Gatehouse, event: str) -> int:
    """How often this was recorded of the copy."""
    return sum(record.get("target") == "chat~2" and record["event"] == event for record in gatehouse.audit())


def copies(gatehouse: Gatehouse, outcome: str) -> float:
    return gatehouse.metric("gatehouse_scaling_copies_total", engine="chat", outcome=outcome)


def state(api: Any, endpoint: str) -> str:
    return next(str(one["state"]) for one in api.get("/endpoints").json()["items"] if one["name"] == endpoint)


def test_a_copy_that_does_not_fit_says_so_and_the_engine_serves_on(tmp_path: Path, launch: Launch) -> None:
    config = scaled(tmp_path, min=2, devices=["cuda:63"])
    with launch(config) as gatehouse, admin(gatehouse, "operator") as api:
        until(lambda: api.get("/scaling/engines/chat").json().get("blocked"), what="the reason")
        assert "cuda:63" in api.get("/scaling/engines/chat").json()["blocked"]
        assert gatehouse.chat(model="demo-chat", max_tokens=3).status_code == 200
