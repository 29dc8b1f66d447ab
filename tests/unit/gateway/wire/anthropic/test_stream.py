"""Which events of a message's stream are forwarded unread, and that the others are not; chunks that become events without being parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.anthropic.chat_stream import ChatReader
from gateway.wire.anthropic.stream import MessagesReader
from tests.unit.gateway.pipeline.world import DONE, SSE_HEAD, chunk
from tests.unit.gateway.wire.anthropic.test_api import HI, ask, events, native_events, text_block, world

NAMES = (b"content_block_delta", b"content_block_start", b"content_block_stop", b"message_delta", b"message_stop", b"error", b"ping")
PIECES = [b"event: " + name + b"\n" for name in NAMES]
PIECES += [b"data: {", b'"index":3', b'"text":"', b'"error"', b'"}}', b"event: ", b": x", b"}", b"\n", b"\n\n", b"\r", b"x", b","]
LINE = b'event: content_block_delta\ndata: {"index":0,"delta":{"text":"a"}}\n\n'


@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), min_size=1, max_size=3), st.booleans())
def test_what_passes_unread_is_whole_and_is_of_a_block(reads: list[list[bytes]], learned: bool) -> None:
    reader = MessagesReader()
    if learned:
        assert reader.plain(LINE) == 1
    for pieces in reads:
        data = b"".join(pieces)
        if count := reader.plain(data):
            assert data.endswith(b"\n\n") and b"\r" not in data and data.count(b"\n\n") == count
            assert all(event.startswith(b"event: content_block_") and event.count(b"\n") == 1 for event in data.split(b"\n\n")[:-1]), data


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_block_that_is_open_is_closed_however_its_start_came(size: int) -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    whole = native_events(*text_block("hel"), *text_block("lo", index=1)).split(b"\n\n")
    kept = [event + b"\n\n" for event in whole[:6]]  # up to the second block's text
    kept += [event + b"\n\n" for event in whole if event.startswith(b"event: message_delta")]
    for at in range(0, len(kept), size):
        engine.body(b"".join(kept[at : at + size]))
    engine.end()
    found = events(client)
    assert found[-2:] == [{"type": "content_block_stop", "index": 1}, {"type": "message_stop"}]


def test_a_shape_counts_only_while_its_text_is_open() -> None:
    reader = ChatReader()
    for _ in range(3):
        reader.read(chunk("a"))
    assert reader.translated(chunk("a")) and not reader.translated(chunk("a") + chunk("b"))
    reader.read(chunk(finish="stop") + DONE)
    assert not reader.translated(chunk("a"))


def test_a_shape_is_not_learned_from_a_chunk_that_begins_no_text() -> None:
    reader = ChatReader()
    assert reader.read(chunk("", role="assistant")) and not reader.translated(chunk("a", role="assistant"))
    assert b"content_block_start" in reader.read(chunk("a", role="assistant"))
