"""Every text of an answer is inspected, wherever an engine puts it, whole or split between events at every place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.types import ResponseHead
from gateway.pipeline.guarded import Guarded
from gateway.wire.openai.answers import MAX_DEPTH
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrases import PhraseSet
from tests.unit.gateway.pipeline.world import BODY, DONE, SSE_HEAD, STREAM_BODY, Client, World

PHRASE = "red falcon"
TEXT = f"a {PHRASE} b"
MASKED = "a [removed] b"

PLACES: dict[str, Callable[[Any], Any]] = {
    "content": lambda text: {"content": text},
    "an unknown name": lambda text: {"thinking": text},
    "a part of the content": lambda text: {"content": [{"type": "text", "text": text}]},
    "a part of a part": lambda text: {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]},
    "a list of texts": lambda text: {"content": [text]},
    "a tool's arguments": lambda text: {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"arguments": text}}]},
    "a tool's arguments as an object": lambda text: {"tool_calls": [{"index": 1, "function": {"arguments": {"type": text, "n": 1}}}]},
    "a tool's input": lambda text: {"tool_calls": [{"index": 0, "id": "call-1", "type": "custom", "custom": {"input": text}}]},
    "a call without an index": lambda text: {"tool_calls": [{"function": {"arguments": text}}]},
    "a transcript": lambda text: {"audio": {"id": "audio-1", "transcript": text}},
    "details": lambda text: {"reasoning_details": [{"type": "reasoning.text", "format": None, "index": 0, "text": text}]},
}


def deny(*, mask: bool) -> Guarded:
    return Guarded(DenyList("words", PhraseSet([PHRASE]), mask=mask, replacement="[removed]"), False, lambda *event: None)


def leaves(value: Any) -> list[str]:
    """All texts in a value, whatever their names."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in leaves(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in leaves(inner)]
    return [value] if isinstance(value, str) else []


def whole(message: dict[str, Any], *, mask: bool = True) -> Client:
    world = World(response=[deny(mask=mask)])
    _, client = world.start(BODY)
    world.call.answer(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())
    return client


def stream(deltas: list[Any], *, mask: bool = True, finish: bool = True) -> Client:
    world = World(response=[deny(mask=mask)])
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    for delta in deltas:
        call.body(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode())
    if finish:
        call.body(b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    call.body(DONE).end()
    return client


def said(client: Client) -> str:
    events = [json.loads(event[6:]) for event in client.body.split(b"\n\n") if event.startswith(b"data: {")]
    deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
    known = {"call-1", "audio-1", "function", "custom", "text", "thinking", "reasoning.text"}
    return "".join(text for delta in deltas for text in leaves(delta) if text not in known)


@pytest.mark.parametrize("place", PLACES)
def test_a_whole_answer_is_read_everywhere(place: str) -> None:
    assert MASKED in leaves(json.loads(whole(PLACES[place](TEXT)).body))
    assert whole(PLACES[place](TEXT), mask=False).status == 400


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_phrase_split_between_events_is_found_everywhere(place: str, finish: bool) -> None:
    for cut in range(len(TEXT) + 1):
        deltas = [PLACES[place](part) for part in (TEXT[:cut], TEXT[cut:])]
        assert said(stream(deltas, finish=finish)) == MASKED, cut
        blocked = stream(deltas, mask=False, finish=finish)
        assert b"falcon b" not in blocked.body and b"guardrail_violation" in blocked.body


@pytest.mark.parametrize("place", PLACES)
def test_what_was_held_comes_at_the_end_in_its_place(place: str) -> None:
    client = stream([PLACES[place]("it is "), PLACES[place]("a red")])
    events = [json.loads(event[6:]) for event in client.body.split(b"\n\n") if event.startswith(b"data: {")]
    assert said(client) == "it is a red"
    last = events[-1]["choices"][0]
    assert last["finish_reason"] == "stop" and "red" in "".join(leaves(last["delta"]))
    assert list(last["delta"]) == list(PLACES[place](""))


def test_the_name_of_a_tool_is_read_as_a_whole() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"name": name, "arguments": ""}}]}

    assert said(stream([call("red")])) == "red"  # nothing of it is held: a client would not put it together
    assert PHRASE not in said(stream([call(PHRASE)]))
    assert whole(call(PHRASE), mask=False).status == 400


