"""Which events of a response's stream are forwarded unread, and that the others are not; chunks that become events without being parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.guarded import Guarded
from gateway.wire.responses.chat_stream import ChatReader
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrases import PhraseSet
from tests.unit.gateway.pipeline.world import DONE, SSE_HEAD, USAGE, World, chunk
from tests.unit.gateway.wire.responses.test_api import HI, PATH, WHERE, ask, begun, events, numbered, response, said, spoken, stream, world

NAMES = [
    b"response.output_text.delta",
    b"response.output_text.done",
    b"response.output_item.added",
    b"response.completed",
    b"response.failed",
    b"response.created",
    b"error",
]
PIECES = [b"event: " + name + b"\n" for name in NAMES]
PIECES += [
    b"data: {",
    b"data:{",
    b"data: [DONE]",
    b"event: ",
    b": x",
    b'"delta":"a"',
    b".delta\ndata: {",
    b"}",
    b"\n",
    b"\n\n",
    b"\r",
    b"x",
]
LINE = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'


@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), min_size=1, max_size=3), st.booleans())
def test_what_passes_unread_is_whole_and_says_nothing_of_the_response(reads: list[list[bytes]], learned: bool) -> None:
    request = World().snapshot.parse(PATH, json.dumps({**HI, "stream": True}).encode(), {})
    reader = request.api.reader(request)
    if learned:
        assert reader.plain(LINE) == 1
    for pieces in reads:
        data = b"".join(pieces)
        count = reader.plain(data)
        if not count:
            continue
        assert data.endswith(b"\n\n") and b"\r" not in data and data.count(b"\n\n") == count
        for event in data.split(b"\n\n")[:-1]:
            name, _, rest = event.partition(b"\n")
            assert name.count(b".") > 1 and rest.startswith(b"data: {") and b"\n" not in rest, event


@pytest.mark.parametrize("whole", [True, False])
def test_every_event_in_a_read_of_its_own_passes_as_it_is(whole: bool) -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    data = stream("hel", "lo", ' "quoted" ', "\r\n")
    for event in data.split(b"\n\n")[:-1] if whole else data.splitlines(keepends=True):
        engine.body(event + b"\n\n" if whole else event)
    engine.end()
    assert client.body == data and client.complete and made.outcome.completion_tokens == 3 and made.outcome.outcome == "ok"


def test_a_response_that_is_told_under_the_name_of_a_piece_does_not_end_the_stream() -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    engine.body(numbered(*begun(), *spoken("hel")))
    engine.body(
        b"event: response.output_text.delta\ndata: %b\n\n" % json.dumps({"type": "response.completed", "response": response()}).encode()
    )
    engine.end()
    assert b'"type":"response.failed"' in client.body and made.outcome.outcome == "failed"


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
    assert "".join(event["delta"] for event in found if event["type"].endswith("text.delta")) == "".join(pieces)
    assert found[-1]["response"]["output"][0]["content"] == said("".join(pieces))["content"]


def test_numbers_go_on_behind_those_that_were_written_beforehand() -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    for _ in range(1100):
        engine.body(chunk("a"))
    engine.body(chunk(finish="stop") + USAGE + DONE).end()
    assert events(client)[-1]["response"]["output"][0]["content"][0]["text"] == "a" * 1100


def test_a_shape_counts_only_while_its_text_is_open() -> None:
    request = World().snapshot.parse(PATH, json.dumps({**HI, "stream": True}).encode(), {})
    reader = ChatReader(request)
    for _ in range(3):
        reader.read(chunk("a"))
    assert reader.translated(chunk("a")) and not reader.translated(chunk("a") + chunk("b"))
    reader.read(chunk(finish="stop") + DONE)
    assert not reader.translated(chunk("a"))


def test_a_shape_is_not_learned_from_a_chunk_that_begins_no_text() -> None:
    reader = ChatReader(World().snapshot.parse(PATH, json.dumps({**HI, "stream": True}).encode(), {}))
    assert reader.read(chunk("", role="assistant")) and not reader.translated(chunk("a", role="assistant"))
    assert b"response.output_item.added" in reader.read(chunk("a", role="assistant"))


@pytest.mark.parametrize("end", [DONE, b""])
def test_a_chat_that_does_not_say_why_it_ended_is_a_response_that_failed(end: bytes) -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    made.call.head(SSE_HEAD).body(chunk("hel") + end).end()
    found = events(client)
    assert [event["type"] for event in found[-2:]] == ["error", "response.failed"] and made.outcome.outcome == "failed"
    assert [event["delta"] for event in found if event["type"] == "response.output_text.delta"] == ["hel"]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.parametrize("identity", ['chatcmpl-"x', "chatcmpl-a\n\ndata: b", "é\\"])
def test_an_engines_identifiers_are_written_as_json_writes_them(identity: str) -> None:
    made = world(False)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    for data in (chunk("a"), chunk("b"), chunk("c"), chunk(finish="stop"), DONE):
        engine.body(data.replace(b'"id": "c"', b'"id": ' + json.dumps(identity).encode()))
    engine.end()
    found = events(client)
    assert found[-1]["response"]["output"][0]["id"] == f"msg_{identity.removeprefix('chatcmpl-')}_0"
    assert {event["item_id"] for event in found if "item_id" in event} == {found[-1]["response"]["output"][0]["id"]}


@pytest.mark.parametrize("native", [True, False])
def test_nothing_follows_the_end(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    whole, late = (stream("hello"), LINE) if native else (chunk("hello") + chunk(finish="stop") + DONE, chunk("late"))
    engine.body(whole[:40]).body(whole[40:])
    ended = client.body
    assert b"response.completed" in ended
    engine.body(DONE)
    assert not engine.cancelled, "some engines send that too"
    engine.body(late)
    assert client.body == ended and client.complete and engine.cancelled and made.outcome.outcome == "ok"


REFUSED = "so vermilion"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.created", "response": response(id=f"resp_{REFUSED}", status="in_progress")},
        {"type": f"response.{REFUSED}.in_progress", **WHERE},
        {"type": f"response.{REFUSED}"},
        {"id": REFUSED},
    ],
    ids=["identifier", "progress", "kind", "translated"],
)
def test_nothing_that_guardrails_have_not_read_is_said_of_a_response_that_fails(event: dict[str, Any]) -> None:
    native = "type" in event
    made = world(native, response=[Guarded(DenyList("words", PhraseSet([REFUSED]), mask=False), False, lambda *event: None)])
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    if native:
        engine.body(numbered(*([] if "response" in event else [*begun(), *spoken("hel")]), event))
    else:
        engine.body(chunk("a").replace(b'"id": "c"', b'"id": ' + json.dumps(REFUSED).encode()))
    engine.end()
    assert b'"type":"response.failed"' in client.body and REFUSED.encode() not in client.body
