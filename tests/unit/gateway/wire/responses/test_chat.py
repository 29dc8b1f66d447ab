"""Translation between the Responses API and chat completions: nothing that is said is lost, there and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import EngineError, RequestError
from gateway.wire.responses import chat
from gateway.wire.responses.api import APIS
from gateway.wire.responses.chat_stream import ChatReader
from gateway.wire.table import parse

PATH = b"/v1/responses"
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
NAME = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.dictionaries(TEXT, inner, max_size=2), max_leaves=4)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=2).map(json.dumps)
PART = st.builds(lambda text: {"type": "input_text", "text": text}, TEXT)
ITEM = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system", "developer", "assistant"]), TEXT),
    st.builds(lambda parts: {"type": "message", "role": "user", "content": parts}, st.lists(PART, min_size=1, max_size=3)),
    st.builds(lambda name, given: {"type": "function_call", "call_id": "c", "name": name, "arguments": given}, NAME, ARGUMENTS),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXT),
    st.builds(lambda name, text: {"type": "custom_tool_call", "call_id": "c", "name": name, "input": text}, NAME, TEXT),
    st.builds(lambda text: {"type": "custom_tool_call_output", "call_id": "c", "output": text}, TEXT),
)


def chat_of(**more: Any) -> dict[str, Any]:
    request = parse(PATH, json.dumps({"model": "m", "input": "hi", **more}).encode(), {})
    found: dict[str, Any] = json.loads(msgspec.json.encode(chat.request_fields(request.fields, request.stream)))
    return found


def said_in_items(items: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for item in items:
        if isinstance(item.get("content"), list):
            found += [part["text"] for part in item["content"]]
        elif "content" in item:
            found.append(item["content"])
        elif "output" in item:
            found.append(item["output"])
        else:
            found += [item["name"], item.get("arguments") or item["input"]]
    return found


def said_in_chat(messages: list[dict[str, Any]], custom: bool = True) -> list[str]:
    found: list[str] = []
    for message in messages:
        content = message["content"]
        found += [part["text"] for part in content] if isinstance(content, list) else [content] if content is not None else []
        for call in message.get("tool_calls", ()):
            given = json.loads(call["function"]["arguments"])
            free = custom and list(given) == ["input"]
            found += [call["function"]["name"], given["input"] if free else call["function"]["arguments"]]
    return found


@given(st.lists(ITEM, min_size=1, max_size=8))
def test_every_text_name_and_argument_survives_in_its_order(items: list[dict[str, Any]]) -> None:
    for item in items:
        if item.get("arguments") and list(json.loads(item["arguments"])) == ["input"]:
            return  # it looks like a custom tool's
    assert said_in_chat(chat_of(input=items)["messages"]) == said_in_items(items)


@given(TEXT, TEXT, st.lists(st.tuples(NAME, ARGUMENTS), max_size=3), st.data())
def test_a_chat_said_as_a_response_says_the_same_whole_and_in_any_pieces(
    thought: str, text: str, calls: list[tuple[str, str]], data: st.DataObject
) -> None:
    called = [{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": given}} for at, (name, given) in enumerate(calls)]
    request = parse(PATH, b'{"model":"m","input":"hi","stream":true}', {})
    message = {"content": text, "reasoning_content": thought, "tool_calls": called}
    whole = {"id": "chatcmpl-1", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    output = json.loads(chat.response_of(request, json.dumps(whole).encode()))["output"]
    pieces: list[dict[str, Any]] = [{"reasoning_content": one} for one in _cut(thought, data)] + [
        {"content": one} for one in _cut(text, data)
    ]
    for call in called:
        begin, *rest = _cut(call["function"]["arguments"], data)  # type: ignore[index]
        pieces.append({"tool_calls": [{**call, "function": {**call["function"], "arguments": begin}}]})  # type: ignore[dict-item]
        pieces += [{"tool_calls": [{"index": call["index"], "function": {"arguments": one}}]} for one in rest]
    reader = ChatReader(request)
    events = b""
    for delta in pieces:
        chunk = {"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": delta}]}
        events += reader.read(b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=data.draw(st.booleans())).encode())
    events += reader.read(b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    assert reader.error is None
    found = [json.loads(one.partition(b"data: ")[2]) for one in events.split(b"\n\n")[:-1]]
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    streamed = found[-1]["response"]["output"]
    assert [_said(item) for item in streamed] == [_said(item) for item in output]
    for number, item in enumerate(streamed):
        deltas = "".join(one["delta"] for one in found if "delta" in one and one["output_index"] == number)
        assert deltas in _said(item)
    assert [_said(item) for item in output] == [("reasoning", thought), ("message", text), *(("function_call", *call) for call in calls)]


def _cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3)))
    found = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [one for one in found if one] or [text]


def _said(item: dict[str, Any]) -> tuple[str, ...]:
    if item["type"] == "function_call":
        return (item["type"], item["name"], item["arguments"])
    return (item["type"], *(part["text"] for part in item["content"]))


def test_what_the_model_said_in_one_go_is_one_message() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "1"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        },
        {"type": "function_call_output", "call_id": "b", "output": "2"},
    ]
    messages = chat_of(input=items, instructions="be brief")["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user", "tool"]
    spoken = messages[2]
    assert (spoken["content"], spoken["reasoning_content"]) == ("so", "hm") and [call["id"] for call in spoken["tool_calls"]] == ["a", "b"]
    assert messages[4]["content"][0]["image_url"]["url"].startswith("data:image/png")


def test_settings_have_their_counterparts() -> None:
    tools = [
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "g"},
        {"type": "function", "name": "h", "parameters": {}},
    ]
    found = chat_of(
        tools=tools,
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}],
        },
        parallel_tool_calls=False,
        max_output_tokens=7,
        temperature=0.5,
        user="u",
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}, "verbosity": "low"},
        include=["reasoning.encrypted_content"],
        truncation="auto",
        stream=True,
    )
    assert [tool["function"]["name"] for tool in found["tools"]] == ["f", "g"] and found["tool_choice"] == "required"
    assert found["tools"][1]["function"]["parameters"]["required"] == ["input"] and found["tools"][0]["function"]["strict"] is True
    assert found["response_format"]["json_schema"] == {"name": "s", "schema": {"type": "object"}, "strict": True}
    assert (found["max_tokens"], found["temperature"], found["user"], found["reasoning_effort"]) == (7, 0.5, "u", "low")
    assert found["stream"] is True and found["stream_options"] == {"include_usage": True} and found["parallel_tool_calls"] is False
    assert not {"include", "truncation", "store", "input", "max_output_tokens"} & set(found)
    assert chat_of(tools=tools, tool_choice={"type": "custom", "name": "g"})["tool_choice"]["function"] == {"name": "g"}


@pytest.mark.parametrize(
    "more", [{"tool_choice": "perhaps"}, {"tool_choice": {"type": "web_search"}}, {"text": {"format": {"type": "json_schema"}}}]
)
def test_what_cannot_be_said_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        chat_of(tools=[{"type": "function", "name": "f", "parameters": {}}], **more)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"function": {"arguments": "{}"}}]},
        {"content": None, "tool_calls": [{"function": {"name": "patch", "arguments": "no json"}}]},
        {"content": None, "tool_calls": [{"function": {"name": "patch", "arguments": '{"input":1}'}}]},
    ],
)
def test_a_call_that_cannot_be_read_is_the_engines_failure(message: dict[str, Any]) -> None:
    request = parse(PATH, b'{"model":"m","input":"hi","tools":[{"type":"custom","name":"patch"}]}', {})
    with pytest.raises(EngineError):
        chat.response_of(request, json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode())


BODY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "output", "call_id", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
KINDS = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "local_shell_call", "novel"])


@given(
    st.lists(
        st.builds(
            lambda kind, more: {**more, "type": kind},
            KINDS,
            st.dictionaries(st.sampled_from(["role", "content", "output", "summary", "arguments", "name", "action"]), BODY, max_size=4),
        ),
        max_size=4,
    ),
    BODY,
    BODY,
)
def test_any_body_is_read_or_refused(items: list[dict[str, Any]], tools: Any, text: Any) -> None:
    body = json.dumps({"model": "m", "input": items, "tools": tools, "text": text}).encode()
    try:
        request = parse(PATH, body, {})
        api = APIS[0]
        texts = api.texts(request)
        texts.replace(texts.texts)
        texts.write()
        api.turns(request)
        api.tools(request)
        api.tool_uses(request)
        request.foreign = True
        api.target(request, None)
    except RequestError:
        return
    assert isinstance(request.fields["input"], Raw)
