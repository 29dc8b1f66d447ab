"""Records as canonical JSON: ASCII only, every control character escaped, the same bytes for the same record.

Field order is the order of the types in gateway.core.types; keys inside `detail` are sorted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.audit.record import MAX_RECORD, Record
from gateway.core.secret import MASK, Secret

_MAX_TEXT: Final = 1024
_MAX_ITEMS: Final = 64
_MAX_DEPTH: Final = 6


def _foreign(value: Any) -> str:
    """Replaces an object that JSON cannot express by its type's name, never its contents."""
    return MASK if isinstance(value, Secret) else f"<{type(value).__name__}>"


encode_json: Final = msgspec.json.Encoder(order="deterministic", enc_hook=_foreign).encode
_CANNOT_ENCODE = (ValueError, TypeError, OverflowError, RecursionError)
_UNSAFE = re.compile(r"[^\x20-\x7e]")


def encode(record: Any, most: int = MAX_RECORD) -> bytes:
    """The record as one JSON object in ASCII without line breaks. Never fails because of what a caller put into it: text that is not valid
    Unicode is replaced, text that is too long is shortened, a `detail` that cannot be encoded is dropped, and the record says so. most:
    bytes, MAX_RECORD at most, above which it is shortened."""
    try:
        data = encode_json(record)
    except _CANNOT_ENCODE:
        data = _encode_shortened(record)
    if len(data) > most:
        data = _encode_shortened(record)
    if not data.isascii() or 127 in data:
        data = printable(data)
        if len(data) > most:
            data = printable(_encode_shortened(record))
    return data


def encode_all(records: Sequence[Record]) -> list[bytes]:
    """`encode` of each. The checks are made once for all of them, and one by one only when something is unusual."""
    try:
        encoded = [encode_json(record) for record in records]
    except _CANNOT_ENCODE:
        return [encode(record) for record in records]
    whole = b"".join(encoded)
    too_long = len(whole) > MAX_RECORD and max(map(len, encoded)) > MAX_RECORD
    if too_long or not whole.isascii() or 127 in whole:
        return [encode(record) for record in records]
    return encoded


def printable(data: bytes) -> bytes:
    """Escapes what is not printable ASCII. In JSON such characters occur only inside strings, where `\\uXXXX` means the same."""
    return _UNSAFE.sub(lambda match: _escape_one(match.group()), data.decode()).encode("ascii")


def _escape_one(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _encode_shortened(record: Any) -> bytes:
    fields = {name: _shorten(getattr(record, name), 0) for name in record.__struct_fields__}
    try:
        data = encode_json(type(record)(**fields))
        if len(data) <= MAX_RECORD // 6:
            return data
    except _CANNOT_ENCODE:
        pass
    if "detail" in fields:
        fields["detail"] = {"dropped": "too large or not encodable"}
    return encode_json(type(record)(**fields))


def _shorten(value: Any, depth: int) -> Any:
    """Bounds texts (to whole characters) and containers; integers beyond 64 bits become text."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"
    if value is None or isinstance(value, bool | float | msgspec.Raw):  # raw: encoded already, and bounded by whoever did
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else f"<int of {value.bit_length()} bits>"
    if depth >= _MAX_DEPTH:
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        return {str(_shorten(str(k), depth)): _shorten(v, depth + 1) for k, v in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shorten(v, depth + 1) for v in list(value)[:_MAX_ITEMS]]
    return _foreign(value)
