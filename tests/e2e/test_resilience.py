"""The whole gateway over engines that fail: what clients see when engines refuse, reset, hang, die, and when there is too much to do."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, errors_of, external
from tests.e2e.resilience import Since, asking, busiest, changed, many, places, queued, reload, statuses, with_operator
from tests.fakes.answers import Step
from tests.waiting import until

HEALTH = {"interval": 0.2, "timeout": 30}
SLOTS = {"health": {**HEALTH, "path": "/v1/models"}}
"""An engine whose probes tell nothing of slots: the configuration's count."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """The gateway of all tests here; each puts it to settings of its own."""
    directory = tmp_path_factory.mktemp("resilience")
    with Gatehouse(directory, settings(directory, engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def gateway(running: Gatehouse) -> Callable[..., Gatehouse]:
    """A gateway with the model m1 over engines a, b, c ... on these ports."""
    return lambda *ports, **options: Since(running, settings(running.directory, *ports, **options))


def settings(
    directory: Path,
    *ports: int,
    engine: dict[str, Any] | None = None,
    first: dict[str, Any] | None = None,
    models: list[dict[str, Any]] | None = None,
    **model: Any,
) -> dict[str, Any]:
    """engine: settings of all engines. first: of the first one alone; others are in this process, which may stand still for longer."""
    names = "abcdefgh"[: len(ports)]
    listed = [external(name, port, **{"health": HEALTH, **(engine or {})}) for name, port in zip(names, ports, strict=True)]
    listed[0] |= first or {}
    found = models or [{"name": "m1", "pool": list(names), **model}]
    return with_operator(configuration(directory / "state", engines=listed, models=found))


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


def test_a_refusing_engine_is_out_soon_and_costs_nobody_anything(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread], nobody: int
) -> None:
    good = engines()
    gatehouse = gateway(nobody, good.port)
    answers = many(gatehouse, 60, width=4)
    assert statuses(answers) == {200: 60}
    assert places(answers) == {"b": 60}
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0, what="the ejection")
    before = gatehouse.metric("gatehouse_retries_total")
    many(gatehouse, 20)
    assert gatehouse.metric("gatehouse_retries_total") == before


def test_an_engine_that_comes_back_gets_one_probe_request_first(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread], nobody: int
) -> None:
    good = engines()
    gatehouse = gateway(nobody, good.port)
    many(gatehouse, 10)
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0, what="the ejection")
    back = engines(port=nobody)
    back.play("hold")
    changed(gatehouse, "a", "half_open")
    with asking(gatehouse, 8) as answers:
        until(lambda: gatehouse.metric("gatehouse_requests_total", model="m1", status="200") >= 17, what="the answers of the other engine")
        until(lambda: len(back.received) == 1, what="the request that tries")
        back.release()
    assert statuses(answers) == {200: 8}
    changed(gatehouse, "a", "half_open", "ready")
    assert statuses(many(gatehouse, 40, width=8)) == {200: 40}
    assert len(back.received) > 1


