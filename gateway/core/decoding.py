"""JSON that others wrote, and what msgspec raises for it. Not all of that is a MsgspecError: a text that is not UTF-8 raises
UnicodeDecodeError, and a few hundred kilobytes of `[` raise RecursionError. tests/test_decoding.py finds who forgets one."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from gateway.core.errors import EngineError

T = TypeVar("T")
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def answered(decoder: msgspec.json.Decoder[T], body: bytes, problem: str) -> T:
    """A server's answer. Raises EngineError: the problem, and what is wrong with the body."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise EngineError(f"{problem}: {error}") from None
