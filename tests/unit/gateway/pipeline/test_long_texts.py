"""A guardrail that reads the largest allowed body never holds the loop for long: measured in processor time, turn by turn."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ClientGone, EngineError
from gateway.core.plugins import no_files
from gateway.core.specs import GuardrailSpec, ListenSpec
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.guarded import Guarded
from tests.steady import once
from tests.unit.gateway.pipeline.world import ANSWER, DONE, SSE_HEAD, STREAM_BODY, Call, Client, World

LARGEST = ListenSpec().max_body_bytes - 1024
LARGE = LARGEST // 4
"""Where every match costs time."""
MOST = 0.06
"""Seconds: three times the aim, because processor time on a busy machine counts what others do to its caches. Read at one go, each of these
texts takes far longer."""
PART = 0.1
"""Of the whole, that one turn may take where the machine is so slow that MOST says nothing."""
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


def between_other_work(taken: list[float]) -> bool:
    """Whether no turn but the last was long; in that one the body is written and sent."""
    return max(taken[:-1], default=0.0) < max(MOST, PART * sum(taken))


@pytest.mark.parametrize("action", ["block", "mask"])
@pytest.mark.parametrize("text", TEXTS)
async def test_the_largest_request_is_read_between_other_work(text: str, action: str) -> None:
    content = filled(TEXTS[text], LARGE if action == "mask" and text != "nothing" else LARGEST)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}, ensure_ascii=False).encode()

    async def read() -> list[float]:
        world = World(request=[deny(action)])
        world.start(body)
        taken = await turns(world)
        assert len(world.engine.calls) == (action == "mask" or text == "nothing")
        return taken

    await once(between_other_work, read)


@pytest.mark.parametrize("item", ["1,", '"a",', '"\\n",', '"\\u0061\\u0062",'])
async def test_json_within_a_text_is_read_between_other_work(item: str) -> None:
    content = f'["\\n",{item * (LARGE // 2 // len(json.dumps(item)))}1]'
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()

    async def read() -> list[float]:
        world = World(request=[deny("block")])
        world.start(body)
        taken = await turns(world)
        assert len(world.engine.calls) == 1
        return taken

    await once(between_other_work, read)


async def test_two_that_are_read_at_once_take_turns() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": filled("darn thing ", 1 << 20)}]}).encode()

    async def read() -> list[float]:
        world = World(request=[deny("mask")])
        first, _ = world.start(body)
        world.start(body)
        taken = await turns(world)
        while len(world.engine.calls) < 2:
            await asyncio.sleep(0)
        assert not first.settled
        return taken

    await once(between_other_work, read)


async def test_a_client_that_leaves_ends_the_reading() -> None:
    world = World(request=[deny("mask")])
    exchange, _ = world.start(json.dumps({"model": "m", "messages": [{"role": "user", "content": filled("darn thing ")}]}).encode())
    exchange.cancel(ClientGone("left"))
    assert world.outcome.outcome == "cancelled" and len(await turns(world)) == 0


async def test_a_whole_answer_is_read_between_other_work() -> None:
    answer = json.loads(ANSWER)
    answer["choices"][0]["message"]["content"] = filled("darn thing ", LARGE)
    body = json.dumps(answer).encode()

    async def read() -> list[float]:
        world = World(response=[deny("mask")])
        _, client = world.start()
        call = world.call.head()
        call.body(body)
        call.end()
        taken = []
        while not world.audit.outcomes:
            began = time.thread_time()
            await asyncio.sleep(0)
            taken.append(time.thread_time() - began)
        assert len(taken) > 100
        assert b"[removed] thing" in bytes(client.written[:4096])
        return taken

    await once(between_other_work, read)


def guarded_stream(phrases: list[str]) -> tuple[World, Exchange, Client, Call]:
    made = OURS.guardrail(GuardrailSpec(name="words", type="denylist", settings={"phrases": phrases, "action": "mask"}), no_files)
    world = World(response=[Guarded(made, False, lambda *event: None)])
    exchange, client = world.start(STREAM_BODY)
    return world, exchange, client, world.call.head(SSE_HEAD)


def event_of(text: str, **fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}, **fields}]}).encode()


async def event_times(text: str, phrases: list[str]) -> list[float]:
    """Processor time of each turn of the loop while the largest event of a guarded stream is inspected, in one read."""
    world, _, client, call = guarded_stream(phrases)
    taken = []
    event = event_of(text)
    began = time.thread_time()
    call.body(event)
    call.body(DONE)
    call.end()
    taken.append(time.thread_time() - began)
    while not world.audit.outcomes:
        began = time.thread_time()
        await asyncio.sleep(0)
        taken.append(time.thread_time() - began)
    assert world.outcome.outcome == "ok" and client.written.endswith(b"0\r\n\r\n")
    return taken


@pytest.mark.alone
@pytest.mark.parametrize(
    ("unit", "phrase"), [("darn thing ", "darn"), ("a ", "a a"), ("lorem ipsum ", "darn"), ("! ", "!"), ("\ufdfa", "darn")]
)
async def test_the_largest_event_of_a_stream_does_not_hold_the_loop_for_long(unit: str, phrase: str) -> None:
    text = filled(unit, 120 * 1024)
    await once(lambda taken: max(taken) < MOST, lambda: event_times(text, [phrase, "secret plan"]))


@pytest.mark.parametrize("size", [4095, 4096, 4097, 16_384, 20_000, 100_000])
async def test_a_large_event_says_the_same_in_pieces(size: int) -> None:
    text = ("x" * 37 + " darn ") * (size // 43)
    _, _, client, call = guarded_stream(["darn"])
    call.body(event_of("darn, ", finish_reason=None))
    call.body(event_of(text, finish_reason="stop") + DONE)
    call.end()
    while not client.ends:
        await asyncio.sleep(0)
    events = [json.loads(line[6:]) for line in bytes(client.written).decode().split("\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    said = "".join(choice.get("delta", {}).get("content", "") for choice in choices)
    assert said == "[removed], " + text.replace("darn", "[removed]")
    assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == ["stop"] and choices[-1]["finish_reason"]
    assert bytes(client.written).count(b"[DONE]") == 1


async def test_what_is_in_pieces_ends_with_the_client_and_with_the_engine() -> None:
    world, exchange, client, call = guarded_stream(["darn"])
    call.body(event_of("darn thing " * 9000))
    exchange.cancel(ClientGone("left"))
    written = len(client.written)
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.outcome.outcome == "cancelled" and len(client.written) == written

    world, exchange, client, call = guarded_stream(["darn"])
    call.body(event_of("darn thing " * 9000))
    call.fail(EngineError("The engine broke off."))
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.outcome.outcome == "failed" and bytes(client.written).count(b"[DONE]") == 1 and b"[removed]" not in client.written


async def test_the_engine_waits_meanwhile_and_cannot_send_without_end() -> None:
    world, _, _, call = guarded_stream(["darn"])
    call.body(event_of("darn thing " * 9000))
    assert call.paused
    for _ in range(20):
        call.body(event_of("x" * 100_000))
    assert world.outcome.outcome == "failed" and world.outcome.code == "engine_failed"