def test_five_failures_in_a_row_open_the_breaker(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    bad, good = engines(), engines()
    gatehouse = gateway(bad.port, good.port, routing={"breaker": {"open_for": 600, "open_max": 600}})
    bad.play("status:code=500*100")
    answers = many(gatehouse, 60, width=1)
    assert statuses(answers) == {200: 55, 502: 5}
    assert len(bad.received) == 5
    changed(gatehouse, "a", "open")
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0


@pytest.mark.parametrize("code", [429, 503])
def test_what_an_engine_has_no_room_for_is_answered_elsewhere(
    code: int, gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    full, good = engines(), engines()
    gatehouse = gateway(full.port, good.port)
    full.play(f"status:code={code},retry_after=10*1000")  # for longer than these requests take
    answers = [*many(gatehouse, 40, width=8), gatehouse.chat(stream=True)]
    assert statuses(answers) == {200: 41} and places(answers) == {"b": 41}
    assert 1 <= len(full.received) <= 16, "it is avoided, not asked each time"
    assert gatehouse.metric("gatehouse_retries_total") == len(full.received)
    good.play(f"status:code={code}*1000")
    answer = gatehouse.chat()
    assert (answer.status_code, errors_of(answer)["code"]) == (503, "overloaded") and "retry-after" in answer.headers
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 1


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
    engine.play("status:code=500*500")
    assert statuses(many(gatehouse, 5, width=1)) == {502: 5}

    def refused() -> httpx.Response | None:
        """Who comes while the breaker lets one request try is that one."""
        before, answer = len(engine.received), gatehouse.chat()
        assert len(engine.received) == before + (answer.status_code != 503)
        return answer if answer.status_code == 503 else None

    refusal = until(refused, what="a refusal")
    assert errors_of(refusal)["code"] == "no_healthy_endpoint"
    assert int(refusal.headers["retry-after"]) >= 1
    engine.engine.script.clear()
    until(lambda: gatehouse.chat().status_code == 200, what="the recovery")
    assert gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 1


def test_a_hung_engine_is_out_soon_and_its_streams_are_answered_elsewhere(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    hung, good = engines(), engines()
    breaker = {"open_for": 600, "open_max": 600}
    gatehouse = gateway(hung.port, good.port, first={"timeouts": {"first_byte": 2}}, routing={"breaker": breaker})
    hung.play("hang*200")
    answers = many(gatehouse, 60, width=12, stream=True)
    assert statuses(answers) == {200: 60}
    changed(gatehouse, "a", "open")
    assert len(hung.received) <= 12 + 4, "all who came at once, and as many again as failed before the fifth"


class Freezing(socketserver.ThreadingTCPServer):
    """An engine that answers its health checks until it freezes, and requests never. `taken`: how many requests it has."""

    allow_reuse_address, daemon_threads, request_queue_size = True, True, 128

    def __init__(self) -> None:
        self.frozen, self.taken = threading.Event(), 0
        super().__init__(("127.0.0.1", 0), Frozen)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class Frozen(socketserver.StreamRequestHandler):
    server: Freezing

    def handle(self) -> None:
        for line in self.rfile:
            if line.startswith(b"POST"):
                self.server.taken += 1
            elif line == b"\r\n" and not self.server.frozen.is_set() and not self.server.taken:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.fixture
def freezing() -> Iterator[Freezing]:
    with Freezing() as server:
        yield server
        server.shutdown()


def test_whole_answers_of_an_engine_that_freezes_come_from_another_one(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread], freezing: Freezing
) -> None:
    health = {"interval": 0.1, "timeout": 0.2, "fall": 2}
    gatehouse = gateway(freezing.server_address[1], engines().port, first={"health": health})

    def taken() -> int:
        """How many requests the engine has; none where it was late with its health twice before, as its process stood still."""
        with asking(gatehouse, 16) as answers:
            pass
        assert statuses(answers) == {200: 16} and places(answers) == {"b": 16}
        return freezing.taken

    until(taken, what="requests at the engine, where the hash sends some of them")
    until(lambda: gatehouse.metric("gatehouse_retries_total") == freezing.taken, what="as many retries as requests that the engine read")


def test_a_whole_answer_is_waited_for_when_no_other_engine_has_room_for_it(gateway: Callable[..., Gatehouse], freezing: Freezing) -> None:
    health = {"interval": 0.1, "timeout": 0.2, "fall": 2}
    gatehouse = gateway(freezing.server_address[1], engine={"health": health, "timeouts": {"total": 2}})

    def taken() -> httpx.Response | None:
        """The answer to the request that the engine has; none where it was late with its health twice before."""
        answer = gatehouse.chat()
        return answer if freezing.taken else None

    answer = until(taken, what="a request at the engine")
    changed(gatehouse, "a", "unhealthy")
    assert (answer.status_code, errors_of(answer)["code"]) == (504, "engine_timeout")
    assert freezing.taken == 1


def test_a_fallback_model_answers_when_the_pool_cannot(
    gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread], nobody: int
) -> None:
    good = engines()
    models = [{"name": "m1", "pool": ["a"], "fallbacks": ["m2"]}, {"name": "m2", "pool": ["b"]}]
    gatehouse = gateway(nobody, good.port, models=models)
    answers = many(gatehouse, 5, width=1)
    assert statuses(answers) == {200: 5}
    assert places(answers) == {"b": 5}


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
    engine.play("hold*2")
    with asking(gatehouse, 16) as answers:
        queued(gatehouse, 14)
        engine.holds(2)
        assert len(engine.received) == 2
        engine.release(2)
    assert statuses(answers) == {200: 16}
    assert busiest(engine) == 2


def test_a_full_queue_is_said_with_an_honest_retry_after(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS}, routing={"queue": {"size": 4}})
    engine.play("hold")
    with asking(gatehouse, 12) as answers:
        until(lambda: gatehouse.metric("gatehouse_requests_total", status="503") == 7, what="seven refusals")
        engine.release()
    assert statuses(answers) == {200: 5, 503: 7}
    for answer in answers:
        if answer.status_code == 503:
            assert errors_of(answer)["code"] == "overloaded"
            assert 1 <= int(answer.headers["retry-after"]) <= 3


