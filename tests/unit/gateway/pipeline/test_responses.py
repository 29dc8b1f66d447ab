"""Policies on the Responses API, passed and translated, whole and streamed: none is avoided by asking through it. The guardrails are those
of the table of all other APIs (test_guardrail_table).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.approvals import Taken
from gateway.core.plugins import Context
from gateway.core.types import ResponseHead
from gateway.pipeline.guarded import Guarded
from policies.guardrails.injection import guardrail as injection
from tests.unit.gateway.pipeline.test_approvals import HELD, RULES, Desk
from tests.unit.gateway.pipeline.test_guardrail_table import ANSWERS, MAKES, OVERRIDE, STREAMS, guarded, leaks, nested, texts_in
from tests.unit.gateway.pipeline.test_tools import call, guard, piece, whole
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk
from tests.unit.gateway.wire.responses.test_api import begun, numbered, response, said, stream

PATH = b"/v1/responses"
NATIVE = [True, False]
FORMS = [(native, streamed) for native in NATIVE for streamed in (True, False)]
ARGUMENTS = '{"path":"/etc"}'
NO_DELETIONS = {"tool": "delete_*", "of": ["definition", "result", "call"], "action": "block"}
ANY = {"tool": "*", "of": ["definition", "result", "call"], "action": "allow"}


def made(native: bool, desk: Desk | None = None, **parts: Any) -> World:
    world = World(**parts)
    world.plane.approvals = desk
    world.route.apis = ("responses",) if native else ()
    return world


def ask(world: World, streamed: bool = False, approval: str = "", **more: Any) -> Client:
    headers = {b"x-gatehouse-approval": approval.encode()} if approval else {}
    body = {"model": "m", "input": "hi", "store": False, **({"stream": True} if streamed else {}), **more}
    return world.start(json.dumps(body).encode(), path=PATH, headers=headers)[1]


def item(**more: Any) -> dict[str, Any]:
    return {"input": [more, {"role": "user", "content": "hi"}]}


def part(**more: Any) -> dict[str, Any]:
    return item(role="user", content=[more])


REQUESTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda text: {"input": text},
    "instructions": lambda text: {"instructions": text},
    "message": lambda text: item(role="user", content=text),
    "developer": lambda text: item(type="message", role="developer", content=text),
    "assistant": lambda text: item(role="assistant", content=[{"type": "output_text", "text": text, "annotations": []}]),
    "part": lambda text: part(type="input_text", text=text),
    "file name": lambda text: part(type="input_file", filename=text, file_data="data:application/pdf;base64,AAAA"),
    "arguments": lambda text: item(type="function_call", call_id="c", name="f", arguments=json.dumps({"a": text})),
    "JSON in JSON": lambda text: item(type="function_call", call_id="c", name="f", arguments=nested(text)),
    "result": lambda text: item(type="function_call_output", call_id="c", output=text),
    "result in parts": lambda text: item(type="function_call_output", call_id="c", output=[{"type": "input_text", "text": text}]),
    "custom call": lambda text: item(type="custom_tool_call", call_id="c", name="f", input=text),
    "custom result": lambda text: item(type="custom_tool_call_output", call_id="c", output=text),
    "thought": lambda text: item(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": text}]),
    "summary": lambda text: item(type="reasoning", summary=[{"type": "summary_text", "text": text}]),
    "no base64": lambda text: item(type="reasoning", summary=[], encrypted_content=text),
    "description": lambda text: {"tools": [{"type": "function", "name": "f", "description": text, "parameters": {"type": "object"}}]},
    "schema": lambda text: {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"description": text}}}},
}
PASSED: dict[str, Callable[[str], dict[str, Any]]] = {
    "shell": lambda text: item(type="local_shell_call", call_id="c", action={"type": "exec", "command": ["echo", text], "env": {}}),
    "shell result": lambda text: item(type="shell_call_output", call_id="c", output=[{"stdout": text, "stderr": ""}]),
    "patch": lambda text: item(type="apply_patch_call", call_id="c", operation={"type": "create_file", "path": "p", "diff": text}),
    "search": lambda text: item(type="web_search_call", id="w", action={"type": "search", "query": text}),
    "name of a key": lambda text: item(type="local_shell_call", call_id="c", action={"type": "exec", "command": [], "env": {text: "x"}}),
    "metadata": lambda text: {"metadata": {"note": text}},
    "include": lambda text: {"include": [text]},
    "compaction": lambda text: {"context_management": [{"type": "compaction", "instructions": text}]},
}
"""What only engines that speak the API get."""
ASKED = [(shape, True) for shape in (*REQUESTS, *PASSED)] + [(shape, False) for shape in REQUESTS]


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize(("shape", "native"), ASKED)
def test_no_part_of_an_entity_reaches_an_engine(kind: str, shape: str, native: bool) -> None:
    value = MAKES[kind][1]
    world = made(native, request=[guarded(kind)])
    client = ask(world, **(REQUESTS | PASSED)[shape](f"before {value} behind"))
    if world.engine.calls:
        sent = world.call.request_body.decode("utf-8", "replace")
        assert not leaks(sent, value), sent
        assert shape in ("summary", "no base64", "thought") or ("before" in sent and "behind" in sent)
    else:
        assert client.status == 400 and json.loads(client.body)["error"]["type"] == "guardrail_violation"
    assert not leaks(bytes(client.written).decode("latin-1"), value)


@pytest.mark.parametrize(("shape", "native"), ASKED)
def test_an_injection_reaches_no_engine(shape: str, native: bool) -> None:
    guardrail = injection.build(injection.InjectionSettings(sources=injection.SOURCES), Context(name="g"))
    world = made(native, request=[Guarded(guardrail, False, lambda *event: None)])
    client = ask(world, **(REQUESTS | PASSED)[shape](OVERRIDE))
    assert client.status == 400 and not world.engine.calls


@pytest.mark.parametrize("kind", MAKES)
def test_an_entity_in_two_parts_of_a_message_is_split_at_every_place(kind: str) -> None:
    value = MAKES[kind][1]
    for cut in range(1, len(value)):
        halves = [{"type": "input_text", "text": f"before {value[:cut]}"}, {"type": "input_text", "text": f"{value[cut:]} behind"}]
        world = made(True, request=[guarded(kind)])
        client = ask(world, input=[{"role": "user", "content": halves}])
        if world.engine.calls:
            sent = json.loads(world.call.request_body)["input"][0]["content"]
            assert not leaks("".join(one["text"] for one in sent), value), (cut, sent)
        else:
            assert client.status == 400


# --- whole answers


WHOLE: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda text: response(said(text)),
    "refusal": lambda text: response(said(content=[{"type": "refusal", "refusal": text}])),
    "annotation": lambda text: response(
        said(content=[{"type": "output_text", "text": "ok", "annotations": [{"type": "url_citation", "title": text, "url": "u"}]}])
    ),
    "scores": lambda text: response(
        said(content=[{"type": "output_text", "text": "ok", "annotations": [], "logprobs": [{"token": text}]}])
    ),
    "thought": lambda text: response(
        {"id": "r", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    ),
    "summary": lambda text: response({"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}),
    "no base64": lambda text: response({"id": "r", "type": "reasoning", "summary": [], "encrypted_content": text}),
    "arguments": lambda text: response({"id": "f", "type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps([text])}),
    "JSON in JSON": lambda text: response({"id": "f", "type": "function_call", "call_id": "c", "name": "f", "arguments": nested(text)}),
    "input": lambda text: response({"id": "f", "type": "custom_tool_call", "call_id": "c", "name": "f", "input": text}),
    "shell": lambda text: response({"id": "f", "type": "local_shell_call", "call_id": "c", "action": {"command": ["echo", text]}}),
    "unknown item": lambda text: response({"type": "novel", "deep": [{"x": text}]}),
    "around the items": lambda text: response(
        said(), instructions=text, tools=[{"name": text}], error={"message": text}, usage={"tier": text}
    ),
    "novel field": lambda text: response(said(), secret_thoughts=[text]),
}


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("shape", WHOLE)
def test_no_part_of_an_entity_in_a_whole_answer_reaches_the_client(kind: str, shape: str) -> None:
    value = MAKES[kind][1]
    world = made(True, response=[guarded(kind)])
    client = ask(world)
    world.call.answer(json.dumps(WHOLE[shape](f"before {value} behind")).encode(), JSON_HEAD)
    assert client.ends and not leaks(bytes(client.written).decode("latin-1"), value), client.written


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("shape", ["content", "parts", "reasoning", "tool arguments", "JSON in JSON", "unknown field"])
def test_no_part_of_an_entity_in_a_translated_answer_reaches_the_client(kind: str, shape: str) -> None:
    value = MAKES[kind][1]
    world = made(False, response=[guarded(kind)])
    client = ask(world)
    _, answer, headers = ANSWERS[f"chat, {shape}"](f"before {value} behind")
    world.call.answer(answer, ResponseHead(200, [*JSON_HEAD.headers, *headers.items()]))
    assert client.ends and not leaks(bytes(client.written).decode("latin-1"), value), client.written


# --- streams


def of_text(pieces: tuple[str, ...]) -> bytes:
    return stream(*pieces)


def of_item(kind: str, name: str, opened: dict[str, Any], field: str) -> Callable[[tuple[str, ...]], bytes]:
    """The events of one item whose text comes in pieces."""

    def events(pieces: tuple[str, ...]) -> bytes:
        text = "".join(pieces)
        where = {"item_id": "i", "output_index": 0}
        ended = {**opened, field: text}
        return numbered(
            *begun(),
            {"type": "response.output_item.added", "output_index": 0, "item": {**opened, field: ""}},
            *({"type": f"{name}.delta", **where, "delta": one} for one in pieces),
            {"type": f"{name}.done", **where, field: text},
            {"type": "response.output_item.done", "output_index": 0, "item": ended},
            {"type": "response.completed", "response": response(ended)},
        )

    return events


def of_thought(pieces: tuple[str, ...]) -> bytes:
    text = "".join(pieces)
    where = {"item_id": "i", "output_index": 0, "content_index": 0}
    opened: dict[str, Any] = {"id": "i", "type": "reasoning", "summary": []}
    ended = {**opened, "content": [{"type": "reasoning_text", "text": text}]}
    return numbered(
        *begun(),
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        *({"type": "response.reasoning_text.delta", **where, "delta": one} for one in pieces),
        {"type": "response.reasoning_text.done", **where, "text": text},
        {"type": "response.output_item.done", "output_index": 0, "item": ended},
        {"type": "response.completed", "response": response(ended)},
    )


CALL = {"id": "i", "type": "function_call", "call_id": "c", "name": "f"}
CUSTOM = {"id": "i", "type": "custom_tool_call", "call_id": "c", "name": "f"}
WRITTEN: dict[str, tuple[Callable[[tuple[str, ...]], bytes], Callable[[str], str]]] = {
    "text": (of_text, str),
    "thought": (of_thought, str),
    "arguments": (of_item("function_call", "response.function_call_arguments", CALL, "arguments"), lambda text: json.dumps({"a": text})),
    "JSON in JSON": (of_item("function_call", "response.function_call_arguments", CALL, "arguments"), nested),
    "input": (of_item("custom_tool_call", "response.custom_tool_call_input", CUSTOM, "input"), str),
}


def shown(body: bytes) -> str:
    """A body without the name of its last event, which has a part of many an address."""
    return body.decode().replace("response.completed", "")


def put_together(body: bytes) -> str:
    """The pieces of a stream one behind the other, then all that its other events say."""
    documents = [json.loads(one.partition(b"data: ")[2]) for one in body.split(b"\n\n") if one.find(b"data: {") >= 0]
    pieces = "".join(one["delta"] for one in documents if isinstance(one.get("delta"), str))
    return "\n".join([pieces, *(text for one in documents if "delta" not in one for text in texts_in(one))]).replace(
        "response.completed", ""
    )


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("shape", WRITTEN)
def test_an_entity_that_is_split_at_any_place_of_a_stream_never_reaches_the_client_in_part(kind: str, shape: str) -> None:
    value = MAKES[kind][1]
    events, written = WRITTEN[shape]
    text = written(f"so {value} it is")
    start = text.index(value.split("/")[0].split(" ")[0])
    for cut in range(start, len(text)):
        world = made(True, response=[guarded(kind)])
        client = ask(world, True)
        engine = world.call.head(SSE_HEAD)
        for event in events((text[:cut], text[cut : cut + 1], text[cut + 1 :])).split(b"\n\n")[:-1]:
            engine.body(event + b"\n\n")
            assert not leaks(put_together(client.body), value), (cut, client.body)
        engine.end()
        assert client.complete and not leaks(shown(client.body), value), (cut, client.body)
        found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
        assert [one["sequence_number"] for one in found] == list(range(len(found))) and found[-1]["type"] == "response.completed"
        pieces = "".join(one["delta"] for one in found if "delta" in one)
        assert pieces in texts_in(found[-1]["response"]["output"]), "the end says what the pieces said"


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("shape", ["content", "reasoning", "tool-call deltas", "JSON in JSON"])
def test_the_same_in_a_translated_stream(kind: str, shape: str) -> None:
    value = MAKES[kind][1]
    opening, event, written = STREAMS[f"chat, {shape}"]
    text = written(f"so {value} it is")
    start = text.index(value.split("/")[0].split(" ")[0])
    for cut in range(start, len(text)):
        world = made(False, response=[guarded(kind)])
        client = ask(world, True)
        engine = world.call.head(SSE_HEAD)
        for data in (opening, event(text[:cut]), event(text[cut : cut + 1]), event(text[cut + 1 :]), chunk(finish="stop"), USAGE, DONE):
            if data:
                engine.body(data)
            assert not leaks(put_together(client.body), value), (cut, client.body)
        engine.end()
        assert client.complete and not leaks(shown(client.body), value), (cut, client.body)
        assert b"response.completed" in client.body


DECEIT: dict[str, bytes] = {
    "another end": stream("fine", again="fine, and secret"),
    "another item": numbered(*begun(), {"type": "response.completed", "response": response(said("secret"))}),
    "an unknown event": numbered(*begun(), {"type": "response.telepathy.delta", "output_index": 0, "item_id": "i", "delta": "secret"}),
    "an item that was not announced": numbered(
        *begun(), {"type": "response.output_text.delta", "output_index": 3, "item_id": "i", "content_index": 0, "delta": "secret"}
    ),
    "a text under another name": numbered(
        *begun(),
        {"type": "response.output_item.added", "output_index": 0, "item": said(content=[])},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "the secret", "content_index": 0, "delta": "x"},
    ),
    "no response at all": b'event: response.completed\ndata: {"type":"response.completed","secret":1}\n\n',
}


@pytest.mark.parametrize("shape", DECEIT)
def test_a_stream_that_says_something_else_at_its_end_is_broken(shape: str) -> None:
    world = made(True, response=[guarded("denylist")])
    client = ask(world, True)
    world.call.head(SSE_HEAD).body(DECEIT[shape]).end()
    assert b"secret" not in client.body and b"response.failed" in client.body and world.outcome.outcome == "failed"


@pytest.mark.parametrize("native", NATIVE)
def test_a_guardrail_that_reads_whole_texts_holds_the_stream(native: bool) -> None:
    guardrail = Guarded(MAKES["denylist"][0], False, lambda *event: None)
    guardrail.holds = True
    world = made(native, response=[guardrail])
    client = ask(world, True)
    engine = world.call.head(SSE_HEAD)
    if native:
        engine.body(stream("so vermilion ", "falcon it is"))
    else:
        for data in (chunk("so vermilion "), chunk("falcon it is"), chunk(finish="stop"), USAGE, DONE):
            engine.body(data)
    engine.end()
    found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
    assert not leaks(shown(client.body), "Vermilion  Falcon") and found[-1]["type"] == "response.completed"
    texts = [one["text"] for one in found if one["type"] == "response.output_text.done"]
    assert texts and texts[0] == "".join(one["delta"] for one in found if one["type"].endswith(".delta"))


@pytest.mark.parametrize("end", [b"", b": bye\n", DONE.rstrip(), DONE[:-1]], ids=["nothing", "comment", "no line end", "no empty line"])
@pytest.mark.parametrize("holds", [False, True])
def test_an_engine_that_says_why_it_stopped_may_leave_out_the_end_marker(holds: bool, end: bytes) -> None:
    guardrail = Guarded(MAKES["denylist"][0], False, lambda *event: None)
    guardrail.holds = holds
    world = made(False, response=[guardrail])
    client = ask(world, True)
    engine = world.call.head(SSE_HEAD)
    for data in (chunk("so vermilion "), chunk("falcon it is"), chunk(finish="stop"), USAGE, end):
        engine.body(data)
    engine.end()
    found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
    assert not leaks(shown(client.body), "Vermilion  Falcon") and found[-1]["type"] == "response.completed"
    assert world.outcome.outcome == "ok" and world.outcome.completion_tokens == 3


async def test_an_end_that_is_inspected_in_turns_need_not_be_marked_either() -> None:
    """The last events repeat the whole answer."""
    world = made(False, response=[guarded("denylist")])
    client = ask(world, True)
    engine = world.call.head(SSE_HEAD)
    for _ in range(40):
        engine.body(chunk("nothing to see here " * 40))
    engine.body(chunk(finish="stop"))
    engine.end()
    while not world.audit.outcomes:
        await asyncio.sleep(0)
    assert world.outcome.outcome == "ok" and client.body.count(b"event: response.completed\n") == 1


# --- tools


def answer(world: World, native: bool, streamed: bool, name: str) -> None:
    """The engine says `well ` and calls a tool, in whatever it speaks."""
    called = {"id": "i", "type": "function_call", "call_id": "c", "name": name, "arguments": ARGUMENTS, "status": "completed"}
    if not streamed:
        of_chat = whole(call(name, ARGUMENTS), content="well ")
        world.call.answer(json.dumps(response(said("well "), called)).encode() if native else of_chat, JSON_HEAD)
        return
    engine = world.call.head(SSE_HEAD)
    if native:
        where = {"item_id": "i", "output_index": 1}
        text = stream("well ").rpartition(b"event: response.completed")[0]
        events = [json.loads(one.partition(b"data: ")[2]) for one in text.split(b"\n\n")[:-1]]
        events += [
            {"type": "response.output_item.added", "output_index": 1, "item": {**called, "arguments": ""}},
            *({"type": "response.function_call_arguments.delta", **where, "delta": one} for one in (ARGUMENTS[:5], ARGUMENTS[5:])),
            {"type": "response.function_call_arguments.done", **where, "name": name, "arguments": ARGUMENTS},
            {"type": "response.output_item.done", "output_index": 1, "item": called},
            {"type": "response.completed", "response": response(said("well "), called)},
        ]
        for event in numbered(*events).split(b"\n\n")[:-1]:
            engine.body(event + b"\n\n")
    else:
        pieces = (chunk("well "), piece(call(name, ARGUMENTS[:5])), piece({"index": 0, "function": {"arguments": ARGUMENTS[5:]}}))
        for data in (*pieces, chunk(finish="tool_calls"), USAGE, DONE):
            engine.body(data)
    engine.end()


def error(client: Client) -> dict[str, Any]:
    """The error of a whole answer, or of a stream's last event."""
    if not client.body.startswith(b"event: "):
        return json.loads(client.body)["error"]  # type: ignore[no-any-return]
    last = json.loads(client.body.rstrip().rpartition(b"data: ")[2])
    assert last["type"] == "response.failed"
    return last["response"]["error"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("native", "streamed"), FORMS)
