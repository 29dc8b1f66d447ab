"""What data an event of a stream carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import begins_stream, data_of

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.one_of(
    st.binary(max_size=12).map(lambda b: b"data: " + b.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from([b"data", b"data:", b"data:x", b": comment", b"event: ping", b"id: 7", b"retry: 10", b"\xef\xbb\xbfdata: late"]),
)


def reference(lines: list[bytes]) -> bytes:
    """The WHATWG algorithm, line by line."""
    data = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return b"\n".join(data)


@given(st.lists(LINES, min_size=1, max_size=12), ENDS)
def test_an_event_carries_what_the_standard_says(lines: list[bytes], end: bytes) -> None:
    event = b"".join(line + end for line in lines)
    assert data_of(event + end) == reference(lines)
    assert data_of(event) == reference(lines), "without the blank line too"


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a \n\n", b" a "),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata\r\r", b"a\n"),
        (b": keep-alive\n\n", b""),
        (b"event: e\ndata: a\nid: 1\n\n", b"a"),
        (b"\ndata: a\n\n", b"a"),
        (b"database: a\n\n", b""),
        (b"data: a:b\n\n", b"a:b"),
        (b"data: [DONE]\n\n", b"[DONE]"),
    ],
)
def test_data_of(raw: bytes, data: bytes) -> None:
    assert data_of(raw) == data


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        *(
            (body, True)
            for body in (b"data:", b"data: {", b"event: x", b": ok", b"id:1", b"retry: 5", b"\r\n\ndata: x", b"\xef\xbb\xbfdata: x")
        ),
        *((body, None) for body in (b"", b"\n\r\n", b"d", b"data", b"even", b"\xef", b"\xef\xbb\xbf", b"\xef\xbb\xbf\nda")),
        *(
            (body, False)
            for body in (b"{", b" {", b"[", b"datax", b" data:", b"<html>", b"Data:", b"\xef\xbb{", b"\x1f\x8b", b"0", b"null")
        ),
    ],
)
def test_whether_a_body_begins_like_a_stream(body: bytes, expected: bool | None) -> None:
    assert begins_stream(body) is expected


@given(st.lists(LINES.filter(lambda line: b":" in line), min_size=1, max_size=4), ENDS)
def test_a_stream_is_known_at_its_beginning_and_never_taken_for_another_body(lines: list[bytes], end: bytes) -> None:
    body = b"".join(line + end for line in lines)
    found = [begins_stream(body[:size]) for size in range(len(body) + 1)]
    assert found[-1] is True and False not in found
