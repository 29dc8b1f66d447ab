"""A kept answer in the other form says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.wire.openai.calls import OpenAiCalls, of_answer
from gateway.wire.openai.replay import as_stream, as_whole

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
CALL = st.builds(
    lambda id, name, arguments: {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}},
    TEXT.filter(bool),
    TEXT.filter(bool),
    TEXT,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT}, optional={"tool_calls": st.lists(CALL, min_size=1, max_size=3), "refusal": TEXT}
)


def answer(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    choices = [{"index": number, "message": message, "finish_reason": "stop"} for number, message in enumerate(messages)]
    return {"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": choices, **more}


@given(st.lists(MESSAGE, min_size=1, max_size=3))
def test_a_whole_answer_as_a_stream_and_back_is_itself(messages: list[dict[str, Any]]) -> None:
    made = answer(*messages, usage={"prompt_tokens": 1})
    events = as_stream(json.dumps(made).encode(), True)
    assert events.endswith(b"data: [DONE]\n\n")
    assert json.loads(as_whole(events)) == made


@given(MESSAGE)
def test_both_forms_hold_the_same_calls(message: dict[str, Any]) -> None:
    body = json.dumps(answer(message)).encode()
    reader = OpenAiCalls()
    for event in as_stream(body, False).split(b"\n\n")[:-1]:
        reader.feed(event)
    assert [(use.names, use.arguments) for use in reader.uses()] == [(use.names, use.arguments) for use in of_answer(body)[1]]


def test_pieces_are_put_together_and_the_usage_is_told_only_who_asks() -> None:
    pieces = [
        {"role": "assistant", "content": "I "},
        {"content": "will", "role": "assistant"},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "y", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "x", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "id": None, "function": {"arguments": "}"}}, {"index": 1, "function": {"arguments": "[]"}}]},
        {},
    ]
    events = b": a comment\n\n" + b"".join(
        b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"
        for delta in pieces
    )
    events += (
        b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: {"choices":[],"usage":{"a":1}}\n\n'
    )
    whole = json.loads(as_whole(events + b"data: [DONE]\n\n"))
    (choice,) = whole["choices"]
    assert choice["message"]["content"] == "I will" and choice["finish_reason"] == "tool_calls" and whole["usage"] == {"a": 1}
    calls = {call["id"]: call["function"] for call in choice["message"]["tool_calls"]}
    assert calls == {"a": {"name": "x", "arguments": "{}"}, "b": {"name": "y", "arguments": "[]"}}
    assert b"usage" not in as_stream(json.dumps(whole).encode(), False) and b"usage" in as_stream(json.dumps(whole).encode(), True)


def test_a_completion_has_both_forms_too() -> None:
    body = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]}
    assert json.loads(as_whole(as_stream(json.dumps(body).encode(), False))) == body


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices":5}', b"{"])
def test_what_is_no_answer_has_no_other_form(body: bytes) -> None:
    with pytest.raises(EngineError):
        as_stream(body, False)
    with pytest.raises(EngineError):
        as_whole(b"data: {" + body + b"\n\n")
