"""The protobuf wire format (Protocol Buffers encoding guide) over a view of a file: nothing is copied, every length is checked."""

from __future__ import annotations

from collections.abc import Iterator

MAX_VARINT_BYTES = 10
Value = int | memoryview


class Broken(ValueError):
    """The bytes are not a protobuf of this kind."""


class Bound:
    """How many fields may still be read: a file of megabytes may consist of nothing else."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = self.left = most


def fields(view: memoryview, what: str, bound: Bound | None = None) -> Iterator[tuple[int, Value]]:
    """(field number, value) of a message: an int for varints and fixed widths, a view for length-delimited fields. Raises Broken, as do all
    functions here; `what` names the message in it. bound: counts the fields."""
    position, end = 0, len(view)
    while position < end:
        if bound is not None:
            bound.left -= 1
            if bound.left < 0:
                raise Broken(f"it has more than {bound.most} fields")
        if (key := view[position]) < 0x80:  # the usual case, without a call
            position += 1
        else:
            key, position = varint(view, position, what)
        field, kind = key >> 3, key & 7
        if not field:
            raise Broken(f"field number 0 at byte {position} of {what}")
        if kind == 0:
            plain, position = varint(view, position, what)
            yield field, plain
            continue
        if kind == 2:
            if position < end and (size := view[position]) < 0x80:
                position += 1
            else:
                size, position = varint(view, position, what)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Broken(f"wire type {kind} at byte {position} of {what}")
        if size > end - position:
            raise Broken(f"field {field} of {what} claims {size} bytes where {end - position} are left")
        part = view[position : position + size]
        position += size
        yield field, part if kind == 2 else int.from_bytes(part, "little")


def varint(view: memoryview, position: int, what: str) -> tuple[int, int]:
    """A variable-length number at a position, and the position after it."""
    value = shift = 0
    for at in range(position, min(position + MAX_VARINT_BYTES, len(view))):
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise Broken(f"a number at byte {position} of {what} does not end")


def varints(view: memoryview) -> Iterator[int]:
    """Packed variable-length numbers."""
    position = 0
    while position < len(view):
        found, position = varint(view, position, "packed numbers")
        yield found


def number(value: Value, what: str) -> int:
    """The value as a number."""
    if not isinstance(value, int):
        raise Broken(f"{what} is not a number")
    return value


def message(value: Value, what: str) -> memoryview:
    """The value as the bytes of a message."""
    if isinstance(value, int):
        raise Broken(f"{what} is not a message")
    return value


def text(value: Value, what: str) -> str:
    """The value as a text."""
    try:
        return bytes(message(value, what)).decode()
    except UnicodeDecodeError:
        raise Broken(f"{what} is not UTF-8") from None
