"""Chunks of chat completions, as the streams of other formats read them."""

from __future__ import annotations

import msgspec

from gateway.core.errors import EngineError
from gateway.wire.chats import CHAT, ChatAnswer


def read_chunk(payload: bytes) -> ChatAnswer:
    """The chunk that an event's data is. Raises EngineError for other data, and for an engine that says it failed."""
    try:
        chunk: ChatAnswer = CHAT.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine sent an event that is not a chunk of an answer.") from None
    if chunk.error is not msgspec.UNSET and bytes(chunk.error) != b"null":
        raise EngineError("The engine failed while it was answering.")
    return chunk


def disordered() -> EngineError:
    return EngineError("The engine called tools in an order that cannot be sent as events.")


def unended() -> EngineError:
    """What ends a stream whose chunks never had a finish reason: other formats have to say why an answer ended, and nobody has."""
    return EngineError("The engine's stream ended before its answer was complete: it sent no finish_reason.")