def test_what_only_names_something_is_left_alone() -> None:
    name = "falcon"
    world = World(response=[Guarded(DenyList("words", PhraseSet([name]), mask=True, replacement="-"), False, lambda *event: None)])
    _, client = world.start(BODY)
    message = {"role": name, "id": name, "type": name, "content": name}
    world.call.answer(json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    assert leaves(json.loads(client.body)) == [name] * 3 + ["-"]


@pytest.mark.parametrize("label", [TEXT, "x" * 200 + " " + PHRASE, {"a": TEXT}, [TEXT]])
@pytest.mark.parametrize("name", ["role", "id", "type", "finish_reason", "stop_reason", "token_ids"])
def test_a_name_that_is_a_text_is_read(name: str, label: Any) -> None:
    for client in (whole({name: label}), stream([{name: label}])):
        assert PHRASE.encode() not in client.body and b"[removed]" in client.body


AROUND: list[dict[str, Any]] = [
    *(
        {name: value}
        for name in ("output_text", "content", "reasoning", "prompt_logprobs", "x")
        for value in (TEXT, [TEXT], {"a": {"b": TEXT}}, 5)
    ),
    *({name: value} for name in ("id", "model", "system_fingerprint") for value in (TEXT, [TEXT], {TEXT: 1}, "x" * 200)),
    *({name: value} for name in ("usage", "timings", "created") for value in (TEXT, [TEXT], {"a": {"b": TEXT}}, {TEXT: 1}, [[TEXT]])),
]


@pytest.mark.parametrize("around", AROUND, ids=str)
def test_fields_around_the_choices_do_not_pass_unread(around: dict[str, Any]) -> None:
    answer = {"id": "c-1", "created": 5, "choices": [{"index": 0, "message": {"content": "fine"}}], **around}
    chunk = {"id": "c-1", "created": 5, "choices": [{"index": 0, "delta": {"content": "fine"}}], **around}
    for parts, is_stream in (([json.dumps(answer).encode()], False), ([b"data: %b\n\n" % json.dumps(chunk).encode(), DONE], True)):
        world = World(response=[deny(mask=True)])
        _, client = world.start(STREAM_BODY if is_stream else BODY)
        call = world.call.head(SSE_HEAD) if is_stream else world.call
        if is_stream:
            for part in parts:
                call.body(part)
            call.end()
        else:
            call.answer(parts[0])
        assert b"fine" in client.body and PHRASE.encode() not in client.body and b"x" * 200 not in client.body
        assert not {"output_text", "content", "reasoning", "prompt_logprobs", "x"} & set(
            json.loads(client.body.removeprefix(b"data: ").split(b"\n\n")[0])
        )


def test_known_fields_around_the_choices_pass_as_they_came() -> None:
    kept = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m1",
        "system_fingerprint": None,
        "service_tier": "default",
    }
    figures = {
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
        "timings": {"predicted_ms": 1.5},
        "prompt_token_ids": [1, 2],
    }
    event = b"data: %b\n\n" % json.dumps({**kept, **figures, "choices": [{"index": 0, "delta": {"content": "fine"}}]}).encode()
    world = World(response=[deny(mask=True)])
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(event)
    assert client.body == event


@pytest.mark.parametrize("index", ['"red falcon"', '{"a":1}', "[]", "1.5", "null"])
def test_a_choice_without_a_number_is_not_passed_on(index: str) -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(b'data: {"choices":[{"index":%b,"delta":{"content":"a"}}]}\n\n' % index.encode())
    assert b"falcon" not in client.body and b'"engine_error"' in client.body


def nested(depth: int) -> dict[str, Any]:
    return {"x": nested(depth - 1)} if depth else {"x": PHRASE}


def test_what_stands_too_deep_to_be_read_is_not_passed_on() -> None:
    assert PHRASE.encode() not in whole(nested(MAX_DEPTH - 4)).body
    assert whole(nested(MAX_DEPTH + 1)).status == 502
    assert b"engine_error" in stream([nested(MAX_DEPTH + 1)]).body


@pytest.mark.parametrize("second", [{"content": "now"}, {"content": {"text": "now"}}])
def test_an_answer_that_changes_its_form_loses_nothing_or_fails(second: dict[str, Any]) -> None:
    """What is held of parts cannot go where a text stands in the last delta."""
    world = World(response=[deny(mask=True)])
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    call.body(b'data: {"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"red"}]}}]}\n\n')
    call.body(b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": second, "finish_reason": "stop"}]}).encode())
    call.body(DONE)
    assert b'"engine_error"' in client.body and b"changed its form" in client.body


def test_a_chunk_whose_choices_are_none_is_not_passed_on() -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(b'data: {"choices":["red falcon"]}\n\n')
    assert b"red falcon" not in client.body and b'"engine_error"' in client.body


@pytest.mark.parametrize("mask", [True, False])
def test_keys_that_the_model_wrote_are_read(mask: bool) -> None:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": {PHRASE: 1, "New York": 2}}}]}
    assert whole(call, mask=mask).status == 400
    assert b"guardrail_violation" in stream([call], mask=mask).body
    clean = {"tool_calls": [{"index": 0, "function": {"arguments": {"New York": {"a b": "c"}}}}]}
    assert leaves(json.loads(whole(clean).body)) == ["c", "stop"] and said(stream([clean])) == "c"


@pytest.mark.parametrize("request_body", [BODY, STREAM_BODY])
@pytest.mark.parametrize("mask", [True, False])
def test_what_an_engine_says_of_a_request_that_it_refuses_is_inspected(request_body: bytes, mask: bool) -> None:
    guard = DenyList("words", PhraseSet(["falcon"]), mask=mask, replacement="[removed]")
    world = World(response=[Guarded(guard, False, lambda *event: None)])
    _, client = world.start(request_body)
    words = {"message": f"{TEXT} is too long", "code": "too_long", "param": "red-falcon"}
    world.call.answer(json.dumps({"error": words}).encode(), ResponseHead(400, []))
    error = json.loads(client.body)["error"]
    assert client.status == 400 and "falcon" not in client.body.decode()
    if mask:
        assert (error["message"], error["code"], error["param"]) == ("a red [removed] b is too long", "invalid_value", None)
    else:
        assert (error["type"], error["code"]) == ("guardrail_violation", "words")
