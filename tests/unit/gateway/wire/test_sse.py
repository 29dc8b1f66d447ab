"""Events of a stream, however TCP cuts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.wire.sse import DONE, KEEP_ALIVE, EventSplitter, comment, complete, data_of, event

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.one_of(
    st.binary(max_size=12).map(lambda b: b"data: " + b.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from(
        [b"data", b"data:", b"data:x", b": comment", b"event: ping", b"id: 7", b"", b"", b"retry: 10", b"\xef\xbb\xbfdata: late"]
    ),
)
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=24).map(lambda pairs: b"".join(line + end for line, end in pairs))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({p % (len(stream) + 1) for p in places})
    return [stream[a:b] for a, b in zip([0, *marks], [*marks, len(stream)], strict=True)]


def split(reads: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [e for read in reads for e in splitter.feed(read)]
    events += splitter.finish()
    return events, splitter.carry


def reference(stream: bytes) -> list[bytes]:
    """The WHATWG algorithm on the whole stream, line by line: the data of every event that is dispatched."""
    found: list[bytes] = []
    data: list[bytes] = []
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in text.split(b"\n")[:-1]:
        if not line:
            if data:
                found.append(b"\n".join(data))
            data = []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return found


@given(STREAMS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_split_gives_the_same_events(stream: bytes, bom: bool, places: list[int]) -> None:
    stream = b"\xef\xbb\xbf" + stream if bom else stream
    whole = split([stream])
    assert split(cut(stream, places)) == whole
    assert split([stream[i : i + 1] for i in range(len(stream))]) == whole


@given(STREAMS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_nothing_is_lost_or_added(stream: bytes, bom: bool, places: list[int]) -> None:
    events, carry = split(cut(b"\xef\xbb\xbf" + stream if bom else stream, places))
    assert b"".join(events) + carry == (stream if bom else stream.removeprefix(b"\xef\xbb\xbf"))


@given(STREAMS)
def test_events_carry_what_the_standard_says(stream: bytes) -> None:
    events, _ = split([stream])
    assert [d for d in map(data_of, events) if d] == [d for d in reference(stream) if d]


@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=8))
def test_complete_forwards_only_whole_events_and_everything_in_the_end(stream: bytes, places: list[int]) -> None:
    carry, forwarded = b"", []
    for read in cut(stream, places):
        ready, carry = complete(carry + read)
        forwarded.append(ready)
    assert b"".join(forwarded) + carry == stream
    for ready in forwarded:  # beyond the last event there may be further blank lines, which mean nothing
        assert split([ready])[1].strip(b"\r\n") == b""


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"])
def test_complete_keeps_the_beginning_of_the_next_event(end: bytes) -> None:
    assert complete(b"data: a" + end) == (b"data: a" + end, b"")
    assert complete(b"data: a" + end + b"data: b" + end + b"data: c") == (b"data: a" + end + b"data: b" + end, b"data: c")
    assert complete(b"data: a") == (b"", b"data: a")
    assert complete(b"data: a\r\n") == (b"", b"data: a\r\n")
    assert complete(b"") == (b"", b"")


def test_one_crlf_is_no_blank_line() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\r") == []
    assert splitter.feed(b"\n") == [b"data: a\r\n\r\n"]


def test_an_event_that_ends_with_cr_is_whole_at_the_end_of_the_stream() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r\rdata: b\r\r") == [b"data: a\r\r"]
    assert splitter.finish() == [b"data: b\r\r"]
    assert splitter.finish() == []


def test_a_stream_that_was_cut_off_leaves_its_half_event_in_the_carry() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"a":1}\n\ndata: {"b"') == [b'data: {"a":1}\n\n']
    assert splitter.finish() == []
    assert splitter.carry == b'data: {"b"'


def test_a_byte_order_mark_at_the_start_is_removed_even_in_pieces() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"\xef") == []
    assert splitter.feed(b"\xbb") == []
    assert splitter.feed(b"\xbfdata: a\n\n") == [b"data: a\n\n"]
    assert splitter.feed(b"\xef\xbb\xbfdata: b\n\n") == [b"\xef\xbb\xbfdata: b\n\n"]


@given(st.integers(0, 12), st.lists(st.integers(0, 10_000), max_size=6))
def test_an_event_over_the_limit_is_an_error_however_it_arrives(extra: int, places: list[int]) -> None:
    too_large = b"data: " + b"x" * (extra + 3) + b"\n\n"
    splitter = EventSplitter(limit=10)
    with pytest.raises(EngineError, match="more than 10 bytes"):
        for read in cut(b"data: ok\n\n" + too_large, places):
            splitter.feed(read)
    exact = EventSplitter(limit=10)
    assert [e for read in cut(b"data: ok\n\n" * 3, places) for e in exact.feed(read)] == [b"data: ok\n\n"] * 3


def test_complete_bounds_what_is_carried() -> None:
    with pytest.raises(EngineError, match="more than 8 bytes"):
        complete(b"data: a\n\ndata: bcd", limit=8)


def test_tiny_reads_of_a_large_event_cost_linear_time() -> None:
    splitter = EventSplitter()
    payload = b"data: " + b"y" * 200_000 + b"\n\n"
    events = [e for i in range(0, len(payload), 7) for e in splitter.feed(payload[i : i + 7])]
    assert events == [payload]


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
        (DONE, b"[DONE]"),
        (KEEP_ALIVE, b""),
    ],
)
def test_data_of(raw: bytes, data: bytes) -> None:
    assert data_of(raw) == data


@given(st.binary(max_size=40))
def test_what_is_written_is_read_again(data: bytes) -> None:
    written = event(data, b"message")
    events, carry = split([written])
    assert (events, carry) == ([written], b"")
    assert data_of(written) == data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def test_comments_stay_on_one_line() -> None:
    assert comment(b"a\r\ndata: injected\n\n") == b": a  data: injected  \n\n"
    assert event(b"x") == b"data: x\n\n"
