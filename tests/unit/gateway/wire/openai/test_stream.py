"""Which events of a stream must be read, and what fits the shape of those that need not be."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
