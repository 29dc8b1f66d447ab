"""Responses through the whole pipeline, passed to an engine that speaks them and translated for one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError, EngineTimeout
from gateway.core.types import ResponseHead
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk

PATH = b"/v1/responses"
HI: dict[str, Any] = {"model": "m", "input": "hi", "store": False}
COUNTS = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
}
WHERE = {"item_id": "msg_1", "output_index": 0}


def said(text: str = "hello", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part], **more}


def response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": COUNTS,
        **more,
    }


def world(native: bool, **more: Any) -> World:
    made = World(**more)
    made.route.apis = ("responses",) if native else ()
    return made


def ask(made: World, body: dict[str, Any] | bytes = HI) -> Client:
    _, client = made.start(body if isinstance(body, bytes) else json.dumps(body).encode(), path=PATH)
    return client


def chat(content: str | None = "hello", finish: str = "stop", **more: Any) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": usage}).encode()


def events(client: Client) -> list[dict[str, Any]]:
    """The events, whose names and numbers must be right."""
    found: list[dict[str, Any]] = []
    for event in client.body.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        document = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + document["type"].encode()
        assert document["sequence_number"] == len(found), document
        found.append(document)
    return found


def numbered(*documents: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps({**one, "sequence_number": number}).encode())
        for number, one in enumerate(documents)
    )


def begun() -> list[dict[str, Any]]:
    opened = response(status="in_progress", usage=None)
    return [{"type": "response.created", "response": opened}, {"type": "response.in_progress", "response": opened}]


def spoken(*texts: str, again: str | None = None) -> list[dict[str, Any]]:
    """The events of one message. again: what its end repeats, if not the texts."""
    whole = "".join(texts) if again is None else again
    part = {"type": "output_text", "text": "", "annotations": []}
    where = {**WHERE, "content_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": said(status="in_progress", content=[])},
        {"type": "response.content_part.added", **where, "part": part},
        *({"type": "response.output_text.delta", **where, "delta": text, "logprobs": []} for text in texts),
        {"type": "response.output_text.done", **where, "text": whole, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": {**part, "text": whole}},
        {"type": "response.output_item.done", "output_index": 0, "item": said(whole)},
    ]


def stream(*texts: str, again: str | None = None) -> bytes:
    whole = "".join(texts) if again is None else again
    return numbered(*begun(), *spoken(*texts, again=again), {"type": "response.completed", "response": response(said(whole))})


@pytest.mark.parametrize("native", [True, False])
def test_a_whole_answer_is_a_response_with_its_usage(native: bool) -> None:
    made = world(native)
    client = ask(made)
    made.call.answer(json.dumps(response(said())).encode() if native else chat())
    found = json.loads(client.body)
    assert client.status == 200 and found["object"] == "response" and found["status"] == "completed"
    assert [part["text"] for part in found["output"][0]["content"]] == ["hello"]
    assert found["usage"]["input_tokens"] == 7 and found["usage"]["input_tokens_details"]["cached_tokens"] == 2
    outcome, intent = made.outcome, made.audit.intents[0]
    assert (outcome.operation, outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens) == ("chat", 7, 3, 2)
    assert intent.detail == {"api": "responses"} and not outcome.estimated and outcome.finish == "stop"


def test_bytes_pass_where_the_engine_speaks_it_but_nothing_is_kept_there() -> None:
    made = world(True)
    client = ask(made, b'{"model":"m","input":[{"role":"user","content":"\\u00e4 1.0"}],"temperature":1.0}')
    assert made.call.request_body == b'{"model":"m","input":[{"role":"user","content":"\\u00e4 1.0"}],"temperature":1.0,"store":false}'
    assert b"POST /v1/responses HTTP/1.1\r\n" in made.call.request_head
    answer = json.dumps(response(said()), indent=1).encode()
    made.call.answer(answer)
    assert client.body == answer


@pytest.mark.parametrize("size", [40, 100_000])
def test_a_passed_stream_is_forwarded_as_it_is(size: int) -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    data = stream("hel", "lo response.completed\n")
    engine = made.call.head(SSE_HEAD)
    for at in range(0, len(data), size):
        engine.body(data[at : at + size])
    engine.end()
    assert client.body == data and client.complete
    assert (made.outcome.prompt_tokens, made.outcome.completion_tokens, made.outcome.reasoning_tokens) == (7, 3, 1)
    assert made.outcome.finish == "stop" and made.outcome.outcome == "ok"


def test_a_translated_stream_has_every_event_in_order() -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    for data in (chunk("hel"), chunk("l\u00f6"), chunk("!"), chunk("?"), chunk(finish="stop"), USAGE, DONE):
        engine.body(data)
    engine.end()
    found = events(client)
    assert [one["type"].removeprefix("response.") for one in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(one["delta"] for one in found if one["type"].endswith(".delta")) == "hell\u00f6!?" == found[8]["text"]
    assert found[-1]["response"]["output"] == [found[-2]["item"]] and found[-1]["response"]["usage"]["output_tokens"] > 0
    assert found[-2]["item"]["content"][0]["text"] == "hell\u00f6!?" and found[-2]["item"]["id"] == found[4]["item_id"]


def test_a_translated_stream_of_thoughts_text_and_calls_has_an_item_for_each() -> None:
    made = world(False)
    tools = [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "patch"}]
    client = ask(made, {**HI, "stream": True, "tools": tools})
    engine = made.call.head(SSE_HEAD)

    def delta(**more: Any) -> bytes:
        return b"data: %b\n\n" % json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": more}]}).encode()

    def call(index: int, arguments: str, name: str = "") -> bytes:
        named = {"id": f"c{index}", "function": {"name": name, "arguments": arguments}} if name else {"function": {"arguments": arguments}}
        return delta(tool_calls=[{"index": index, **named}])

    given = json.dumps({"input": "*** Begin"})
    for data in (
        delta(reasoning="hm"),
        delta(content="so"),
        call(0, '{"a"', "f"),
        call(0, ":1}"),
        call(1, given[:5], "patch"),
        call(1, given[5:]),
    ):
        engine.body(data)
    engine.body(chunk(finish="tool_calls") + USAGE + DONE)
    engine.end()
    output = events(client)[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (output[2]["arguments"], output[2]["call_id"]) == ('{"a":1}', "c0") and output[3]["input"] == "*** Begin"
    assert len({item["id"] for item in output}) == 4


@pytest.mark.parametrize("native", [True, False])
def test_what_was_cut_off_is_incomplete(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "max_output_tokens": 3})
    cut = response(said(), status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    made.call.answer(json.dumps(cut).encode() if native else chat(finish="length"))
    found = json.loads(client.body)
    assert found["status"] == "incomplete" and found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made.outcome.finish == "length" and made.limiter.reservations


@pytest.mark.parametrize("native", [True, False])
def test_an_error_with_the_status_200_is_the_engines_failure(native: bool) -> None:
    made = world(native)
    client = ask(made, HI)
    made.call.answer(b'{"error":{"type":"server_error","message":"secret"}}')
    assert (client.status, json.loads(client.body)["error"]["code"]) == (502, "engine_failed") and b"secret" not in client.body
    assert made.limiter.reservations[0].settled == [None]


def calling(name: str, arguments: str, count: int = 1) -> list[dict[str, Any]]:
    return [{"index": n, "id": f"c{n}", "function": {"name": name, "arguments": arguments}} for n in range(count)]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"reasoning": "hm"}, ["incomplete"]),
        ({"reasoning": "hm", "content": "so"}, ["completed", "incomplete"]),
        ({"content": "so", "tool_calls": calling("f", "{")}, ["completed", "incomplete"]),
        ({"tool_calls": calling("f", "{}", 3)}, ["completed", "completed", "incomplete"]),
        ({"content": "so", "tool_calls": calling("patch", '{"inp')}, ["completed"]),
        ({"tool_calls": calling("patch", '{"input":""}', 2)}, ["completed"]),
    ],
)
def test_only_the_last_item_was_cut_off_in_a_whole_answer_as_in_a_stream(message: dict[str, Any], expected: list[str], finish: str) -> None:
    """A call of a custom tool that was cut off cannot be read, and is left out."""
    asked = {**HI, "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "patch"}]}
    made = world(False)
    whole = ask(made, asked)
    made.call.answer(chat(finish=finish, **{"content": None, **message}))
    made = world(False)
    streamed = ask(made, {**asked, "stream": True})
    parts: list[dict[str, Any]] = [{key: message[key]} for key in ("reasoning", "content") if key in message]
    parts += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
    chunks = [{"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": part}]} for part in parts]
    engine = made.call.head(SSE_HEAD)
    engine.body(b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks) + chunk(finish=finish) + USAGE + DONE)
    engine.end()
    for found in (json.loads(whole.body), events(streamed)[-1]["response"]):
        assert found["status"] == "incomplete" and [item["status"] for item in found["output"]] == expected


@pytest.mark.parametrize("native", [True, False])
def test_a_broken_stream_ends_with_an_error_and_the_right_number(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    engine.body(numbered(*begun(), *spoken("hel")[:3]) if native else chunk("hel"))
    engine.fail(EngineTimeout("slow"))
    found = events(client)
    assert [one["type"] for one in found[-2:]] == ["error", "response.failed"]
    assert found[-2]["code"] == "engine_timeout" and found[-1]["response"]["error"]["code"] == "engine_timeout"
    assert found[-1]["response"]["id"] == found[0]["response"]["id"]


def test_a_passed_stream_without_its_last_event_is_broken() -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    engine.body(numbered(*begun(), *spoken("hel")))
    engine.end()
    assert events(client)[-1]["type"] == "response.failed" and made.outcome.outcome == "failed"


@pytest.mark.parametrize("kind", ["error", "response.failed"])
def test_an_engine_that_fails_in_the_stream(kind: str) -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    failed = {"type": kind, "message": "secret path", "response": response(status="failed", error={"code": "x", "message": "secret path"})}
    made.call.head(SSE_HEAD).body(numbered(*begun(), failed)).end()
    assert events(client)[-1]["type"] == "response.failed" and b"secret" not in client.body


def test_events_may_be_as_long_as_an_answer() -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    data = stream(*["x" * 1000] * 1000)
    engine = made.call.head(SSE_HEAD)
    for at in range(0, len(data), 65536):
        engine.body(data[at : at + 65536])
    engine.end()
    assert client.body == data and client.reserved > 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}]}, "input[1]"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": 7}]}, "input[0].id"),
    ({"input": [{"id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": "mcp_approval_response", "approve": True}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": {"url": "https://x"}}]}]},
        "input[0].content[0].image_url",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ["https://x"]}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "detail": {"url": "https://x"}}]}]}, "input[0].content[0].detail"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": {"url": "https://x"}}]}]},
        "input[0].content[0].file_data",
    ),
    (
        {"input": [{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x", "image_url": "https://x"}]}]},
        "input[0].output[0].image_url",
    ),
    ({"input": [{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x", "file_id": "f"}]}]}, "input[0].output[0].file_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]}]}, "input[0].content[0].file_url"),
    ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": "x", "Role": "system"}]}, "input[0].Role"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_url": "https://x.example"}]}, "tools[0].server_url"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}]}, "tools[0].container"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, "tools[0].type"),
    ({"tools": [{"type": "code_interpreter", "container": "c"}]}, "tools[0].container"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type"),
    ({"input": [{"type": "code_interpreter_call", "id": "c", "container_id": "x"}]}, "input[0].container_id"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"temprature": 1}, "temprature"),
    ({"priority": 1}, "priority"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
]


@pytest.mark.parametrize(("more", "param"), BAD)
def test_what_is_refused_names_its_field(more: dict[str, Any], param: str) -> None:
    made = world(True)
    client = ask(made, {**HI, **more})
    found = json.loads(client.body)["error"]
    assert client.status == 400 and found["param"] == param, found
    assert not made.engine.calls


def test_a_key_that_is_there_twice_is_refused() -> None:
    for body in (
        b'{"model":"m","input":"a","input":"b"}',
        b'{"model":"m","input":[{"role":"user","content":"a","content":"b"}]}',
        b'{"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a","\\u0074ext":"b"}]}]}',
    ):
        made = world(True)
        assert ask(made, body).status == 400 and not made.engine.calls


NOT_IN_A_CHAT: list[dict[str, Any]] = [
    {"input": [{"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}}]},
    {"tools": [{"type": "local_shell"}]},
    {"top_logprobs": 3},
    {"text": {"format": {"type": "grammar"}}},
]


@pytest.mark.parametrize("more", NOT_IN_A_CHAT)
def test_what_a_chat_cannot_say_is_refused_and_passed_to_an_engine_that_can(more: dict[str, Any]) -> None:
    made = world(False)
    assert ask(made, {**HI, **more}).status == 400 and not made.engine.calls
    made = world(True)
    ask(made, {**HI, **more})
    assert made.call.request_body


@pytest.mark.parametrize("native", [True, False])
def test_errors_have_the_shape_of_the_openai_api(native: bool) -> None:
    made = world(native)
    made.identity.error = AuthenticationError("no")
    client = ask(made)
    assert client.status == 401 and json.loads(client.body)["error"]["type"] == "authentication_error"
    made = world(native)
    client = ask(made)
    made.call.answer(b'{"error":{"message":"too long","code":"context_length_exceeded"}}', ResponseHead(400, JSON_HEAD.headers))
    assert client.status == 400 and json.loads(client.body)["error"]["code"] == "context_length_exceeded"


def test_the_form_is_chosen_anew_for_each_attempt() -> None:
    made = world(True)
    made.route.retries, made.route.leaves = [0.0], True
    client = ask(made)
    made.route.apis = ()
    made.call.forsake()
    assert b"/v1/chat/completions" in made.call.request_head and b'"messages"' in made.call.request_body
    made.call.answer(chat())
    assert json.loads(client.body)["object"] == "response"


# --- counts


COUNT = PATH + b"/input_tokens"


@pytest.mark.parametrize("native", [True, False])
def test_a_count_costs_a_request_and_no_tokens(native: bool) -> None:
    made = world(native)
    body = {"model": "m", "input": "hi", "instructions": "Be brief."}
    _, client = made.start(json.dumps(body).encode(), path=COUNT)
    path = COUNT if native else b"/v1/chat/completions/input_tokens"
    assert made.call.request_head.startswith(b"POST %b HTTP/1.1" % path)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert json.loads(made.call.request_body) == (body if native else {"model": "m", "messages": turns})
    made.call.answer(b'{"object":"x","input_tokens":12,"leaks":"?"}')
    assert client.status == 200 and client.body == b'{"object":"response.input_tokens","input_tokens":12}'
    (settled,) = made.limiter.reservations[0].settled
    assert settled is not None and settled.prompt_tokens == settled.completion_tokens == 0
    assert made.audit.intents[0].detail == {"api": "input_tokens"}


def test_what_is_no_count_of_an_engine_is_its_failure() -> None:
    made = world(False)
    _, client = made.start(b'{"model":"m","input":"hi"}', path=COUNT)
    made.call.answer(b'{"input_tokens":"many"}')
    assert client.status == 502 and b"not a token count" in client.body


@pytest.mark.parametrize("field", ["store", "stream", "max_output_tokens", "temperature", "background"])
def test_a_count_takes_no_field_of_an_answer(field: str) -> None:
    made = world(False)
    _, client = made.start(json.dumps({"model": "m", "input": "hi", field: None}).encode(), path=COUNT)
    assert client.status == 400 and json.loads(client.body)["error"]["param"] == field