def test_a_call_that_is_not_allowed_never_leaves(native: bool, streamed: bool) -> None:
    world = made(native, response_tools=[guard()])
    client = ask(world, streamed)
    answer(world, native, streamed, "delete_file")
    assert error(client)["code"] == "tools" and b"/etc" not in client.body and b"delete_file" in client.body
    assert (b"well " in client.body) is streamed and b"function_call" not in client.body
    assert world.outcome.guardrail == "tools" and world.outcome.detail is not None


@pytest.mark.parametrize(("native", "streamed"), FORMS)
def test_a_call_that_is_allowed_passes_whole(native: bool, streamed: bool) -> None:
    world = made(native, response_tools=[guard()])
    client = ask(world, streamed)
    answer(world, native, streamed, "read_file")
    if streamed:
        found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
        assert [one["sequence_number"] for one in found] == list(range(len(found)))
        assert "".join(one["delta"] for one in found if "arguments.delta" in one["type"]) == ARGUMENTS
        output = found[-1]["response"]["output"]
    else:
        output = json.loads(client.body)["output"]
    assert output[-1]["name"] == "read_file" and output[-1]["arguments"] == ARGUMENTS


OTHER_CALLS: dict[str, dict[str, Any]] = {
    "local_shell": {"type": "local_shell_call", "call_id": "c", "action": {"command": ["rm"]}},
    "shell": {"type": "shell_call", "call_id": "c", "action": {"commands": ["rm"]}},
    "apply_patch": {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "x"}},
    "computer": {"type": "computer_call", "call_id": "c", "action": {"type": "click"}},
    "code_interpreter": {"type": "code_interpreter_call", "id": "c", "code": "rm()", "container_id": "x"},
    "web_search": {"type": "web_search_call", "id": "w", "action": {"query": "x"}},
    "delete_it": {"type": "mcp_approval_request", "id": "m", "name": "delete_it", "arguments": "{}"},
    "novel": {"type": "novel_call", "id": "n"},
    "Function_Call": {"type": "Function_Call", "call_id": "c", "name": "Function_Call", "arguments": "{}"},
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", OTHER_CALLS)
def test_every_kind_of_item_that_calls_something_is_judged(name: str, streamed: bool) -> None:
    rules = guard({"tool": name, "action": "block"}, ANY)
    world = made(True, response_tools=[rules])
    client = ask(world, streamed)
    one = {"id": "i", **OTHER_CALLS[name]}
    if streamed:
        added = {"type": "response.output_item.added", "output_index": 0, "item": one}
        done = {"type": "response.output_item.done", "output_index": 0, "item": one}
        events = numbered(*begun(), added, done, {"type": "response.completed", "response": response(one)})
        world.call.head(SSE_HEAD).body(events).end()
    else:
        world.call.answer(json.dumps(response(one)).encode(), JSON_HEAD)
    assert error(client)["code"] == "tools", client.body


