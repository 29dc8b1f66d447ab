"""Which events of a stream must be read, and what fits the shape of those that need not be."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.core.types import ALLOW, Verdict
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.inspect import StreamTexts
from gateway.wire.openai import stream
from gateway.wire.openai.stream import OpenAiReader, decode_chunk, must_be_read


@given(st.lists(st.sampled_from([b'"usage":', b"{", b" ", b"null", b'"error":', b"\r", b"\n", b'"', b"usage", b":", b"text"]), max_size=8))
def test_what_must_be_read(parts: list[bytes]) -> None:
    data = b"".join(parts) + b"\n\n"
    assert must_be_read(data) == (re.search(rb'\r|"error"[ \t\n]*:|"usage"[ \t\n]*:(?![ \t\n]*null)', data) is not None)


PIECES = [
    b'"usage":',
    b'"usage"',
    b"{",
    b"}",
    b" ",
    b"null",
    b'"error":',
    b"\r",
    b"\n",
    b'"',
    b'\\"',
    b"usage",
    b"error",
    b":",
    b",",
    b"text",
]
PIECES += [b'content":"', b'content": "', b'"text":"', b"data: ", b"\n\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_fits_a_shape_is_one_event_that_need_not_be_read(learned: list[bytes], text: list[bytes]) -> None:
    event = b"".join(learned).replace(b"\n", b"") + b"\n\n"
    assume(not must_be_read(event))
    shape = OpenAiReader(False)
    shape.learn(event)
    assert not shape.fits(b"")
    for mark in stream.TEXT_BEGINS:
        for place in re.finditer(re.escape(mark), event):
            for end in range(place.end(), len(event)):
                other = event[: place.end()] + b"".join(text) + event[end:]
                if shape.fits(other):
                    assert not must_be_read(other)
                    assert other.find(b"\n") == len(other) - 2


def test_a_stream_without_a_shape_is_left_alone() -> None:
    shape = OpenAiReader(False)
    events = [b'data: {"id":"%d","content":"a","mark":"%d"}\n\n' % (n, n) for n in range(20)]
    for event in events:
        assert not shape.fits(event)
        shape.learn(event)
    learned = [event for event in events if shape.fits(event)]
    assert learned == [events[stream.MAX_MISSES - 1]]


@pytest.mark.parametrize("payload", [b"[DONE]", b"", b"{", b'{"choices":5}', b"[1]", b"\xff{", b'{"choices":[{"text":"\xff"}]}'])
def test_what_is_no_chunk(payload: bytes) -> None:
    assert decode_chunk(payload) is None


class Holding:
    """A matcher that holds the last two characters, and masks one word."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        text = self.held + text
        self.held = text[-2:]
        return text[:-2].replace("red", '"\n')

    def finish(self) -> str:
        rest, self.held = self.held, ""
        return rest


class Holder:
    """The guardrail."""

    name = "holder"

    def check(self, texts: Sequence[str]) -> Verdict:
        return ALLOW

    def stream(self) -> Holding:
        return Holding()


TEXTS = [
    b"a",
    b"red",
    b" ",
    b"r",
    b"e",
    b"d",
    b"\\n",
    b'\\"',
    b"\\u0041",
    b"\x01",
    b"\x7f",
    b"\xc3\xa9",
    b"\xc3",
    b"\xe2\x80\x8b",
    b'"',
    b"\\",
    b'","x":"',
]
FRAMES = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}]}\n\n',
    b'data: {"id":"c","choices":[{"index": 0, "delta": {"content": "%b"}, "finish_reason": null}]}\n\n',
    b'data: {"id":"c","choices":[{"index":1,"delta":{"reasoning_content":"%b"}}],"usage":null}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b","further":"x y"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b","content":"b"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"b","content":"%b"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":{"content":["a"]}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"text":"%b"}]}\n\n',
    b'data: {"id":"c","x":"content\\":\\"","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":"0","delta":{"content":"%b"}}]}\n\n',
    b': {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"token_ids":[7]}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b","codes":[[7.5]]}}]}\n\n',
]


def passed(events: list[bytes], unparsed: bool) -> tuple[list[Any], int]:
    """What a client reads of a stream that guardrails read, and how many events were not parsed."""
    guardrail = Guarded(Holder(), False, lambda *event: None)
    texts = StreamTexts([guardrail], [guardrail.note("response", lambda body: "")])
    reader, out, count = OpenAiReader(False), b"", 0
    try:
        for event in events:
            said = reader.spoken(event, texts) if unparsed else b""
            count += said != b""
            out += said or reader.inspected(event[:-2], texts)
        out += reader.rest(texts)
    except EngineError:
        out += b"data: false\n\n"
    return [json.loads(event[6:]) for event in out.split(b"\n\n")[:-1]], count


@given(st.lists(st.tuples(st.sampled_from(FRAMES), st.lists(st.sampled_from(TEXTS), max_size=3)), max_size=8))
def test_guardrails_pass_the_same_whether_events_are_parsed_or_not(parts: list[tuple[bytes, list[bytes]]]) -> None:
    events = [frame % b"".join(texts) for frame, texts in parts]
    assert passed(events, True)[0] == passed(events, False)[0]


@pytest.mark.parametrize("frame", FRAMES[:3] + FRAMES[8:9])
def test_events_that_differ_only_in_their_text_are_parsed_once(frame: bytes) -> None:
    events = [frame % text for text in (b"a", b" red", b"\xc3\xa9t", b"\\n", b" c")]
    found, count = passed(events, True)
    assert count == 3  # all but the first, and the one with an escape
    assert found == passed(events, False)[0]


@pytest.mark.parametrize("frame", FRAMES[3:8] + FRAMES[10:])
def test_events_with_more_than_a_text_are_always_parsed(frame: bytes) -> None:
    assert passed([frame % text for text in (b"a", b"b", b"c")], True)[1] == 0


@pytest.mark.parametrize("frame", FRAMES[12:])
def test_token_identifiers_do_not_carry_what_is_held(frame: bytes) -> None:
    found, _ = passed([frame % b"a", frame % b"b"], True)
    assert "7" not in json.dumps(found) and "a" in json.dumps(found)
