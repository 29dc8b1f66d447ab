"""The whole gateway over engines that fail: what clients see when engines refuse, reset, hang, die, and when there is too much to do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, errors_of, external, until
from tests.e2e.resilience import changes, many, places, reload, statuses, unused_port
from tests.fakes.answers import Step

HEALTH = {"interval": 0.2, "timeout": 0.5}
SLOTS = {"health": {**HEALTH, "path": "/v1/models"}}
"""An engine whose probes tell nothing of slots: the configuration's count."""
Launch = Callable[..., Gatehouse]


@pytest.fixture
def gateway(launch: Launch, tmp_path: Path) -> Callable[..., Gatehouse]:
    """Starts a gateway with the model m1 over engines a, b, c ... on these ports."""

    def start(*ports: int, engine: dict[str, Any] | None = None, models: list[dict[str, Any]] | None = None, **model: Any) -> Gatehouse:
        names = "abcdefgh"[: len(ports)]
        listed = [external(name, port, **{"health": HEALTH, **(engine or {})}) for name, port in zip(names, ports, strict=True)]
        config = configuration(tmp_path / "state", engines=listed, models=models or [{"name": "m1", "pool": list(names), **model}])
        return launch(config).start()

    return start


# -- failures before the first byte


@pytest.mark.parametrize("fault", ["reset", "close", "garbage", "endless_header"])
def test_a_failure_before_the_answer_is_retried_elsewhere(
    fault: str, gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    bad, good = engines(), engines()
    gatehouse = gateway(bad.port, good.port)
    bad.play(f"{fault}*4")
    answers = many(gatehouse, 40, width=1)
    expected = 40 if fault in ("reset", "close") else 36
    assert statuses(answers)[200] >= expected
    assert gatehouse.metric("gatehouse_retries_total") == (4 if expected == 40 else 0)
    outcomes = [gatehouse.outcome(answer.headers["x-request-id"]) for answer in answers if answer.status_code == 200]
    assert {outcome["attempts"] for outcome in outcomes} == ({1, 2} if expected == 40 else {1})


def test_nothing_is_retried_after_the_first_byte(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    one, two = engines(), engines()
    gatehouse = gateway(one.port, two.port)
    one.play("reset:at=mid")
    two.play("reset:at=mid")
    answer = gatehouse.chat(stream=True)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"error"' in answer.text
    assert len(one.received) + len(two.received) == 1


def test_a_refusing_engine_is_out_within_a_second_and_costs_nobody_anything(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    good = engines()
    gatehouse = gateway(unused_port(), good.port)
    started = time.monotonic()
    answers = many(gatehouse, 60, width=4)
    assert statuses(answers) == {200: 60}
    assert places(answers) == {"b": 60}
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0, 1.0, "the ejection")
    assert time.monotonic() - started < 5
    before = gatehouse.metric("gatehouse_retries_total")
    many(gatehouse, 20)
    assert gatehouse.metric("gatehouse_retries_total") == before


def test_an_engine_that_comes_back_gets_one_probe_request_first(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    port, good = unused_port(), engines()
    gatehouse = gateway(port, good.port)
    many(gatehouse, 10)
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0, what="the ejection")
    back = engines(port=port)
    back.play("normal:delay=0.4")
    until(lambda: changes(gatehouse, "a")[-1] == "half_open", what="half-open")
    answers = many(gatehouse, 40, width=8)
    assert statuses(answers) == {200: 40}
    first = back.received[0]
    assert first.step.delay == 0.4
    assert all(request.time >= first.done for request in back.received[1:])
    assert changes(gatehouse, "a")[-2:] == ["half_open", "ready"]


def test_five_failures_in_a_row_open_the_breaker(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    bad, good = engines(), engines()
    gatehouse = gateway(bad.port, good.port, routing={"breaker": {"open_for": 30}})
    bad.play("status:code=500*100")
    answers = many(gatehouse, 60, width=1)
    assert statuses(answers) == {200: 55, 502: 5}
    assert len(bad.received) == 5
    assert changes(gatehouse, "a")[-1] == "open"
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0


def test_client_errors_never_open_it(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = gateway(engine.port)
    engine.play("status:code=400*20; status:code=422*20")
    assert statuses(many(gatehouse, 40)) == {400: 20, 422: 20}
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 1
    assert gatehouse.chat().status_code == 200


def test_a_pool_whose_only_engine_fails_says_so_at_once_and_recovers(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    engine = engines()
    gatehouse = gateway(engine.port, routing={"breaker": {"open_for": 0.5}})
    engine.play("status:code=500*5")
    assert statuses(many(gatehouse, 5, width=1)) == {502: 5}
    refused = gatehouse.chat()
    assert refused.status_code == 503
    assert errors_of(refused)["code"] == "no_healthy_endpoint"
    assert int(refused.headers["retry-after"]) >= 1
    assert len(engine.received) == 5
    until(lambda: gatehouse.chat().status_code == 200, 5, "the recovery")
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 1


def test_a_hung_engine_is_out_soon_and_its_requests_are_answered_elsewhere(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    hung, good = engines(), engines()
    gatehouse = gateway(hung.port, good.port, engine={"timeouts": {"first_byte": 0.5}}, routing={"breaker": {"open_for": 30}})
    hung.play("hang*200")
    started = time.monotonic()
    answers = many(gatehouse, 60, width=12)
    assert statuses(answers) == {200: 60}
    assert changes(gatehouse, "a")[-1] == "open"
    opened = next(r["time"] for r in gatehouse.audit() if r.get("event") == "endpoint_changed" and r["detail"]["to"] == "open")
    assert opened - (time.time() - (time.monotonic() - started)) <= 0.5 + 1.0
    assert len(hung.received) <= 13


def test_a_fallback_model_answers_when_the_pool_cannot(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    good = engines()
    models = [{"name": "m1", "pool": ["a"], "fallbacks": ["m2"]}, {"name": "m2", "pool": ["b"]}]
    gatehouse = gateway(unused_port(), good.port, models=models)
    answers = many(gatehouse, 5, width=1)
    assert statuses(answers) == {200: 5}
    assert places(answers) == {"b": 5}


def busiest(engine: EngineThread) -> int:
    """The most requests that an engine had at a time."""
    return max(sum(other.time <= one.time < (other.done or 1e99) for other in engine.received) for one in engine.received)


# -- keys


def test_a_conversation_stays_at_its_engine(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    gatehouse = gateway(*(engines().port for _ in range(3)))
    homes = set()
    with gatehouse.client() as client:
        for talk in range(12):
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"topic {talk}"}]
            seen = set()
            for turn in range(4):
                answer = client.post("/v1/chat/completions", json={"model": "m1", "messages": messages})
                seen.add(answer.headers["x-gatehouse-endpoint"])
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"and {turn}?"}]
            assert len(seen) == 1
            homes |= seen
    assert homes == {"a", "b", "c"}


# -- too much to do


def test_an_engine_never_gets_more_than_its_slots_and_the_rest_waits(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    engine = engines(default=Step(delay=0.02))
    gatehouse = gateway(engine.port, engine={"slots": 2, **SLOTS})
    assert statuses(many(gatehouse, 40, width=16)) == {200: 40}
    assert busiest(engine) == 2


def test_a_full_queue_is_said_with_an_honest_retry_after(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines(default=Step(delay=0.4))
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS}, routing={"queue": {"size": 4}})
    answers = many(gatehouse, 12, width=12)
    assert statuses(answers) == {200: 5, 503: 7}
    for answer in answers:
        if answer.status_code == 503:
            assert errors_of(answer)["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 3


def test_nobody_waits_longer_than_the_queue_allows(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines(default=Step(delay=1.0))
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS}, routing={"queue": {"timeout": 0.3}})
    answers = many(gatehouse, 3, width=3)
    assert statuses(answers) == {200: 1, 503: 2}
    assert all(answer.elapsed.total_seconds() < 0.8 for answer in answers if answer.status_code == 503)


def test_a_waiting_client_that_leaves_gives_up_its_place(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines(default=Step(delay=0.5))
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS})
    runner = threading.Thread(target=gatehouse.chat)
    runner.start()
    until(lambda: gatehouse.metric("gatehouse_endpoint_in_flight", endpoint="a") == 1, what="the first request")
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "I leave"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(gatehouse.url.rsplit(":", 1)[1]))) as sock:
        sock.sendall(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        until(lambda: any(r.get("kind") == "intent" and r["bytes"] == len(body) for r in gatehouse.audit()), what="the intent")
    assert gatehouse.chat("I stay").status_code == 200
    runner.join()
    texts = [request.json()["messages"][0]["content"] for request in engine.received]
    assert texts == ["Hello!", "I stay"]
    assert gatehouse.metric("gatehouse_endpoint_in_flight", endpoint="a") == 0


def test_a_greedy_tenant_does_not_starve_a_modest_one(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines(default=Step(delay=0.05))
    gatehouse = gateway(engine.port, engine={"slots": 2, **SLOTS}, routing={"queue": {"size": 30}})
    stop = threading.Event()

    def greedy() -> None:
        while not stop.is_set():
            many(gatehouse, 40, width=40)

    flood = threading.Thread(target=greedy)
    flood.start()
    until(lambda: len(engine.received) > 10, what="the flood")
    answers = many(gatehouse, 8, width=2, key=OTHER_KEY)
    stop.set()
    flood.join()
    assert statuses(answers) == {200: 8}
    assert max(answer.elapsed.total_seconds() for answer in answers) < 0.6


# -- change


def test_a_reload_that_removes_an_engine_cuts_no_stream(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    one, two = engines(), engines()
    gatehouse = gateway(one.port, two.port)
    for engine in (one, two):
        engine.play("normal:chunks=20,interval=0.05*6")
    results: list[httpx.Response] = []
    streams = threading.Thread(target=lambda: results.extend(many(gatehouse, 6, width=6, stream=True)))
    streams.start()
    until(lambda: len(one.received) and len(one.received) + len(two.received) == 6, what="the streams")
    config = gatehouse.config
    config["engines"], config["models"] = config["engines"][1:], [{"name": "m1", "pool": ["b"]}]
    reload(gatehouse, config)
    until(lambda: places([gatehouse.chat("after")]) == {"b": 1}, what="the reload")
    streams.join()
    assert statuses(results) == {200: 6}
    assert "a" in places(results)
    assert all(answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text for answer in results)
    assert all(request.cancelled is None for request in one.received)
