"""Answers of many MiB: nothing that is done for them holds the loop for long."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.audit.crypto import BodyHasher
from gateway.pipeline.large import LARGE_ANSWER
from tests.steady import once
from tests.unit.gateway.pipeline.test_inspect import MASKED, PHRASE, deny
from tests.unit.gateway.pipeline.world import World

PATH = b"/v1/embeddings"
ASKED = json.dumps({"model": "m", "input": ["a"] * 1000}).encode()
ROW = json.dumps([round(number * 1e-7 + 0.01234, 10) for number in range(1536)]).encode()


def vectors(rows: int, **more: Any) -> bytes:
    data = b",".join([b'{"object":"embedding","index":%d,"embedding":%b}' % (number, ROW) for number in range(rows)])
    return b'{"object":"list","data":[%b],%b' % (data, json.dumps({"model": "m", **more}).encode()[1:])


async def answered(world: World, body: bytes) -> tuple[bytes, list[float]]:
    """The client's answer, and the processor time of each turn of the loop once the engine's is whole."""
    _, client = world.start(ASKED, path=PATH)
    call = world.call.head()
    for start in range(0, len(body), 1 << 20):
        call.body(body[start : start + (1 << 20)])
    began = time.thread_time()
    call.end()
    taken = [time.thread_time() - began]
    while not world.audit.outcomes:
        began = time.thread_time()
        await asyncio.sleep(0)
        taken.append(time.thread_time() - began)
    assert client.status == 200
    return client.body, taken


@pytest.mark.parametrize("guarded", [False, True])
async def test_what_it_cost_and_its_hash_are_those_of_a_small_one(guarded: bool) -> None:
    for rows in (2, 400):
        body = vectors(rows, usage={"prompt_tokens": 7, "total_tokens": 7})
        assert (len(body) >= LARGE_ANSWER) == (rows > 2)
        world = World(response=[deny(mask=False)] if guarded else [])
        world.audit.hash_body = BodyHasher(b"k" * 32)  # type: ignore[method-assign]
        passed, _ = await answered(world, body)
        assert json.loads(passed) == json.loads(body)
        outcome = world.outcome
        assert (outcome.prompt_tokens, outcome.estimated, outcome.bytes) == (7, False, len(passed))
        assert outcome.body_hash == BodyHasher(b"k" * 32)(passed)


async def test_without_a_usage_it_is_estimated() -> None:
    world = World()
    await answered(world, vectors(400))
    assert world.outcome.estimated


async def test_a_text_in_it_is_read_by_guardrails() -> None:
    world = World(response=[deny(mask=True)])
    passed, _ = await answered(world, vectors(400, results=[{"text": f"a {PHRASE} thing"}]))
    assert json.loads(passed)["results"] == [{"text": f"a {MASKED} thing"}] and len(passed) >= LARGE_ANSWER


async def test_what_is_no_json_does_not_pass_guardrails() -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start(ASKED, path=PATH)
    world.call.head().body(vectors(400).replace(b'"data":[', b'"data":[,') + b" }").end()
    while not world.audit.outcomes:
        await asyncio.sleep(0)
    assert client.status == 502 and world.outcome.code == "engine_failed"


@pytest.mark.parametrize("guarded", [False, True])
async def test_others_have_their_turns(guarded: bool) -> None:
    body = vectors(2000, usage={"prompt_tokens": 7, "total_tokens": 7})

    async def read() -> list[float]:
        _, taken = await answered(World(response=[deny(mask=False)] if guarded else []), body)
        assert len(taken) > len(body) >> 19
        return taken

    await once(lambda taken: max(taken) < max(0.06, 0.3 * sum(taken)), read)
