"""Which events of a message's stream are forwarded unread, and that the others are not; chunks that become events without being parsed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.core.wire import Path, TextFilter
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


# --- what guardrails read


class Held(TextFilter):
    """Holds every text until its end, as a guardrail may."""

    def __init__(self) -> None:
        self.texts: dict[tuple[Any, Path], str] = {}
        self.alone: list[str] = []

    def feed(self, choice: Any, path: Path, text: str) -> str:
        self.texts[(choice, path)] = self.texts.get((choice, path), "") + text
        return ""

    def whole(self, text: str) -> str:
        self.alone.append(text)
        return text

    def finish(self, choice: Any) -> list[tuple[Path, str]]:
        return [(path, self.texts.pop((index, path))) for index, path in list(self.texts) if index == choice]

    def finish_all(self) -> list[tuple[Any, Path, str]]:
        return [(index, path, self.texts.pop((index, path))) for index, path in list(self.texts)]


def inspected(texts: Held, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    reader = MessagesReader()
    pieces = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    given = [*pieces, {"type": "content_block_stop", "index": 0}]
    found = b"".join([reader.inspected(b"data: " + msgspec.json.encode(one), texts) for one in given])
    said = [msgspec.json.decode(line[6:]) for line in found.split(b"\n") if line.startswith(b"data: ")]
    return [one["delta"] for one in said if one["type"] == "content_block_delta"]


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        (
            {"type": "new_delta", "saying": "red "},
            {"type": "new_delta", "saying": "falcon"},
            {"type": "new_delta", "saying": "red falcon"},
        ),
        ({"type": "new_delta", "a": {"b": "x"}}, {"type": "new_delta", "a": {"b": "y"}}, {"type": "new_delta", "a": {"b": "xy"}}),
        ({"type": "text_delta", "text": "a"}, {"type": "text_delta", "text": "b"}, {"type": "text_delta", "text": "ab"}),
    ],
)
def test_pieces_of_an_unknown_type_are_read_as_one_text_too(first: Any, second: Any, whole: Any) -> None:
    assert inspected(Held(), first, second) == [whole]


def test_citations_are_whole_by_themselves() -> None:
    texts = Held()
    cited = [{"type": "citations_delta", "citation": {"type": "char_location", "cited_text": text}} for text in ("one", "two")]
    assert inspected(texts, *cited) == cited and [one for one in texts.alone if one in ("one", "two")] == ["one", "two"]


def test_a_block_has_one_signature() -> None:
    """Clients keep the last one, or put them together."""
    one, other = ({"type": "signature_delta", "signature": text} for text in ("c2lnbmVk", "YW5ldw=="))
    assert inspected(Held(), one, {"type": "signature_delta", "signature": ""}, one) == [one, {**one, "signature": ""}, one]
    with pytest.raises(EngineError, match="signature"):
        inspected(Held(), one, other)


@pytest.mark.parametrize("delta", [None, {}, {"type": None}, {"type": []}, {"type": {}}])
def test_a_piece_without_a_type_is_none(delta: Any) -> None:
    with pytest.raises(EngineError):
        inspected(Held(), delta)


@pytest.mark.parametrize("end", [b'{"type":"message_stop"}', b'{"type": "message_stop"}\n', b'{ "type":"message_stop", "x": 1 }\r\n'])
def test_an_end_without_its_empty_line_is_an_end(end: bytes) -> None:
    made = world(True)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    whole = native_events(*text_block("hello"))
    engine.body(whole[: whole.index(b"event: message_stop")] + b"event: message_stop\ndata: " + end)
    engine.end()
    assert [event["type"] for event in events(client)][-2:] == ["message_delta", "message_stop"] and made.outcome.outcome == "ok"


@pytest.mark.parametrize("native", [True, False])
def test_nothing_follows_the_end(native: bool) -> None:
    made = world(native)
    client = ask(made, {**HI, "stream": True})
    engine = made.call.head(SSE_HEAD)
    whole, late = (native_events(*text_block("hello")), LINE) if native else (chunk("hello") + chunk(finish="stop") + DONE, chunk("late"))
    engine.body(whole + late)
    assert events(client)[-1] == {"type": "message_stop"}
    assert client.complete and engine.cancelled and made.outcome.outcome == "ok"
