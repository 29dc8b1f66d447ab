"""Models that answer in another's place: when, for whom, under whose guardrails and names."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from gateway.core.errors import EngineError, Overloaded
from gateway.core.standing import halt
from gateway.core.types import ALLOW, ResponseHead, Verdict
from gateway.core.waiting import Signal
from gateway.pipeline.guarded import Guarded
from tests.unit.gateway.pipeline.test_inspect import Scripted, deny
from tests.unit.gateway.pipeline.world import ANSWER, BODY, SSE_HEAD, STREAM_BODY, Client, World, chunk


def code_of(client: Client) -> str:
    return str(json.loads(client.body)["error"]["code"])


def away(**options: object) -> World:
    """The pool of `m` is down; `n` is its fallback."""
    world = World(fallback=True, **options)  # type: ignore[arg-type]
    world.route.errors = [EngineError("No endpoint of m is healthy.", code="no_healthy_endpoint", status=503)]
    return world


@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 507, 404, 401])
def test_an_engine_that_answers_with_an_error_of_its_own_is_no_answer(status: int, body: bytes) -> None:
    world = World(fallback=True)
    _, client = world.start(body)
    world.call.answer(b"{}", ResponseHead(status, []))
    assert len(world.other.attempts) == 1
    world.call.answer()
    assert client.status == 200


def test_a_fallback_has_attempts_of_its_own() -> None:
    world = World(fallback=True)
    world.engine.failing = [EngineError("The engine refuses connections.") for _ in range(4)]
    for error in world.engine.failing:
        error.safe = error.refused = True
    world.route.retries, world.other.retries = [0.0, 0.0], [0.0]
    exchange, client = world.start()
    world.call.answer()
    assert (world.route.made, world.other.made) == ([1, 2, 3], [1])
    assert (client.status, exchange.attempts, world.outcome.attempts) == (200, 5, 5)


def test_what_an_engine_says_of_the_request_is_said_to_the_caller() -> None:
    world = World(fallback=True)
    _, client = world.start()
    world.call.answer(b'{"error":{"message":"bad","code":"weird"}}', ResponseHead(400, []))
    assert (client.status, code_of(client)) == (400, "weird")
    assert world.other.attempts == []


def test_the_fallbacks_engine_is_asked_for_its_own_model_and_the_answer_says_who_gave_it() -> None:
    world = away()
    _, client = world.start()
    assert json.loads(world.call.request_body)["model"] == "n"
    world.call.answer()
    assert client.headers["x-gatehouse-model"] == "n"
    assert [record.model for record in world.audit.intents] == ["m"]
    assert world.outcome.model == "n"


def test_a_fallback_writes_no_line_unless_one_looks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gatehouse")
    away().start()
    assert caplog.messages == [], "a model that is away would have a line for each request"
    caplog.set_level(logging.DEBUG, "gatehouse")
    away().start()
    assert caplog.messages == ["model m cannot answer (no_healthy_endpoint)"]


def test_a_fallback_that_the_caller_may_not_use_is_not_asked() -> None:
    world = away()
    world.authorizer.denied = {"n"}
    _, client = world.start()
    assert (client.status, code_of(client)) == (503, "no_healthy_endpoint")
    assert world.engine.calls == []


@pytest.mark.parametrize("theirs", [(), ("web_search",), ("store", "code_interpreter")])
def test_a_fallback_whose_engines_may_do_less_by_themselves_takes_no_request_for_it(theirs: tuple[str, ...]) -> None:
    world = away()
    world.entry.spec = msgspec.structs.replace(world.entry.spec, engine_tools=("web_search", "store"))
    (fallback,) = world.entry.fallbacks
    fallback.spec = msgspec.structs.replace(fallback.spec, engine_tools=theirs)
    _, client = world.start(json.dumps({**json.loads(BODY), "store": True}).encode())
    assert (client.status, code_of(client), world.engine.calls) == (503, "no_healthy_endpoint", [])
    world = away()
    (fallback,) = world.entry.fallbacks
    world.entry.spec = fallback.spec = msgspec.structs.replace(fallback.spec, engine_tools=("store",))
    _, client = world.start(json.dumps({**json.loads(BODY), "store": True}).encode())
    world.call.answer()
    assert client.headers["x-gatehouse-model"] == "n"


def test_the_error_is_that_of_the_model_that_was_asked_for() -> None:
    world = World(fallback=True)
    world.route.errors = [Overloaded("The queue of m is full.", retry_after=7.0)]
    world.other.errors = [EngineError("No endpoint of n is healthy.", code="no_healthy_endpoint", status=503)]
    _, client = world.start()
    assert (client.status, code_of(client)) == (503, "overloaded")
    assert client.headers["retry-after"] == "7"
    assert client.headers["x-gatehouse-model"] == world.outcome.model == "m"


def test_the_endpoint_of_an_error_is_that_of_the_model_that_was_asked_for() -> None:
    world = World(fallback=True)
    world.other.errors = [EngineError("No endpoint of n is healthy.", code="no_healthy_endpoint", status=503)]
    _, client = world.start()
    world.call.answer(b"{}", ResponseHead(500, []))
    assert (client.status, client.headers["x-gatehouse-endpoint"], world.outcome.endpoint) == (502, "a", "a")


def test_what_a_fallback_asks_of_its_own_requests_it_asks_of_these() -> None:
    body = b'{"model":"m","max_tokens":51,"messages":[{"role":"user","content":"hi"}]}'
    world = away(fallback_max_tokens=50)
    _, client = world.start(body)
    assert client.status == 503
    assert world.engine.calls == []
    world = away(fallback_max_tokens=51)
    world.start(body)
    assert len(world.engine.calls) == 1


def test_a_request_passes_the_guardrails_of_the_fallback_too() -> None:
    world = away(fallback_request=[deny(mask=False, phrase="secret")])
    _, client = world.start(BODY.replace(b"hi", b"a secret"))
    assert (client.status, code_of(client)) == (503, "no_healthy_endpoint")
    assert world.engine.calls == []
    world = away(fallback_request=[deny(mask=True, phrase="secret")])
    world.start(BODY.replace(b"hi", b"a secret"))
    assert b"secret" not in world.call.request_body
    assert json.loads(world.call.request_body)["model"] == "n"


async def test_a_fallback_that_is_halted_while_its_guardrails_read_is_not_asked() -> None:
    verdict: Signal[Verdict] = Signal()
    world = away(fallback_request=[Guarded(Scripted(verdict), False, lambda *event: None)])
    _, client = world.start()
    assert not client.ends
    world.plane.standing.replace("halts", [halt("model/n")])
    verdict.set(ALLOW)
    assert (client.status, code_of(client)) == (503, "no_healthy_endpoint")
    assert world.engine.calls == []


@pytest.mark.parametrize("whose", ["response", "fallback_response"])
def test_an_answer_passes_the_guardrails_of_both(whose: str) -> None:
    world = away(**{whose: [deny(mask=True, phrase="hello")]})
    _, client = world.start()
    world.call.answer(ANSWER)
    assert client.status == 200
    assert b"hello" not in client.body
    world = away(**{whose: [deny(mask=True, phrase="hello")]})
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("hel")).body(chunk("lo")).body(b"data: [DONE]\n\n").end()
    assert client.complete
    assert b"hel" not in client.body


def test_a_guardrail_of_both_reads_a_request_once() -> None:
    both = deny(mask=False)
    world = World(fallback=True, request=[both], fallback_request=[both], response=[both], fallback_response=[both])
    (fallback,) = world.entry.fallbacks
    assert (fallback.request_guardrails, fallback.response_guardrails) == ((), (both,))
