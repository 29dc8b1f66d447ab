"""The pipeline's own answers, read back however they are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.exchange import LAST_CHUNK, chunked
from gateway.server.answers import AnswerReader


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=6))
def test_a_body_with_a_length(body: bytes, places: list[int]) -> None:
    reader = AnswerReader()
    found: list[bytes] = []
    answer = b"HTTP/1.1 429 Too Many Requests\r\nx-request-id: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for piece in cut(answer, places):
        found += reader.feed(piece)
    assert (reader.status, reader.streams, reader.ended, reader.headers[b"x-request-id"]) == (429, False, True, b"a")
    assert b"".join(found) == body


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), st.lists(st.integers(0, 1000), max_size=6), st.booleans())
def test_a_body_in_chunks(parts: list[bytes], places: list[int], trailer: bool) -> None:
    """Each chunk comes as one part, as the relays write whole events into chunks."""
    reader = AnswerReader()
    found: list[bytes] = []
    last = b"0\r\nx-gatehouse-cost: 1 USD\r\n\r\n" if trailer else LAST_CHUNK
    for piece in cut(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(map(chunked, parts)) + last, places):
        found += reader.feed(piece)
    assert (reader.status, reader.streams, reader.ended, found) == (200, True, True, parts)


def test_an_answer_without_a_body_is_over_with_its_head() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") == [] and reader.ended
