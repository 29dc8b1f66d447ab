"""Large bodies are parsed in turns of the loop."""

from __future__ import annotations

import asyncio
import json

from gateway.wire import table
from tests.unit.gateway.pipeline.world import World

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a text: x " * 200_000}]}).encode()


def stepped() -> World:
    world = World()
    world.snapshot.parse_steps = table.parse_steps
    return world


async def test_others_have_their_turns_while_a_large_body_is_parsed() -> None:
    world = stepped()
    _, client = world.start(BODY)
    turns = 0
    while not world.engine.calls:
        assert not client.head
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert json.loads(world.call.request_body) == json.loads(BODY)
    world.call.answer()
    assert client.status == 200


async def test_what_is_wrong_with_a_large_body_is_a_refusal() -> None:
    world = stepped()
    _, client = world.start(BODY[:-1])
    while not client.head:
        await asyncio.sleep(0)
    assert client.status == 400 and not world.engine.calls


async def test_a_client_that_leaves_ends_the_parsing() -> None:
    world = stepped()
    exchange, _ = world.start(BODY)
    exchange.client_gone()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not world.engine.calls and world.outcome.outcome == "cancelled"
