"""Policies on tools in Anthropic's messages, passed and translated, whole and streamed: none is avoided by asking through the other API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.approvals import Taken
from gateway.core.types import ResponseHead
from tests.unit.gateway.pipeline.test_approvals import HELD, RULES, Desk
from tests.unit.gateway.pipeline.test_guardrail_table import END_OF_MESSAGE, MESSAGES, began, message, of_message, piece_of, said, user
from tests.unit.gateway.pipeline.test_tools import call, guard, piece, whole
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk

FORMS = [(native, stream) for native in (True, False) for stream in (True, False)]
ARGUMENTS = '{"path":"/etc"}'


def made(native: bool, desk: Desk | None = None, **parts: Any) -> World:
    world = World(**parts)
    world.plane.approvals = desk
    world.route.apis = ("messages",) if native else ()
    return world


def ask(world: World, stream: bool, approval: str = "", **more: Any) -> Client:
    headers = {b"x-gatehouse-approval": approval.encode()} if approval else {}
    _, client = world.start(message(user("hi"), **({"stream": True} if stream else {}), **more), path=MESSAGES, headers=headers)
    return client


def answer(world: World, native: bool, stream: bool, name: str) -> None:
    """The engine says `well ` and calls a tool, in whatever it speaks."""
    called = {"type": "tool_use", "id": "t", "name": name, "input": json.loads(ARGUMENTS)}
    if not stream:
        of_chat = whole(call(name, ARGUMENTS), content="well ")
        world.call.answer(said({"type": "text", "text": "well "}, called) if native else of_chat, JSON_HEAD)
        return
    engine = world.call.head(SSE_HEAD)
    if native:
        start = of_message("content_block_start", index=1, content_block={**called, "input": {}})
        stop = of_message("content_block_stop", index=0)
        for data in (began(type="text", text=""), piece_of("text_delta", "text")("well "), stop, start):
            engine.body(data)
        for at in range(0, len(ARGUMENTS), 3):
            engine.body(
                of_message("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": ARGUMENTS[at : at + 3]})
            )
        engine.body(of_message("content_block_stop", index=1) + END_OF_MESSAGE.partition(b"\n\n")[2])
    else:
        pieces = (chunk("well "), piece(call(name, ARGUMENTS[:5])), piece({"index": 0, "function": {"arguments": ARGUMENTS[5:]}}))
        for data in (*pieces, chunk(finish="tool_calls"), USAGE, DONE):
            engine.body(data)
    engine.end()


def error(client: Client) -> dict[str, Any]:
    """The error of a whole answer, or of a stream's last event."""
    last = client.body.rstrip().rpartition(b"data: ")[2] if client.body.startswith(b"event: ") else client.body
    found: dict[str, Any] = json.loads(last)["error"]
    return found


@pytest.mark.parametrize(("native", "stream"), FORMS)
def test_a_call_that_is_not_allowed_never_leaves(native: bool, stream: bool) -> None:
    world = made(native, response_tools=[guard()])
    client = ask(world, stream)
    answer(world, native, stream, "delete_file")
    assert error(client)["code"] == "tools" and b"/etc" not in client.body and b"delete_file" in client.body
    assert (b"well " in client.body) is stream and b"tool_use" not in client.body
    assert world.outcome.guardrail == "tools" and world.outcome.detail is not None


@pytest.mark.parametrize(("native", "stream"), FORMS)
def test_a_call_that_is_allowed_passes_whole(native: bool, stream: bool) -> None:
    world = made(native, response_tools=[guard()])
    client = ask(world, stream)
    answer(world, native, stream, "read_file")
    documents = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]] if stream else []
    given = "".join(document.get("delta", {}).get("partial_json", "") for document in documents)
    found = json.loads(given) if stream else json.loads(client.body)["content"][1]["input"]
    assert found == json.loads(ARGUMENTS)


@pytest.mark.parametrize(("native", "stream"), FORMS)
def test_a_call_is_held_and_given_to_the_retry_in_either_form(native: bool, stream: bool) -> None:
    desk = Desk()
    world = made(native, desk, response_tools=[guard(*RULES)])
    client = ask(world, stream)
    answer(world, native, stream, "delete_file")
    found = error(client)
    assert found["code"] == "approval_pending" and found["approval"]["id"] == HELD.id and b"/etc" not in client.body
    (wanted,) = desk.holds
    assert [(use.tool, json.loads(use.arguments), use.action) for use in wanted.uses] == [("delete_file", json.loads(ARGUMENTS), "hold")]
    for again in (True, False):
        kept = Taken(state="approved", form=wanted.form, body=wanted.body, hashes=tuple(use.sha256 for use in wanted.uses))
        world.plane.approvals = Desk(kept, kept)
        retried = ask(world, again, approval=HELD.id)
        assert retried.status == 200 and b"delete_file" in retried.body and b"tool_use" in retried.body
        assert retried.body.startswith(b"event: message_start") is again
    assert len(world.engine.calls) == 1, "no engine is asked again"


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("what", ["definition", "result"])
def test_what_a_request_offers_and_brings_is_judged(native: bool, what: str) -> None:
    world = made(native, request_tools=[guard({"tool": "delete_*", "of": ["definition", "result"], "action": "block"})])
    if what == "definition":
        client = ask(world, False, tools=[{"name": "delete_file", "input_schema": {"type": "object"}}])
    else:
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "delete_file", "input": {}}]}
        brought = user([{"type": "tool_result", "tool_use_id": "t", "content": "gone"}])
        _, client = world.start(message(user("hi"), called, brought), path=MESSAGES)
    assert client.status == 400 and error(client)["code"] == "tools" and not world.engine.calls


@pytest.mark.parametrize("path", [MESSAGES, b"/v1/messages/count_tokens"])
def test_halts_bounds_and_clients_that_leave_count_the_same(path: bytes) -> None:
    world = made(False, max_tokens=5)
    body = json.loads(message(user("hi")))
    if path != MESSAGES:
        del body["max_tokens"]
    exchange, client = world.start(json.dumps(body).encode(), path=path)
    if path == MESSAGES:
        assert client.status == 400 and error(client)["param"] == "max_tokens" and not world.engine.calls
        return
    exchange.client_gone()
    assert world.call.cancelled and world.outcome.outcome == "cancelled"
    assert len(world.limiter.reservations[0].settled) == 1


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("path", [b"/v1/messages/count_tokens", b"/v1/responses/input_tokens", b"/v1/chat/completions/input_tokens"])
def test_an_engine_that_cannot_count_is_no_failure(path: bytes, status: int, native: bool) -> None:
    world = made(native)
    body = {"model": "m", "input": "hi"} if b"responses" in path else {"model": "m", "messages": [user("hi")]}
    _, client = world.start(json.dumps(body).encode(), path=path)
    world.call.answer(b'{"detail":"Not Found"}', ResponseHead(status, []))
    found = error(client)
    assert client.status == 400 and found["type"] == "invalid_request_error" and len(world.engine.calls) == 1
    assert (found["code"], found["message"]) == ("unsupported_operation", "The engine of this model cannot count tokens.")
    assert set(world.route.attempts[0].results) == {"neutral"}  # the first one counts
