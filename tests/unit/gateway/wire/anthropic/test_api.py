"""Messages through the whole pipeline, passed to an engine that speaks them and translated for one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError, EngineTimeout, LimitExceeded, Overloaded, PermissionDenied, RequestError
from gateway.core.types import ResponseHead
from gateway.pipeline.held import Gathering, Replacing
from gateway.wire.anthropic import replay
from gateway.wire.anthropic.answers import MessagesAnswer
from gateway.wire.anthropic.stream import MessagesReader
from tests.steady import at_most, spent
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk

PATH, COUNT = b"/v1/messages", b"/v1/messages/count_tokens"
HI = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3},
}


def world(native: bool, **more: Any) -> World:
    made = World(**more)
    made.route.apis = ("messages",) if native else ()
    return made


def ask(made: World, body: dict[str, Any] | bytes = HI, path: bytes = PATH, **headers: str) -> Client:
    given = body if isinstance(body, bytes) else json.dumps(body).encode()
    _, client = made.start(given, path=path, headers={name.replace("_", "-").encode(): value.encode() for name, value in headers.items()})
    return client


def chat(content: str | None = "hello", finish: str = "stop", **more: Any) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": usage}).encode()


def events(client: Client) -> list[dict[str, Any]]:
    found = []
    for event in client.body.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        document = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + document["type"].encode()
        found.append(document)
    return found


def native_events(*pieces: dict[str, Any]) -> bytes:
    start = {
        "type": "message_start",
        "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 5, "output_tokens": 1}},
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}}
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in (start, *pieces, end, {"type": "message_stop"})
    )


def text_block(*texts: str, index: int = 0) -> list[dict[str, Any]]:
    deltas = [{"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}} for text in texts]
    begin = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    return [begin, *deltas, {"type": "content_block_stop", "index": index}]


@pytest.mark.parametrize("native", [True, False])
def test_a_whole_answer_is_a_message_with_its_usage(native: bool) -> None:
    made = world(native)
    client = ask(made)
    made.call.answer(json.dumps(MESSAGE).encode() if native else chat())
    found = json.loads(client.body)
    assert client.status == 200 and found["content"] == MESSAGE["content"] and found["stop_reason"] == "end_turn"
    assert {name: found["usage"][name] for name in MESSAGE["usage"]} == MESSAGE["usage"]  # type: ignore[attr-defined]
    assert client.headers["request-id"] == client.headers["x-request-id"] == "req-1"
    outcome, intent = made.outcome, made.audit.intents[0]
    assert (outcome.operation, outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens) == ("chat", 7, 3, 2)
    assert intent.detail == {"api": "messages"} and not outcome.estimated
    assert outcome.finish == ("end_turn" if native else "stop")


def test_bytes_pass_where_the_engine_speaks_it() -> None:
    made = world(True)
    block = b'{"type":"text","text":"\\u00e4 1.0","cache_control":{"type":"ephemeral"}}'
    body = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[%b]}]}' % block
    client = ask(made, body, anthropic_version="2025-01-01")
    assert made.call.request_body == body
    assert b"POST /v1/messages HTTP/1.1\r\n" in made.call.request_head and b"anthropic-version: 2025-01-01\r\n" in made.call.request_head
    answer = json.dumps(MESSAGE, indent=1).encode()
    made.call.answer(answer)
    assert client.body == answer


@pytest.mark.parametrize("native", [True, False])
def test_a_stream_is_forwarded_event_by_event(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    if native:
        data = native_events(*text_block("hel", "lo"))
        for at in range(0, len(data), 40):  # events are whole again at the client
            engine.body(data[at : at + 40])
    else:
        asked = json.loads(made.call.request_body)
        assert asked["stream_options"] == {"include_usage": True}
        for piece in (chunk("", role="assistant"), chunk("hel"), chunk("lo"), chunk(finish="stop"), USAGE, DONE):
            engine.body(piece)
    engine.end()
    found = events(client)
    kinds = [event["type"] for event in found]
    deltas = ["content_block_delta"] * 2
    assert kinds == ["message_start", "content_block_start", *deltas, "content_block_stop", "message_delta", "message_stop"]
    assert "".join(event["delta"]["text"] for event in found if event["type"] == deltas[0]) == "hello"
    assert found[-2]["delta"]["stop_reason"] == "end_turn" and found[-2]["usage"]["output_tokens"] == 3
    assert client.complete and client.headers["request-id"] == "req-1"
    outcome = made.outcome
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.estimated) == (5 if native else 7, 3, False)


@pytest.mark.parametrize("native", [True, False])
def test_a_count_costs_a_request_and_no_tokens(native: bool) -> None:
    made = world(native)
    body = {name: value for name, value in HI.items() if name != "max_tokens"}
    client = ask(made, body, path=COUNT)
    path = COUNT if native else b"/v1/chat/completions/input_tokens"
    assert made.call.request_head.startswith(b"POST %b HTTP/1.1" % path)
    made.call.answer(b'{"object":"x","input_tokens":12,"leaks":"?"}')
    assert client.status == 200 and client.body == b'{"input_tokens":12}'
    (settled,) = made.limiter.reservations[0].settled
    assert settled is not None and settled.prompt_tokens == settled.completion_tokens == 0
    assert made.audit.intents[0].detail == {"api": "count_tokens"}


REFUSALS: list[tuple[str, Any, int, str]] = [
    ("identity", AuthenticationError("Who?"), 401, "authentication_error"),
    ("limiter", LimitExceeded("Slow.", retry_after=2.0), 429, "rate_limit_error"),
    ("limiter", Overloaded("Busy.", retry_after=1.0), 529, "overloaded_error"),
]


@pytest.mark.parametrize(("where", "error", "status", "kind"), REFUSALS)
def test_refusals_have_anthropics_shape(where: str, error: Exception, status: int, kind: str) -> None:
    made = world(False)
    getattr(made, where).error = error
    client = ask(made)
    found = json.loads(client.body)
    assert (client.status, found["type"], found["error"]["type"], found["request_id"]) == (status, "error", kind, "req-1")
    assert made.outcome.status == status and client.headers["request-id"] == "req-1"


def test_policy_denies_and_hides() -> None:
    made = world(True)
    made.authorizer.allow = False
    assert json.loads(ask(made).body)["error"]["type"] == "permission_error"
    made.authorizer.visible = False
    client = ask(made)
    assert client.status == 404 and json.loads(client.body)["error"]["type"] == "not_found_error"
    assert not made.engine.calls


@pytest.mark.parametrize("native", [True, False])
def test_an_engines_refusal_is_told(native: bool) -> None:
    made = world(native)
    client = ask(made)
    says = (
        {"type": "error", "error": {"type": "invalid_request_error", "message": "too much"}}
        if native
        else {"error": {"message": "too much"}}
    )
    made.call.answer(json.dumps(says).encode(), ResponseHead(400, [(b"content-type", b"application/json")]))
    found = json.loads(client.body)["error"]
    assert (client.status, found["type"], found["message"]) == (400, "invalid_request_error", "too much")


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("how", ["event", "deadline", "halt"])
def test_a_failure_in_a_stream_is_an_error_event(native: bool, how: str) -> None:
    made = world(native)
    exchange, client = made.start(json.dumps({**HI, "stream": True}).encode(), path=PATH)
    engine = made.call.head(SSE_HEAD)
    engine.body(native_events(*text_block("hel")).partition(b"event: content_block_stop")[0] if native else chunk("hel"))
    if how == "event":
        broken = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"secret"}}\n\n'
        engine.body(broken if native else b'data: {"error":{"message":"secret"}}\n\n')
    else:
        exchange.cancel(EngineTimeout("Too long.") if how == "deadline" else PermissionDenied("Stopped.", code="halted"))
    found = events(client)[-1]
    kinds = {"event": "api_error", "deadline": "timeout_error", "halt": "permission_error"}
    assert found["type"] == "error" and found["error"]["type"] == kinds[how] and "secret" not in json.dumps(found)
    assert client.complete


@pytest.mark.parametrize("native", [True, False])
def test_an_error_with_the_status_200_is_the_engines_failure(native: bool) -> None:
    made = world(native)
    client = ask(made)
    made.call.answer(b'{"type":"error","error":{"type":"api_error","message":"secret"}}')
    found = json.loads(client.body)
    assert (client.status, found["error"]["code"]) == (502, "engine_failed") and "secret" not in json.dumps(found)
    assert made.limiter.reservations[0].settled == [None]


@pytest.mark.parametrize("native", [True, False])
def test_a_stream_that_breaks_off_does_not_end_as_a_message_does(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    engine.body(native_events(*text_block("hel")).partition(b"event: content_block_stop")[0] if native else chunk("hel"))
    engine.end()
    found = events(client)
    assert found[-1]["type"] == "error" and found[-1]["error"]["code"] == "engine_failed" and client.complete
    assert not [event for event in found if event["type"] in ("message_delta", "message_stop")]
    assert made.outcome.outcome == "failed" and made.outcome.estimated


def test_an_end_marker_says_nothing_of_why_a_chat_ended() -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    made.call.head(SSE_HEAD).body(chunk("hel") + DONE).end()
    found = events(client)
    assert found[-1]["type"] == "error" and "finish_reason" in found[-1]["error"]["message"]
    assert [event["delta"]["text"] for event in found if event["type"] == "content_block_delta"] == ["hel"]
    assert not [event for event in found if event["type"] in ("message_delta", "message_stop")]


def said(**block: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [block]}]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp_servers", "unsupported_parameter"),
    ({"max_tokenz": 5}, "max_tokenz", "unsupported_parameter"),
    (said(type="text", text="x", cach_control={}), "messages[0].content[0].cach_control", "unsupported_parameter"),
    (said(type="image", source={"type": "url", "url": "http://x"}), "messages[0].content[0].source.type", "unsupported_content"),
    (said(type="image", source={"type": "file", "file_id": "f"}), "messages[0].content[0].source.type", "unsupported_content"),
    (said(type="image", source="http://x"), "messages[0].content[0].source", "invalid_value"),
    (said(type="document", source=[{"type": "url", "url": "http://x"}]), "messages[0].content[0].source", "invalid_value"),
    (said(type="image", source={"type": "base64", "data": {"url": "http://x"}}), "messages[0].content[0].source.data", "invalid_value"),
    (said(type="document", source={"type": "text", "data": {"url": "http://x"}}), "messages[0].content[0].source.data", "invalid_value"),
    (
        said(type="tool_result", tool_use_id="1", content={"type": "image", "source": {"type": "url", "url": "http://x"}}),
        "messages[0].content[0].content.source.type",
        "unsupported_content",
    ),
    (
        said(type="document", source={"type": "content", "content": {"type": "image", "source": {"type": "url", "url": "http://x"}}}),
        "messages[0].content[0].source.content.source.type",
        "unsupported_content",
    ),
    (
        said(type="web_fetch_tool_result", content={"content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}),
        "messages[0].content[0].content.content[0].source.type",
        "unsupported_content",
    ),
    (
        said(type="web_fetch_tool_result", content={"type": "document", "source": "http://x"}),
        "messages[0].content[0].content.source",
        "invalid_value",
    ),
    (said(type="hologram"), "messages[0].content[0].type", "unsupported_content"),
    (said(type="image", source={"type": "base64", "data": "../etc"}), "messages[0].content[0].source.data", "invalid_value"),
]


@pytest.mark.parametrize(("change", "param", "code"), WRONG)
def test_a_wrong_field_is_named(change: dict[str, Any], param: str, code: str) -> None:
    made = world(True)
    client = ask(made, {**HI, **change})
    error = json.loads(client.body)["error"]
    assert (client.status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", param, code)
    assert not made.engine.calls


def test_what_a_server_tool_gave_may_name_its_addresses() -> None:
    """Nobody fetches them: the API wrote them, and its clients send them back."""
    found = {"type": "web_search_result", "url": "https://x.example", "title": "X", "encrypted_content": "AA=="}
    fetched = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}, "title": "https://x.example"}
    for content in ([found], {"type": "web_fetch_result", "url": "https://x.example", "content": fetched}):
        block = {"type": "web_search_tool_result", "tool_use_id": "1", "content": content}
        request = world(True).snapshot.parse(PATH, json.dumps({**HI, **said(**block)}).encode(), {})
        assert json.loads(bytes(request.fields["messages"]))[0]["content"] == [block]


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_a_form_without_a_schema_is_refused_where_a_chat_is_to_have_it(field: str) -> None:
    form = {"type": "json_schema"}
    made = world(False)
    client = ask(made, {**HI, field: form if field == "output_format" else {"format": form}})
    assert client.status == 400 and b"needs a schema" in client.body and not made.engine.calls


def test_a_key_that_is_there_twice_is_refused() -> None:
    made = world(True)
    body = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a","content":"b"}]}'
    assert b"twice" in ask(made, body).body and not made.engine.calls


def test_what_unknown_fields_may_do_is_the_models_setting() -> None:
    body = {**HI, "novel": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "new": 1}]}]}
    request = world(True).snapshot.parse(PATH, json.dumps(body).encode(), {})
    assert request.unknown == ("novel", "messages[0].content[0].new")
    request.api.settle_unknown(request, "drop")
    assert "novel" not in request.fields and b"new" not in bytes(request.fields["messages"])


@pytest.mark.parametrize("policy", ["refuse", "drop", "forward"])
@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_no_conversation_is_held_whatever_unknown_fields_may_do(thread: dict[str, str], policy: str) -> None:
    request = world(True).snapshot.parse(PATH, json.dumps({**HI, "thread": thread}).encode(), {})
    with pytest.raises(RequestError) as refused:
        request.api.settle_unknown(request, policy)
    error = json.loads(request.api.error_body(refused.value, {}))["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "thread", "thread_unsupported_request")
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}


def test_the_head_of_an_answer_of_other_apis_does_not_change() -> None:
    made = World()
    _, client = made.start()
    made.call.answer(head=JSON_HEAD)
    assert "request-id" not in client.headers


def test_a_kept_answer_has_both_forms() -> None:
    api = world(True).snapshot.parse(PATH, json.dumps(HI).encode(), {}).api
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "hello"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, "x"]}},
    ]
    body = json.dumps({**MESSAGE, "content": blocks}).encode()
    stream = api.replayed(body, False, True, False)
    assert json.loads(api.replayed(stream, True, False, False)) == json.loads(body)
    reader = api.call_reader()
    assert reader is not None
    passed = b"".join([reader.feed(event)[0] for event in stream.split(b"\n\n")[:-1]])
    (use,) = reader.uses()
    assert (use.name, json.loads(use.arguments)) == ("f", {"a": [1, "x"]}) and passed.count(b"event: ") == stream.count(b"event: ")
    assert [one.name for one in api.tool_calls(body)[1]] == ["f"]


def test_a_long_stream_costs_what_it_is_long_and_is_read_in_slices() -> None:
    begin = [{"type": "message_start", "message": MESSAGE}, {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}]
    delta = {"type": "text_delta", "text": "some words", "citation": {"type": "page_location"}}
    pieces = [{"type": "content_block_delta", "index": 0, "delta": delta}] * 32_000
    stream = b"".join([b"data: %b\n\n" % json.dumps(one).encode() for one in (*begin, *pieces)])
    at_most(2.0, lambda: spent(lambda: replay.as_whole(stream)))  # once quadratic: 25 s
    assert sum(1 for _ in replay.whole_steps(stream)) >= 32_000 // 64
    (block,) = json.loads(replay.as_whole(stream))["content"]
    assert block["text"] == "some words" * 32_000 and len(block["citations"]) == 32_000


@pytest.mark.parametrize("text", ["plain", 'é\\n"x"', "\\", "a\\\\", "", "\u2028 and 😀"])
def test_chunks_that_are_not_parsed_say_the_same(text: str) -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    pieces = ["one", " two", " three", text, " four", text]
    for piece in pieces:
        engine.body(chunk(piece))
    engine.body(chunk(finish="stop") + USAGE + DONE).end()
    found = events(client)
    assert "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta") == "".join(pieces)
    assert [event["type"] for event in found[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


def masked(text: str) -> str:
    return text.replace("4111111111111111", "[CARD]")


def test_a_number_in_an_input_is_a_text_and_lists_of_numbers_elsewhere_are_removed() -> None:
    call = {"type": "tool_use", "id": "t", "name": "pay", "input": {"card": 4111111111111111, "at": [1, 2]}}
    text = {"type": "text", "text": "x", "token_ids": [5], "citations": [{"type": "c", "codes": [6]}]}
    answer = MessagesAnswer(json.dumps({**MESSAGE, "content": [call, text]}).encode(), True)
    assert "4111111111111111" in answer.texts
    found = json.loads(answer.replaced([masked(one) for one in answer.texts]))["content"]
    assert found == [{**call, "input": {"card": "[CARD]", "at": [1, 2]}}, {"type": "text", "text": "x", "citations": [{"type": "c"}]}]
    assert json.loads(MessagesAnswer(json.dumps({**MESSAGE, "content": [text]}).encode(), False).body)["content"] == [text]


def test_of_a_key_that_is_there_twice_only_what_was_read_is_sent() -> None:
    whole = json.dumps({**MESSAGE, "content": [{"type": "text", "text": "sky"}]}).encode()
    assert MessagesAnswer(whole, True).body == whole
    twice = whole.replace(b'"text": "sky"', b'"text": "falcon", "text": "sky"')
    answer = MessagesAnswer(twice, True)
    assert answer.texts == ["sky"] and json.loads(answer.body) == json.loads(whole) and b"falcon" not in answer.body


def test_a_block_that_begins_with_numbers_is_read_in_a_stream() -> None:
    start = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {"c": 4111111111111111}},
    }
    delta = {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "x", "token_ids": [7]}}
    events, found = [b"data: " + json.dumps(one).encode() for one in (start, delta)], Gathering()
    for event in events:
        MessagesReader().inspected(event, found)
    passing = Replacing(found.places, [masked(text) for text in found.texts()])
    read = b"".join([MessagesReader().inspected(event, passing) for event in events])
    assert b"4111111111111111" not in read and b"[CARD]" in read and b"token_ids" not in read and b'"x"' in read
