"""The feed's bytes: frames survive every way of splitting them, garbage is refused, messages come out as they went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.configuration.plugins import OURS
from gateway.app.workers import codec, messages
from gateway.app.workers.codec import Codec, FeedError, FrameReader, UnknownKind
from gateway.app.workers.settings import NOTHING, Received, SettingsPart, difference, without_lists
from gateway.config.load import parse
from gateway.core.messages import Message
from gateway.core.secret import Secret
from gateway.core.slices import at_once
from gateway.core.specs import ConfigSpec
from gateway.core.storage import KeyRecord

ROOT = Path(__file__).parents[5]
CODEC = Codec(messages.MESSAGES)


class Plain(Message, frozen=True):
    number: int
    text: str = ""
    more: dict[str, Any] | None = None


def there_and_back(message: Message, codec_: Codec = CODEC) -> Message:
    (part,) = FrameReader().feed(codec_.encode(codec.TELL, 0, message))
    return codec_.message(codec_.frame(part))


# --- frames


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_found_however_they_are_split(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    found = [frame for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True) for frame in reader.feed(stream[start:end])]
    assert found == parts
    assert reader.pending == 0


def test_a_frame_that_is_not_whole_waits() -> None:
    reader = FrameReader()
    assert reader.feed(b"\0\0\0\3ab") == []
    assert reader.pending == 6
    assert reader.feed(b"c\0") == [b"abc"]


def test_a_frame_that_is_too_long_is_refused_before_it_is_gathered() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(b"\0\0\0\x0a") == []
    with pytest.raises(FeedError, match="11 bytes"):
        FrameReader(limit=10).feed(b"\0\0\0\x0b")


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(data: bytes) -> None:
    reader = FrameReader(limit=1000)
    try:
        for part in reader.feed(data):
            CODEC.message(CODEC.frame(part))
    except FeedError:
        pass


@given(st.binary(max_size=60), st.sampled_from([kind.__name__ for kind in messages.MESSAGES]))
def test_a_message_of_garbage_is_an_error_and_nothing_else(data: bytes, kind: str) -> None:
    frame = codec.Frame(codec.TELL, 0, kind, msgspec.Raw(data))
    try:
        CODEC.message(frame)
    except FeedError:
        pass


# --- messages


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.text(max_size=40), st.dictionaries(st.text(max_size=5), st.booleans(), max_size=4))
def test_a_message_comes_out_as_it_went_in(number: int, text: str, more: dict[str, Any]) -> None:
    message = Plain(number, text, more)
    assert there_and_back(message, Codec([Plain])) == message


def test_kind_and_number_travel_with_a_message() -> None:
    (part,) = FrameReader().feed(CODEC.encode(codec.ASK, 77, messages.FindKey(b"digest", Secret("the-key"))))
    frame = CODEC.frame(part)
    assert (frame.what, frame.id, frame.kind) == (codec.ASK, 77, "FindKey")
    found = CODEC.message(frame)
    assert isinstance(found, messages.FindKey)
    assert found.key.reveal() == "the-key"
    assert "the-key" not in repr(found)


def test_a_number_alone_is_a_frame() -> None:
    (part,) = FrameReader().feed(CODEC.encode(codec.ACK, 5))
    assert (CODEC.frame(part).what, CODEC.frame(part).id) == (codec.ACK, 5)


def test_a_kind_that_is_not_known_is_told_from_garbage() -> None:
    (part,) = FrameReader().feed(Codec([Plain]).encode(codec.TELL, 0, Plain(1)))
    with pytest.raises(UnknownKind, match="Plain"):
        CODEC.message(CODEC.frame(part))


def test_what_cannot_be_sent_is_refused_with_its_kind() -> None:
    for wrong in ({"set": object()}, {"large": 1 << 70}):
        with pytest.raises(FeedError, match="Plain"):
            Codec([Plain]).encode(codec.TELL, 0, Plain(1, more=wrong))
    with pytest.raises(FeedError, match="too large"):
        Codec([Plain], limit=100).encode(codec.TELL, 0, Plain(1, "x" * 100))


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Plain"):
        Codec([Plain, Plain])


def test_the_kinds_have_names_of_their_own() -> None:
    assert len({kind.__name__ for kind in messages.MESSAGES}) == len(messages.MESSAGES)


def test_a_record_of_a_key_comes_out_as_it_went_in() -> None:
    record = KeyRecord(
        id="key-1", tenant="acme", prefix="gh-", version=3, created=1.5, updated=2.5, actor="admin", models=("a*",), cidrs=("10.0.0.0/8",)
    )
    assert there_and_back(messages.KeyFound(record)) == messages.KeyFound(record)
    assert there_and_back(messages.KeyFound(None)) == messages.KeyFound(None)


# --- configurations


def example_names() -> list[str]:
    return sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", example_names())
def test_every_example_configuration_comes_out_as_it_went_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Anything(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            return True

        def get(self, key: str, default: Any = None) -> Any:
            return None if key.startswith("GATEHOUSE__") else self[key]

        def __getitem__(self, key: str) -> str:
            return f"the-value-of-{key}-is-longer-than-thirty-two"

    path = ROOT / "configs" / name
    spec = parse(path.read_text(), file=str(path), environ=Anything(), schemas=OURS.schemas())
    state = there_and_back(
        messages.State(number=1, worker="gw-1", replica="gw", count=2, base="/", salts=Secret("00"), spec=spec, version=9)
    )
    assert isinstance(state, messages.State) and isinstance(state.spec, ConfigSpec)
    assert state.spec == spec
    received, parts = Received(), list[SettingsPart]()
    at_once(difference(NOTHING, spec, parts))
    for part in parts:
        told = there_and_back(part)
        assert isinstance(told, SettingsPart)
        received.part(told)
    assert at_once(received.composed(received.take(without_lists(spec), 1), {})) == spec