@pytest.mark.parametrize("again", ["name", "arguments", "end"])
def test_a_call_that_is_said_in_two_ways_is_refused(again: str) -> None:
    world = made(True, response_tools=[guard(NO_DELETIONS, ANY)])
    client = ask(world, True)
    opened = {"id": "i", "type": "function_call", "call_id": "c", "name": "read_file", "arguments": ""}
    ended = {**opened, "arguments": "{}"}
    other = {**ended, "name": "delete_file"} if again == "name" else {**ended, "arguments": '{"x":1}'} if again == "arguments" else ended
    last = {**ended, "name": "delete_file"} if again == "end" else other
    events = numbered(
        *begun(),
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.function_call_arguments.delta", "item_id": "i", "output_index": 0, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 0, "item": other},
        {"type": "response.completed", "response": response(last)},
    )
    world.call.head(SSE_HEAD).body(events).end()
    assert b"response.failed" in client.body and b"read_file" not in client.body.partition(b"event: error")[0]


@pytest.mark.parametrize("native", NATIVE)
def test_tools_and_results_of_a_request_are_judged(native: bool) -> None:
    world = made(native, request_tools=[guard(NO_DELETIONS, ANY)])
    client = ask(world, tools=[{"type": "function", "name": "delete_file", "parameters": {}}])
    assert client.status == 400 and not world.engine.calls
    world = made(native, request_tools=[guard(NO_DELETIONS, ANY)])
    called = {"type": "function_call", "call_id": "c", "name": "delete_file", "arguments": "{}"}
    client = ask(world, input=[called, {"type": "function_call_output", "call_id": "c", "output": "done"}])
    assert client.status == 400 and not world.engine.calls


@pytest.mark.parametrize(("native", "streamed"), FORMS)
@pytest.mark.parametrize("wanted", [True, False])
def test_a_held_answer_is_given_to_the_retry_in_the_form_that_it_asks_for(native: bool, streamed: bool, wanted: bool) -> None:
    desk = Desk()
    world = made(native, desk, response_tools=[guard(*RULES)])
    client = ask(world, streamed)
    answer(world, native, streamed, "delete_file")
    assert error(client)["code"] == "approval_pending"
    (asked,) = desk.holds
    taken = Taken(state="approved", form=asked.form, body=asked.body, hashes=tuple(use.sha256 for use in asked.uses))
    again = made(native, Desk(taken, taken), response_tools=[guard(*RULES)])
    client = ask(again, wanted, approval=HELD.id)
    assert not again.engine.calls and client.status == 200
    if wanted:
        found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
        assert [one["sequence_number"] for one in found] == list(range(len(found)))
        output = found[-1]["response"]["output"]
    else:
        output = json.loads(client.body)["output"]
    assert (output[-1]["name"], output[-1]["arguments"]) == ("delete_file", ARGUMENTS)
