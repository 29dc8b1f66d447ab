"""A kept answer in the other form says the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.wire.openai.calls import OpenAiCalls, of_answer
from gateway.wire.openai.replay import as_stream, as_whole, told, whole_steps
from tests.steady import at_most, spent

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


@given(st.lists(MESSAGE, min_size=1, max_size=3))
def test_a_stream_tells_its_usage_only_who_asks(messages: list[dict[str, Any]]) -> None:
    body = json.dumps(answer(*messages, usage={"prompt_tokens": 1})).encode()
    whole = as_stream(body, True)
    assert (told(whole, True), told(whole, False)) == (whole, as_stream(body, False))
    assert told(as_stream(body, False), False) == as_stream(body, False)


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


def events(*choices: dict[str, Any]) -> bytes:
    return b"".join([b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}).encode() for choice in choices])


@pytest.mark.parametrize(
    "delta",
    [
        lambda number: {"content": "some words and more "},
        lambda number: {"tool_calls": [{"index": number, "id": "a", "function": {"name": "x", "arguments": "{}"}}]},
        lambda number: {"tool_calls": [{"index": 0, "function": {"arguments": "{ }"}}]},
        lambda number: {"annotations": [{"type": "url_citation"}]},
    ],
    ids=["text", "calls", "arguments", "elements"],
)
def test_many_pieces_cost_what_they_are_long(delta: Callable[[int], dict[str, Any]]) -> None:
    long = events(*({"index": 0, "delta": delta(number)} for number in range(32_000)))
    at_most(2.0, lambda: spent(lambda: as_whole(long)))  # once quadratic: 12 s for texts, 35 s for calls
    assert sum(1 for _ in whole_steps(long)) >= 32_000 // 64, "in slices"


def test_scores_of_tokens_are_put_together() -> None:
    chat = events(
        *(
            {"index": 0, "delta": {"content": token}, "logprobs": {"content": [{"token": token, "logprob": -0.5}], "refusal": None}}
            for token in "ab"
        )
    )
    (choice,) = json.loads(as_whole(chat))["choices"]
    assert choice["logprobs"] == {"content": [{"token": token, "logprob": -0.5} for token in "ab"], "refusal": None}
    plain = events(
        *(
            {"index": 0, "text": token, "logprobs": {"tokens": [token], "token_logprobs": [-0.5], "text_offset": [place]}}
            for place, token in enumerate("ab")
        )
    )
    (choice,) = json.loads(as_whole(plain))["choices"]
    assert choice["text"] == "ab"
    assert choice["logprobs"] == {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5], "text_offset": [0, 1]}


@pytest.mark.parametrize("choice", [5, {"index": []}, {"index": "a", "delta": {}}])
def test_choices_that_are_none_are_the_engines_fault(choice: Any) -> None:
    with pytest.raises(EngineError):
        as_whole(events({"index": 0, "delta": {}}, choice))


def test_what_is_said_again_in_another_form_replaces_what_was_said() -> None:
    deltas = [{"content": "a"}, {"content": "b"}, {"content": {"x": 1}}, {"content": "c"}, {"content": "d"}]
    (choice,) = json.loads(as_whole(events(*({"index": 0, "delta": delta} for delta in deltas))))["choices"]
    assert choice["message"] == {"content": "cd"}
