"""Questions of guardrails to models: through the route, with retries, deadlines and slots given back."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.core.asking import Answered
from gateway.core.errors import ContextLengthExceeded, EngineError, EngineTimeout, Overloaded
from gateway.core.types import Principal, ResponseHead
from gateway.pipeline.asking import ModelAsker
from tests.unit.gateway.pipeline.world import World, _safe
from tests.waiting import reached

PATH = b"/v1/classify"
ANSWER = b'{"data":[],"usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}}'
CALLER = Principal("key", "acme", "api_key", priority="batch")


def asked(world: World, seconds: float = 30.0, principal: Principal | None = None, model: str = "m") -> asyncio.Task[Answered]:
    return asyncio.ensure_future(ModelAsker(world.plane).ask(model, PATH, {"input": ["hi"]}, seconds, principal))


async def sent(world: World, count: int = 1) -> None:
    await reached(lambda: len(world.engine.calls) == count)


async def test_a_question_goes_to_an_endpoint_of_the_model_and_gives_the_slot_back() -> None:
    world = World()
    task = asked(world)
    await sent(world)
    head = world.call.request_head
    assert head.startswith(b"POST /v1/classify HTTP/1.1\r\n") and b"x-gatehouse-priority: interactive\r\n" in head
    assert b"authorization: Bearer engine-key\r\n" in head and b"x-gatehouse-deadline-ms: " in head
    assert json.loads(world.call.request_body) == {"model": "m", "input": ["hi"]}
    world.call.answer(ANSWER)
    found = await task
    assert found.body == ANSWER and found.usage.prompt_tokens == 9
    assert world.route.attempts[0].results == ["success"]
    assert b'operation="guardrail"' in world.metrics.scrape() and not world.limiter.reservations and not world.audit.intents


async def test_what_a_caller_asks_waits_and_counts_as_theirs() -> None:
    world = World()
    task = asked(world, principal=CALLER)
    await sent(world)
    assert b"x-gatehouse-priority: batch\r\n" in world.call.request_head
    world.call.answer(ANSWER)
    await task
    assert b'operation="guardrail"' not in world.metrics.scrape()


async def test_another_endpoint_is_asked_where_that_is_safe() -> None:
    world = World()
    world.route.retries = [0.0]
    world.engine.failing = [_safe()]
    task = asked(world)
    await sent(world, 2)
    world.call.answer(ANSWER)
    await task
    assert world.route.tried == [(), ("a",)]
    assert [attempt.results for attempt in world.route.attempts] == [["failure"], ["success"]]


@pytest.mark.parametrize("status", [429, 503])
async def test_what_an_engine_has_no_room_for_is_asked_of_another_one(status: int) -> None:
    world = World()
    world.route.elsewhere = True
    task = asked(world)
    await sent(world)
    world.call.answer(b"{}", ResponseHead(status, [(b"retry-after", b"7")]))
    await sent(world, 2)
    assert world.route.refused == [("a", 7.0)] and world.route.tried == [(), ("a",)]
    world.route.elsewhere = False
    world.call.answer(b"{}", ResponseHead(status, []))
    with pytest.raises(Overloaded):
        await task
    assert [attempt.results for attempt in world.route.attempts] == [["neutral"], ["neutral"]]


async def test_a_question_that_may_have_ended_two_engines_gets_no_third() -> None:
    world = World()
    world.route.retries = [0.0, 0.0, 0.0]
    world.engine.failing = [_safe(lost=True), _safe(lost=True)]
    with pytest.raises(EngineError):
        await asked(world)
    assert [attempt.results for attempt in world.route.attempts] == [["failure"], ["failure"]]


async def test_without_an_answer_in_time_the_slot_and_the_call_end() -> None:
    world = World()
    task = asked(world, 0.05)
    with pytest.raises(EngineTimeout, match=r"within 0\.05 s"):
        await task
    assert world.call.cancelled and world.route.attempts[0].results == ["neutral"]
    waiting = World()
    waiting.route.wait = True
    with pytest.raises(EngineTimeout):
        await asked(waiting, 0.05)
    assert waiting.route.abandoned == waiting.route.queue


async def test_a_place_in_the_queue_becomes_a_slot() -> None:
    world = World()
    world.route.wait = True
    task = asked(world)
    await reached(lambda: bool(world.route.queue))
    world.route.queue[0].set(world.route.grant())
    await sent(world)
    world.call.answer(ANSWER)
    assert (await task).body == ANSWER


@pytest.mark.parametrize(
    ("status", "body", "error", "result"),
    [
        (500, b"{}", EngineError, "failure"),
        (503, b"{}", Overloaded, "neutral"),
        (400, b'{"error":{"message":"long","code":"context_length_exceeded"}}', ContextLengthExceeded, "neutral"),
        (200, b"not json", EngineError, "success"),
    ],
)
async def test_what_is_no_answer_is_an_error(status: int, body: bytes, error: type[Exception], result: str) -> None:
    world = World()
    task = asked(world)
    await sent(world)
    world.call.answer(body, ResponseHead(status, [(b"content-type", b"application/json")]))
    with pytest.raises(error):
        await task
    assert world.route.attempts[0].results == [result]


async def test_a_model_that_is_not_there_or_was_stopped_is_not_asked() -> None:
    world = World()
    with pytest.raises(EngineError, match="no model 'x'"):
        await asked(world, model="x")
    world.route.errors = [EngineError("nobody is healthy", code="no_healthy_endpoint")]
    with pytest.raises(EngineError, match="healthy"):
        await asked(world)
    assert not world.engine.calls
