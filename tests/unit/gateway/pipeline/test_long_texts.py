"""A guardrail that reads the largest allowed body never holds the loop for long: measured in processor time, turn by turn."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gateway.app.plugins import OURS
from gateway.core.errors import ClientGone
from gateway.core.plugins import no_files
from gateway.core.specs import GuardrailSpec, ListenSpec
from gateway.pipeline.inspect import Guarded
from tests.unit.gateway.pipeline.world import ANSWER, SSE_HEAD, STREAM_BODY, World

LARGEST = ListenSpec().max_body_bytes - 1024
MOST = 0.02
"""Seconds."""
TEXTS = {
    "matches": "darn thing ",
    "matches among the widest characters": "\ufdfa" * 100 + " darn ",
    "nothing": "lorem ipsum ",
}


def deny(action: str) -> Guarded:
    settings = {"phrases": ["darn", "secret plan"], "action": action}
    made = OURS.guardrail(GuardrailSpec(name="words", type="denylist", settings=settings), no_files)
    return Guarded(made, False, lambda *event: None)


def filled(unit: str, size: int = LARGEST) -> str:
    return unit * (size // len(unit.encode()))


async def turns(world: World) -> list[float]:
    """Processor time of each round of the loop until the request is at the engine, or has ended."""
    taken = []
    while not world.engine.calls and not world.audit.outcomes:
        began = time.thread_time()
        await asyncio.sleep(0)
        taken.append(time.thread_time() - began)
    return taken


@pytest.mark.parametrize("action", ["block", "mask"])
@pytest.mark.parametrize("text", TEXTS)
async def test_the_largest_request_is_read_between_other_work(text: str, action: str) -> None:
    world = World(request=[deny(action)])
    body = {"model": "m", "messages": [{"role": "user", "content": filled(TEXTS[text])}]}
    world.start(json.dumps(body, ensure_ascii=False).encode())
    taken = await turns(world)
    assert max(taken[:-1], default=0.0) < MOST  # in the last one the body is written and sent
    assert sum(taken) < 20.0
    if action == "mask":
        assert len(world.engine.calls) == 1
    else:
        assert bool(world.engine.calls) is (text == "nothing")


async def test_two_that_are_read_at_once_take_turns() -> None:
    world = World(request=[deny("mask")])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": filled("darn thing ", 1 << 20)}]}).encode()
    first, _ = world.start(body)
    world.start(body)
    assert max((await turns(world))[:-1]) < MOST
    while len(world.engine.calls) < 2:
        await asyncio.sleep(0)
    assert not first.settled


async def test_a_client_that_leaves_ends_the_reading() -> None:
    world = World(request=[deny("mask")])
    exchange, _ = world.start(json.dumps({"model": "m", "messages": [{"role": "user", "content": filled("darn thing ")}]}).encode())
    exchange.cancel(ClientGone("left"))
    assert world.outcome.outcome == "cancelled" and len(await turns(world)) == 0


async def test_a_whole_answer_is_read_between_other_work() -> None:
    world = World(response=[deny("mask")])
    _, client = world.start()
    answer = json.loads(ANSWER)
    answer["choices"][0]["message"]["content"] = filled("darn thing ")
    call = world.call.head()
    call.body(json.dumps(answer).encode())
    call.end()
    taken = []
    while not world.audit.outcomes:
        began = time.thread_time()
        await asyncio.sleep(0)
        taken.append(time.thread_time() - began)
    assert max(taken[:-1]) < MOST and len(taken) > 100
    assert b"[removed] thing" in bytes(client.written[:4096])


def event_time(text: str, phrases: list[str]) -> float:
    """Processor time of the largest event of a guarded stream, in one read."""
    made = OURS.guardrail(GuardrailSpec(name="words", type="denylist", settings={"phrases": phrases, "action": "mask"}), no_files)
    world = World(response=[Guarded(made, False, lambda *event: None)])
    world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    event = b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()
    began = time.thread_time()
    call.body(event)
    return time.thread_time() - began


@pytest.mark.alone
@pytest.mark.parametrize(("unit", "phrase"), [("darn thing ", "darn"), ("a ", "a a"), ("lorem ipsum ", "darn"), ("! ", "!")])
def test_the_largest_event_of_a_stream_does_not_hold_the_loop_for_long(unit: str, phrase: str) -> None:
    assert min(event_time(filled(unit, 255 * 1024), [phrase, "secret plan"]) for _ in range(5)) < MOST
