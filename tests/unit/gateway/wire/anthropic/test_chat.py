"""Translation into chat completions and back: text, names of tools, arguments, order and usage survive; what cannot be said is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError, GatehouseError, RequestError
from gateway.core.types import InferenceRequest
from gateway.wire import table
from gateway.wire.anthropic import chat

PATH = b"/v1/messages"
TOOL = {"name": "get_weather", "description": "Tells it.", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
PNG = "iVBORw0KGgo="


def parsed(body: dict[str, Any] | bytes) -> InferenceRequest:
    request = table.parse(PATH, body if isinstance(body, bytes) else json.dumps(body).encode(), {})
    request.foreign = True
    return request


def translated(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    request = parsed({"model": "m", "max_tokens": 9, "messages": list(messages), **more})
    path, body = request.api.target(request, "other")
    assert path == b"/v1/chat/completions"
    found: dict[str, Any] = json.loads(body)
    return found


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_whole_conversation() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln", "n": 1.0}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12 °C"}]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    found = translated(
        user([{"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}}, image]),
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": "I ask."}, call],
        },
        user([result, {"type": "text", "text": "And?"}]),
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        metadata={"user_id": "u1"},
        temperature=0.5,
        top_k=3,
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
    )
    image_part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    function = {"name": "get_weather", "arguments": '{"city": "K\\u00f6ln", "n": 1.0}'}
    assert found == {
        "model": "other",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, image_part]},
            {
                "role": "assistant",
                "content": "I ask.",
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "12 °C"},
            {"role": "user", "content": "And?"},
        ],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["END"],
        "user": "u1",
        "tools": [
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "Tells it.", "parameters": TOOL["input_schema"]},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(("choice", "expected"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_the_choice_of_tools(choice: str, expected: str) -> None:
    assert translated(user("x"), tools=[TOOL], tool_choice={"type": choice})["tool_choice"] == expected


def test_a_document_is_its_texts_or_a_file() -> None:
    text = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "body"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PNG}}
    (message,) = translated(user([text, pdf]))["messages"]
    assert [part.get("text") for part in message["content"]] == ["T", "body", None]
    assert message["content"][2]["file"]["file_data"] == f"data:application/pdf;base64,{PNG}"


def test_an_image_in_a_result_follows_it() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "seen"}, image]}
    found = translated(user("x"), call, user([result]))["messages"]
    assert found[2] == {"role": "tool", "tool_call_id": "t", "content": "seen"} and found[3]["content"][0]["type"] == "image_url"


@pytest.mark.parametrize(
    ("messages", "more", "param"),
    [
        ([user("x"), {"role": "assistant", "content": "So"}], {}, "messages"),
        ([user("x")], {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ([user([{"type": "server_tool_use", "id": "s", "name": "n", "input": {}}])], {}, "messages[0].content[0]"),
    ],
)
def test_what_a_chat_cannot_say_is_refused(messages: list[dict[str, Any]], more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        translated(*messages, **more)
    assert caught.value.param == param and caught.value.code == "unsupported_content"


@pytest.mark.parametrize("name", ["output_format", "output_config"])
def test_the_form_of_the_answer(name: str) -> None:
    asked = {"type": "json_schema", "schema": {"type": "object"}}
    found = translated(user("x"), **{name: asked if name == "output_format" else {"format": asked, "effort": "low"}})
    assert found["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def answer(finish: str = "stop", usage: Any = None, **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-9", "model": "m", "choices": [choice], "usage": usage}, ensure_ascii=False).encode()


def called(arguments: str, name: str = "f") -> list[dict[str, Any]]:
    return [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def test_an_answer_with_thoughts_text_and_a_call() -> None:
    body = answer("tool_calls", reasoning_content="Hm.", content="I ask.", tool_calls=called('{"a": 1.0}'))
    raw = chat.message_of(body)
    assert b'"input":{"a": 1.0}' in raw, "the model's own bytes"
    found = json.loads(raw)
    assert [block["type"] for block in found["content"]] == ["thinking", "text", "tool_use"]
    assert found["stop_reason"] == "tool_use" and found["id"] == "msg_9"


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("novel", "end_turn")]
)
def test_why_it_ended(finish: str, reason: str) -> None:
    assert json.loads(chat.message_of(answer(finish, content="x")))["stop_reason"] == reason


def test_the_stop_sequence_is_told_where_the_engine_says_it() -> None:
    body = json.loads(answer("stop", content="x"))
    body["choices"][0]["stop_reason"] = "END"
    found = json.loads(chat.message_of(json.dumps(body).encode()))
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "END")


def test_a_call_that_was_cut_off_is_left_out_and_one_that_is_no_object_is_an_error() -> None:
    assert json.loads(chat.message_of(answer("length", tool_calls=called('{"a": '))))["content"] == []
    for broken in ('{"a": ', "[1]", '"x"'):
        with pytest.raises(EngineError):
            chat.message_of(answer("tool_calls", tool_calls=called(broken)))


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
TEXTS = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable() or "\n" in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
INPUTS = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), calls=st.lists(st.tuples(NAMES, INPUTS), min_size=1, max_size=3), results=st.data())
def test_a_request_says_the_same_as_a_chat(texts: list[str], calls: list[tuple[str, dict[str, Any]]], results: st.DataObject) -> None:
    blocks = [{"type": "tool_use", "id": f"t{at}", "name": name, "input": given} for at, (name, given) in enumerate(calls)]
    answers = [results.draw(TEXTS) for _ in calls]
    said = [{"type": "tool_result", "tool_use_id": f"t{at}", "content": text} for at, text in enumerate(answers)]
    found = translated(
        user([{"type": "text", "text": text} for text in texts]), {"role": "assistant", "content": blocks}, user([*said, *_texts(texts)])
    )["messages"]
    content = found[0]["content"]
    assert ([content] if isinstance(content, str) else [part["text"] for part in content]) == texts
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found[1]["tool_calls"]] == calls
    assert [(one["tool_call_id"], one["content"]) for one in found[2:-1]] == [(f"t{at}", text) for at, text in enumerate(answers)]
    assert found[-1]["content"] == content


def _texts(texts: list[str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


@given(text=TEXTS, thought=TEXTS, calls=st.lists(st.tuples(NAMES, INPUTS), max_size=3))
def test_an_answer_says_the_same_as_the_chat(text: str, thought: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for at, (name, given) in enumerate(calls)
    ]
    found = json.loads(chat.message_of(answer("tool_calls" if calls else "stop", content=text, reasoning=thought, tool_calls=made)))[
        "content"
    ]
    assert (found[0]["thinking"], found[1]["text"]) == (thought, text)
    assert [(block["id"], block["name"], block["input"]) for block in found[2:]] == [(f"c{at}", *one) for at, one in enumerate(calls)]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.sampled_from(["text", "tool_use", "tool_result", "user", "base64"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "source", "name", "input", "id", "data", "tool_use_id", "messages", "system", "tools"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


MUST = {"model": st.just("m"), "max_tokens": st.just(1), "messages": JSON}
MAY = dict.fromkeys(("system", "tools", "metadata", "tool_choice", "output_config"), JSON)


@given(body=st.fixed_dictionaries(MUST, optional=MAY))
def test_no_body_breaks_the_parser_the_texts_the_tools_or_the_translation(body: dict[str, Any]) -> None:
    try:
        request = parsed(body)
        request.api.tools(request)
        request.api.tool_uses(request)
        request.api.label(request)
        request.api.user(request)
        request.api.answer_schema(request)
        texts = request.api.texts(request)
        texts.replace(list(texts.texts))
        texts.write()
        request.api.target(request, None)
    except GatehouseError as error:
        assert error.status == 400


@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_answer_breaks_the_translation(body: bytes) -> None:
    try:
        chat.message_of(body)
    except GatehouseError as error:
        assert isinstance(error, EngineError)