def test_nobody_waits_longer_than_the_queue_allows(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS}, routing={"queue": {"timeout": 0.3}})
    engine.play("hold")
    with asking(gatehouse, 3) as answers:
        until(lambda: gatehouse.metric("gatehouse_requests_total", status="503") == 2, what="the end of the waiting")
        engine.release()
    assert statuses(answers) == {200: 1, 503: 2}


def test_a_waiting_client_that_leaves_gives_up_its_place(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = gateway(engine.port, engine={"slots": 1, **SLOTS})
    engine.play("hold")
    runner = threading.Thread(target=gatehouse.chat)
    runner.start()
    until(lambda: gatehouse.metric("gatehouse_endpoint_in_flight", endpoint="a") == 1, what="the first request")
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "I leave"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(gatehouse.url.rsplit(":", 1)[1]))) as sock:
        sock.sendall(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        queued(gatehouse, 1)
    queued(gatehouse, 0)
    engine.release()
    runner.join(60)
    assert gatehouse.chat("I stay").status_code == 200
    texts = [request.json()["messages"][0]["content"] for request in engine.received]
    assert texts == ["Hello!", "I stay"]
    assert gatehouse.metric("gatehouse_endpoint_in_flight", endpoint="a") == 0


def test_a_greedy_tenant_does_not_starve_a_modest_one(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = gateway(engine.port, engine={"slots": 2, **SLOTS}, routing={"queue": {"size": 40}})
    engine.play("hold*2")
    with asking(gatehouse, 32, text="greedy") as greedy:
        queued(gatehouse, 30)
        with asking(gatehouse, 4, key=OTHER_KEY, text="modest") as modest:
            queued(gatehouse, 34)
            engine.release(2)
    assert (statuses(greedy), statuses(modest)) == ({200: 32}, {200: 4})
    order = [request.json()["messages"][0]["content"].split()[0] for request in engine.received]
    assert order[2:14].count("modest") == 4, "in turn with those who came before"


# -- change


def test_a_reload_that_removes_an_engine_cuts_no_stream(gateway: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    one, two = engines(), engines()
    gatehouse = gateway(one.port, two.port)
    for engine in (one, two):
        engine.play("hold:at=mid,chunks=20*6")
    with asking(gatehouse, 6, stream=True) as answers:
        until(lambda: one.engine.holding and one.engine.holding + two.engine.holding == 6, what="the streams")
        config, version = gatehouse.config, gatehouse.metric("gatehouse_config_version")
        config["engines"], config["models"] = config["engines"][1:], [{"name": "m1", "pool": ["b"]}]
        reload(gatehouse, config)
        until(lambda: gatehouse.metric("gatehouse_config_version") > version, what="the reload")
        two.engine.script.clear()
        assert places(many(gatehouse, 8)) == {"b": 8}
        for engine in (one, two):
            engine.release(engine.engine.holding)
    assert statuses(answers) == {200: 6}
    assert "a" in places(answers)
    assert all(answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text for answer in answers)
    assert all(request.cancelled is None for request in one.received)
