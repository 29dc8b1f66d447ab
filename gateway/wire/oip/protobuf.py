"""Protocol Buffers on bytes (https://protobuf.dev/programming-guides/encoding), as far as the messages of gRPC here need it. Pure.

Fields that carry tensors stay views into the message: nothing is decoded into objects, and nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gateway.core.errors import RequestError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_FIELDS: Final = 65_536
"""Fields of one message, its parts not counted."""
Value = int | memoryview


def malformed(what: str) -> RequestError:
    return RequestError(f"The message is not the protocol's: {what}.", code="invalid_message")


def fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field, in order: an int for VARINT, else the bytes. Raises RequestError."""
    place, end, count = 0, len(data), 0
    while place < end:
        count += 1
        if count > MAX_FIELDS:
            raise malformed(f"more than {MAX_FIELDS} fields")
        tag, place = varint(data, place)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise malformed(f"a field of number {number}")
        if kind == VARINT:
            value, place = varint(data, place)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, place = varint(data, place)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise malformed(f"a field of wire type {kind}")
        if size > end - place:
            raise malformed(f"field {number} says that it has {size} bytes, and {end - place} are left")
        yield number, kind, data[place : place + size]
        place += size


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of up to 64 bits, and the place behind it. Raises RequestError."""
    found = shift = 0
    while True:
        if place >= len(data):
            raise malformed("it ends within a number")
        byte = data[place]
        place += 1
        found |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise malformed("a number has more than 64 bits")
    return found & 0xFFFF_FFFF_FFFF_FFFF, place


def signed(value: int) -> int:
    """An int64 as it was meant."""
    return value - (1 << 64) if value >> 63 else value


def text(kind: int, value: Value, what: str) -> str:
    """A string field. Raises RequestError."""
    if not isinstance(value, memoryview) or kind != LENGTH:
        raise malformed(f"{what} is not a string")
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise malformed(f"{what} is not UTF-8") from None


def part(kind: int, value: Value, what: str) -> memoryview:
    """A message or bytes within a message. Raises RequestError."""
    if not isinstance(value, memoryview) or kind != LENGTH:
        raise malformed(f"{what} is not a message")
    return value


def int64s(kind: int, value: Value, most: int, what: str) -> list[int]:
    """The numbers of one occurrence of a repeated int64, packed or not. Raises RequestError."""
    if isinstance(value, int):
        return [signed(value)]
    found: list[int] = []
    place = 0
    while place < len(value):
        number, place = varint(value, place)
        found.append(signed(number))
        if len(found) > most:
            raise malformed(f"{what} has more than {most} numbers")
    return found


def double(value: Value) -> float:
    """Raises RequestError."""
    if not isinstance(value, memoryview) or len(value) != 8:
        raise malformed("a parameter is not a number")
    found: float = struct.unpack("<d", value)[0]
    return found


# --- writing


def encoded(number: int) -> bytes:
    """A varint."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def tag(number: int, kind: int) -> bytes:
    return encoded(number << 3 | kind)


def field(number: int, data: bytes | str) -> bytes:
    """A string, bytes or a message."""
    if isinstance(data, str):
        data = data.encode()
    return tag(number, LENGTH) + encoded(len(data)) + data


def integer(number: int, value: int) -> bytes:
    return tag(number, VARINT) + encoded(value)


def packed(number: int, values: list[int] | tuple[int, ...]) -> bytes:
    return field(number, b"".join([encoded(value) for value in values])) if values else b""
