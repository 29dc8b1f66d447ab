"""Decodes JSON from elsewhere. msgspec does not only raise MsgspecError for it: bytes that are not UTF-8 raise UnicodeDecodeError, and a
few hundred kilobytes of `[` raise RecursionError. tests/test_decoding.py finds code that does not catch all of them."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from gateway.core.errors import EngineError

T = TypeVar("T")
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def answered(decoder: msgspec.json.Decoder[T], body: bytes, problem: str) -> T:
    """Decodes a server's answer. Raises EngineError with the problem and what is wrong with the body."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise EngineError(f"{problem}: {error}") from None
