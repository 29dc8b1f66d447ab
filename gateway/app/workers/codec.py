"""The feed's bytes: frames and what is in them. Pure: no socket, no loop.

A frame is four bytes with the length of the rest (big-endian), then a MessagePack array: what it is, a number, the message's kind, the
message. Its kind is looked up before its message is decoded, so that a kind of another release can be told from garbage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from gateway.core.errors import GatehouseError
from gateway.core.messages import Message
from gateway.core.secret import Secret, secret_hook

MAX_FRAME: Final = 64 * 1024 * 1024
"""Bytes of the largest frame."""
HEAD: Final = 4
TELL: Final = 0
CHANGE: Final = 1
"""A numbered message that the receiver acknowledges once it is in force."""
ACK: Final = 2
"""`id`: the change up to which everything is in force."""
ASK: Final = 3
ANSWER: Final = 4
REFUSAL: Final = 5
"""An answer that is an error; its message is a `Refusal`."""


class FeedError(GatehouseError):
    """What came over the feed is no frame or no message: the feed cannot go on."""

    status = 503
    type = "overloaded_error"
    default_code = "overloaded"


class UnknownKind(FeedError):
    """A message of a kind that this release does not know."""


class Refusal(Message, frozen=True):
    """A GatehouseError on its way to the process that asked."""

    message: str
    type: str
    code: str
    status: int
    retry_after: float | None = None
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Frame(Struct, frozen=True, array_like=True):
    """id: the number of a change, or of an ask in its own answer. body: the message, not yet decoded."""

    what: Literal[0, 1, 2, 3, 4, 5]
    id: int = 0
    kind: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


class FrameReader:
    """Cuts what is read into frames, however it was split. limit: bytes of the largest one."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._needed = HEAD
        """Bytes until there is more to find."""

    @property
    def rest(self) -> bytes:
        """The frame that is not whole yet, as far as it has come."""
        return bytes(self._buffer)

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, without their lengths. Raises FeedError for one that is too long, before it is gathered."""
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._needed:
            return []
        found: list[bytes] = []
        start = 0
        while True:
            self._needed = HEAD
            if len(buffer) - start >= HEAD:
                length = int.from_bytes(buffer[start : start + HEAD], "big")
                if length > self._limit:
                    raise FeedError(f"a frame of {length} bytes came over the feed; {self._limit} are allowed")
                self._needed = HEAD + length
            if len(buffer) - start < self._needed:
                break
            with memoryview(buffer) as whole:  # a configuration has tens of megabytes: copied once
                found.append(bytes(whole[start + HEAD : start + self._needed]))
            start += self._needed
        del buffer[:start]
        return found


class Codec:
    """Encodes and decodes the messages of these types. Raises ValueError for two of one name."""

    def __init__(self, types: Iterable[type[Message]], limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._encoder = msgspec.msgpack.Encoder(enc_hook=revealed)
        self._frames = msgspec.msgpack.Decoder(Frame)
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        known: list[type[Message]] = [*types, Refusal]
        for kind in known:
            if kind.__name__ in self._decoders:
                raise ValueError(f"two kinds of message are named {kind.__name__}")
            self._decoders[kind.__name__] = msgspec.msgpack.Decoder(kind, dec_hook=secret_hook)

    def encode(self, what: Literal[0, 1, 2, 3, 4, 5], id: int = 0, message: Message | None = None) -> bytes:
        """One frame with its length. Raises FeedError for a message that is too large or cannot be encoded."""
        try:
            if message is None:
                frame = Frame(what, id)
            else:
                frame = Frame(what, id, type(message).__name__, msgspec.Raw(self._encoder.encode(message)))
            encoded = self._encoder.encode(frame)
        except (TypeError, NotImplementedError, OverflowError, msgspec.MsgspecError) as error:
            raise FeedError(f"a {type(message).__name__} cannot be sent over the feed: {error}") from None
        if len(encoded) > self._limit:
            raise FeedError(f"a {type(message).__name__} of {len(encoded)} bytes is too large for the feed; {self._limit} are allowed")
        return len(encoded).to_bytes(HEAD, "big") + encoded

    def frame(self, data: bytes) -> Frame:
        """Raises FeedError."""
        try:
            return self._frames.decode(data)
        except msgspec.MsgspecError as error:
            raise FeedError(f"what came over the feed is no frame: {error}") from None

    def message(self, frame: Frame) -> Message:
        """Raises UnknownKind, FeedError."""
        decoder = self._decoders.get(frame.kind)
        if decoder is None:
            raise UnknownKind(f"a message of the unknown kind {frame.kind[:64]!r} came over the feed")
        try:
            decoded: Message = decoder.decode(frame.body)
        except (msgspec.MsgspecError, NotImplementedError) as error:
            raise FeedError(f"a {frame.kind} that came over the feed cannot be read: {error}") from None
        return decoded


def revealed(value: object) -> str:
    """msgspec's `enc_hook`: on the feed, and only there, secrets are opened."""
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"a {type(value).__name__} is not sent over the feed")
