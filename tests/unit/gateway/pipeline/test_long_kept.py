"""Long streams that are read once they are whole are read in turns of the loop. With no time for a slice, each step is a turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.core import slices
from gateway.core.approvals import Held, Taken
from gateway.core.types import InferenceRequest
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.taps import Room, Seen
from gateway.wire import table
from gateway.wire.sse import PORTION
from tests.unit.gateway.pipeline.test_approvals import Desk, asked, world
from tests.unit.gateway.pipeline.test_inspect import Scripted, deny
from tests.unit.gateway.pipeline.test_tools import call, guard, piece
from tests.unit.gateway.pipeline.world import CHAT, DONE, SSE_HEAD, STREAM_BODY, Client, World, chunk

HELD = Held("apr-1", "delete_file", "a" * 64, 1_800_000_000.0)
EVENTS = 1000
LONG = b"".join([chunk(f"word {number} ") for number in range(EVENTS)]) + piece(call("delete_file")) + chunk(finish="tool_calls") + DONE
WHOLE = "".join([f"word {number} " for number in range(EVENTS)])


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE", 0.0)


async def turns(client: Client) -> int:
    """Turns of the loop until the client has its answer."""
    taken = 0
    while not client.ends:
        taken += 1
        await asyncio.sleep(0)
    return taken


def approved() -> Desk:
    return Desk(*[Taken(state=state, held=HELD, form="stream", body=LONG, model="m") for state in ("approved", "taken")])


async def test_the_calls_of_a_kept_stream() -> None:
    client = asked(world(approved()), stream=True, approval="apr-1")
    assert EVENTS < await turns(client) < EVENTS + 20 and client.body == LONG


async def test_a_kept_stream_that_becomes_a_whole_answer() -> None:
    client = asked(world(approved()), approval="apr-1")
    assert await turns(client) >= EVENTS + EVENTS // 64 and json.loads(client.body)["choices"][0]["message"]["content"] == WHOLE


async def test_a_kept_stream_that_guardrails_read() -> None:
    client = asked(world(approved(), response=[deny(mask=False)]), stream=True, approval="apr-1")
    assert 3 * EVENTS + len(LONG) // PORTION <= await turns(client) and client.body == LONG


async def test_a_kept_stream_that_cannot_be_put_in_the_other_form_is_not_used_up() -> None:
    desk = approved()
    desk.states = [Taken(state=one.state, held=HELD, form="stream", body=b"data: {]\n\n" + LONG, model="m") for one in desk.states]
    client = asked(world(desk), approval="apr-1")
    await turns(client)
    assert client.status == 502 and [one.look for one in desk.takes] == [True]


async def test_the_calls_of_a_stream_that_guardrails_have_held() -> None:
    class Holding(Scripted):
        name, holds = "texts", True

    made = World(response=[Guarded(Holding(), False, lambda *event: None)], response_tools=[guard()])
    _, client = made.start(STREAM_BODY)
    said = LONG.replace(b"delete_file", b"read_file")
    made.call.head(SSE_HEAD).body(said).end()
    assert await turns(client) > 2 * EVENTS and b"read_file" in client.body


@pytest.mark.parametrize("texts", [False, True])
def test_an_answer_to_compare(texts: bool) -> None:
    seen, request = Seen(Room(1 << 20), 1 << 20), parsed(STREAM_BODY)
    seen.head = SSE_HEAD
    seen.came(LONG)
    steps, taken = seen.read(request, texts), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Any = done.value
            break
        taken += 1
    assert taken >= len(LONG) // PORTION + (EVENTS // 64 if texts else 0)
    assert found[1:] == ("tool_calls", [], False)


def parsed(body: bytes) -> InferenceRequest:
    return table.parse(CHAT, body, {})
