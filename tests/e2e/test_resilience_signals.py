"""What engines, peers and the process itself tell the router: refused connections, loading models, trusted headers, pressure, weights."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, errors_of, external
from tests.e2e.resilience import Since, asking, busiest, changed, changes, many, places, queued, reload, statuses, with_operator
from tests.waiting import until

Launch = Callable[..., Gatehouse]
LAZY = {"interval": 3600, "timeout": 30}
"""Probes that come too late to matter: what is learned is learned from requests."""
BATCH_KEY = "batch-key-0123456789abcdef0123456789abcde"
URGENT_KEY = "urgent-key-0123456789abcdef0123456789abcd"


def settings(folder: Path, *ports: int, engine: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """The model m1 over engines a, b ... at these ports, and keys of all three classes."""
    names = "abcdefgh"[: len(ports)]
    listed = [external(name, port, **(engine or {})) for name, port in zip(names, ports, strict=True)]
    config = configuration(
        folder / "state", engines=listed, models=[{"name": "m1", "pool": list(names), **parts.pop("model", {})}], **parts
    )
    config["identity"]["api_keys"]["static"] += [
        {"id": priority, "key": key, "tenant": "acme", "models": ["*"], "priority": priority}
        for priority, key in (("batch", BATCH_KEY), ("interactive", URGENT_KEY))
    ]
    return with_operator(config)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """The gateway of all tests that need no start of their own; each puts it to its settings."""
    directory = tmp_path_factory.mktemp("signals")
    with Gatehouse(directory, settings(directory, engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def fleet(running: Gatehouse) -> Callable[..., Gatehouse]:
    return lambda *ports, **options: Since(running, settings(running.directory, *ports, **options))


def test_the_first_refused_request_opens_the_breaker(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread], nobody: int
) -> None:
    port, good = nobody, engines()
    dying = EngineThread(port=port)
    try:
        gatehouse = fleet(port, good.port, engine={"health": LAZY})
        assert statuses(many(gatehouse, 20)) == {200: 20}
        assert dying.received
        assert gatehouse.metric("gatehouse_breaker_open", endpoint="a") == 0
    finally:
        dying.close()
    until(lambda: many(gatehouse, 4) and gatehouse.metric("gatehouse_retries_total") > 0, what="a refused request")
    until(lambda: gatehouse.metric("gatehouse_breaker_open", endpoint="a") == 1, what="the open breaker")
    assert gatehouse.metric("gatehouse_breaker_open", endpoint="b") == 0
    until(lambda: "open" in changes(gatehouse, "a"), what="the event")
    events = [r for r in gatehouse.audit() if r.get("event") == "endpoint_changed" and r["detail"]["to"] == "open"]
    retried = until(lambda: [r for r in gatehouse.audit() if r.get("kind") == "outcome" and r.get("attempts") == 2], what="the record")
    assert {r["outcome"] for r in retried} == {"ok"}
    assert events[0]["detail"]["reason"] == "connections are refused"
    assert gatehouse.metric("gatehouse_retries_total") <= 4  # who came at the same time; nobody after it opened

    engines(port=port)
    until(lambda: many(gatehouse, 4) and gatehouse.metric("gatehouse_breaker_open", endpoint="a") == 0, what="the closed breaker")
    changed(gatehouse, "a", "half_open", "ready")


@pytest.mark.parametrize(("trusted", "spread"), [(["127.0.0.0/8"], {1}), ([], {2, 3})])
def test_a_session_header_counts_from_trusted_peers_only(
    launch: Launch, engines: Callable[..., EngineThread], tmp_path: Path, trusted: list[str], spread: set[int]
) -> None:
    ports = [engines().port for _ in range(3)]
    routing = {"routing": {"key": "session"}}
    gatehouse = launch(settings(tmp_path, *ports, listen={"trusted_peers": trusted}, model=routing)).start()
    answers = []
    with gatehouse.client() as client:
        for number in range(16):
            messages = [{"role": "user", "content": f"question {number}"}]
            headers = {"x-session-id": "the same", "x-forwarded-for": "192.0.2.7"}
            answers.append(client.post("/v1/chat/completions", json={"model": "m1", "messages": messages}, headers=headers))
    assert statuses(answers) == {200: 16}
    assert len(places(answers)) in spread


def test_a_stalled_process_sheds_batch_work_first_and_recovers(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    gatehouse = fleet(engines().port)
    assert gatehouse.process is not None
    process = gatehouse.process

    def stalled() -> httpx.Response | None:
        """Holds the process still again and again, so that its event loop is late each time it looks; a refused answer, if any."""
        for _ in range(6):
            process.send_signal(signal.SIGSTOP)
            threading.Event().wait(0.3)  # the stimulus, not a wait for something: how long the process stands still
            process.send_signal(signal.SIGCONT)
            threading.Event().wait(0.02)
        answer = gatehouse.chat(key=BATCH_KEY)
        return answer if answer.status_code == 503 else None

    refused = until(stalled, what="load shedding")
    assert errors_of(refused)["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    until(lambda: gatehouse.chat(key=BATCH_KEY).status_code == 200, what="the calm")
    until(lambda: gatehouse.chat(key=URGENT_KEY).status_code == 200, what="an answer")

    def levels() -> list[int]:
        return [r["detail"]["level"] for r in gatehouse.audit() if r.get("event") == "load_shedding"]

    until(lambda: max(levels(), default=0) >= 1 and 0 in levels()[1:], what="the levels in the audit log")


def test_an_engine_that_loads_is_said_to_load_and_serves_when_it_has(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread], nobody: int
) -> None:
    engine = engines()
    engine.engine.state = "loading"
    gatehouse = fleet(engine.port, nobody, engine={"health": {"interval": 0.1, "timeout": 30}})
    until(lambda: gatehouse.metric("gatehouse_endpoint_up") == 0, what="the first probes")
    answer = gatehouse.chat()
    assert (answer.status_code, errors_of(answer)["code"]) == (503, "model_loading")
    assert int(answer.headers["retry-after"]) >= 1
    assert not engine.received
    engine.engine.state = "ready"
    until(lambda: gatehouse.chat().status_code == 200, what="the loaded model")
    engine.engine.state = "failed"
    until(lambda: gatehouse.metric("gatehouse_endpoint_up") == 0, what="the failed probes")
    answer = gatehouse.chat()
    assert (answer.status_code, errors_of(answer)["code"]) == (503, "no_healthy_endpoint")
    assert int(answer.headers["retry-after"]) >= 1


def test_the_configured_slots_count_and_else_what_the_engine_says(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    engine = engines(slots=3)
    gatehouse = fleet(engine.port, engine={"slots": 2, "health": {"interval": 0.1, "timeout": 30}})
    until(lambda: len(engine.engine.requests) > 2, what="two probes")

    def served(slots: int) -> None:
        """Of twelve requests at once, so many are at the engine and the others wait."""
        before = len(engine.received)
        engine.play(f"hold*{slots}")
        with asking(gatehouse, 12) as answers:
            queued(gatehouse, 12 - slots)
            engine.holds(slots)
            assert len(engine.received) == before + slots
            engine.release(slots)
        assert statuses(answers) == {200: 12}
        assert busiest(engine) == slots

    served(2)
    config, version = gatehouse.config, gatehouse.metric("gatehouse_config_version")
    del config["engines"][0]["slots"]
    reload(gatehouse, config)
    until(lambda: gatehouse.metric("gatehouse_config_version") > version, what="the reload")
    with admin(gatehouse, "operator") as client:
        until(lambda: client.get("/endpoints/a").json()["slots"] == 3, what="what the engine says")
    served(3)


def test_tenants_share_a_full_pool_by_their_weights(fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    routing = {"policy": "round_robin", "queue": {"weights": {"acme": 3}}}
    gatehouse = fleet(engine.port, engine={"slots": 1}, model={"routing": routing})
    engine.play("hold")
    with asking(gatehouse, 32, key=KEY, text="heavy") as heavy, asking(gatehouse, 32, key=OTHER_KEY, text="light") as light:
        queued(gatehouse, 63)
        engine.release()
    assert (statuses(heavy), statuses(light)) == ({200: 32}, {200: 32})
    order = [request.json()["messages"][0]["content"].split()[0] for request in engine.received]
    assert order[1:37].count("heavy") == pytest.approx(27, abs=2), "three of four, as long as both wait"
    gatehouse.config["models"][0]["routing"]["queue"]["weights"]["acme"] = 0
    reload(gatehouse, gatehouse.config)
    until(lambda: gatehouse.metric("gatehouse_config_reloads_total", result="refused") == 1, what="the refusal")
    until(lambda: any("weights.acme" in line for line in gatehouse.lines), what="the reason")
