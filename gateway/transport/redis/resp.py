"""The protocol of Redis, without I/O: commands as bytes, and replies from bytes however they are cut (RESP2 and RESP3,
https://redis.io/docs/latest/develop/reference/protocol-spec/).

Why not hiredis: what is asked on the hot path has one bulk string as its reply, for a whole batch of requests. Parsing that costs this
module about two microseconds, however many requests there were.
"""

from __future__ import annotations

from typing import Any, Final

MOST_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of one bulk string, and of an incomplete reply."""
MOST_LINE: Final = 64 * 1024
MOST_ITEMS: Final = 1_000_000
"""The most items of one reply."""
MOST_DEPTH: Final = 16
_ITEMS_EACH: Final = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
"""How many values follow for each counted element, by the byte that an aggregate begins with."""


class NotRedis(Exception):
    """What came is no RESP, or beyond what any reply may be. The connection cannot be used any more."""


class RedisError(Exception):
    """An error that Redis answered. It is returned, not raised. `code`: its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class Push(list[Any]):
    """What Redis says without having been asked (RESP3)."""


Reply = int | float | bool | bytes | None | list[Any] | RedisError
"""Maps are flat lists of keys and values, as in RESP2; sets are lists."""


def command(*words: str | bytes) -> bytes:
    """One command as bytes."""
    found = [b"*%d\r\n" % len(words)]
    found += [word_of(word.encode() if isinstance(word, str) else word) for word in words]
    return b"".join(found)


def word_of(word: bytes) -> bytes:
    """One word of a command as bytes."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


class _Open:
    """An aggregate that is not whole yet. left: values that are missing."""

    __slots__ = ("items", "kind", "left")

    def __init__(self, kind: int, left: int) -> None:
        self.kind, self.left = kind, left
        self.items: list[Any] = Push() if kind == 62 else []


class Parser:
    """Takes bytes as they come and gives whole replies. What was read once is not read again, however slowly the rest arrives."""

    __slots__ = ("_bulk", "_data", "_items", "_kind", "_open", "_searched", "_size")

    def __init__(self) -> None:
        self._data = bytearray()
        self._open: list[_Open] = []
        self._bulk = -1
        self._kind = self._items = self._searched = self._size = 0

    def feed(self, data: bytes) -> list[Any]:
        """Raises NotRedis; nothing can be fed afterwards."""
        buffer = self._data
        buffer += data
        self._size += len(data)
        found: list[Any] = []
        at = 0
        while True:
            if self._bulk >= 0:
                end = at + self._bulk
                if len(buffer) < end + 2:
                    break
                if buffer[end : end + 2] != b"\r\n":
                    raise NotRedis("a string does not end where it should")
                value = self._text(bytes(memoryview(buffer)[at:end]))
                self._bulk, at = -1, end + 2
                self._add(value, found)
                continue
            end = buffer.find(b"\r\n", max(at, self._searched))
            if end < 0:
                if len(buffer) - at > MOST_LINE:
                    raise NotRedis("a line is too long")
                self._searched = max(at, len(buffer) - 1)
                break
            if end - at > MOST_LINE:
                raise NotRedis("a line is too long")
            self._searched = 0
            kind, line = buffer[at] if end > at else 0, bytes(memoryview(buffer)[at + 1 : end])
            at = end + 2
            self._line(kind, line, found)
        if at:
            del buffer[:at]
            self._searched = max(0, self._searched - at)
        if found:
            self._size = len(buffer)
        elif self._size > MOST_BYTES + MOST_LINE:
            raise NotRedis("a reply is too long")
        return found

    def _text(self, value: bytes) -> Any:
        """A whole bulk: a string, an error (!) or a verbatim string (=)."""
        if self._kind == 33:
            return RedisError(value.decode(errors="replace"))
        if self._kind == 61:
            return value[4:]
        return value

    def _line(self, kind: int, line: bytes, found: list[Any]) -> None:
        match kind:
            case 36 | 33 | 61:  # $ ! =
                length = _integer(line)
                if length == -1:
                    self._add(None, found)
                elif 0 <= length <= MOST_BYTES:
                    self._bulk, self._kind = length, kind
                else:
                    raise NotRedis("a reply is too long")
            case 42 | 126 | 62 | 37 | 124:  # * ~ > % |
                self._aggregate(kind, _integer(line), found)
            case 43:  # +
                self._add(line, found)
            case 45:  # -
                self._add(RedisError(line.decode(errors="replace")), found)
            case 58 | 40:  # : (
                self._add(_integer(line), found)
            case 95:  # _
                self._add(None, found)
            case 35 if line in (b"t", b"f"):
                self._add(line == b"t", found)
            case 44:  # ,
                self._add(_double(line), found)
            case _:
                raise NotRedis("this is no Redis")

    def _aggregate(self, kind: int, count: int, found: list[Any]) -> None:
        if count == -1 and kind == 42:
            self._add(None, found)
            return
        count *= _ITEMS_EACH[kind]
        self._items += count
        if not 0 <= count <= MOST_ITEMS or self._items > MOST_ITEMS or len(self._open) >= MOST_DEPTH:
            raise NotRedis("a reply has too many parts")
        made = _Open(kind, count)
        if count:
            self._open.append(made)
        else:
            self._whole(made, found)

    def _add(self, value: Any, found: list[Any]) -> None:
        """A value is whole, and perhaps those around it."""
        if not self._open:
            self._items = 0
            found.append(value)
            return
        top = self._open[-1]
        top.items.append(value)
        top.left -= 1
        if not top.left:
            self._whole(self._open.pop(), found)

    def _whole(self, made: _Open, found: list[Any]) -> None:
        if made.kind == 124:  # attributes come before the reply that they describe, and say nothing that is used here
            if not self._open:
                self._items = 0
            return
        self._add(made.items, found)


def _integer(line: bytes) -> int:
    digits = line[1:] if line[:1] in (b"-", b"+") else line
    if not digits.isdigit() or len(digits) > 64:
        raise NotRedis("this is no Redis")
    return int(line)


def _double(line: bytes) -> float:
    try:
        return float(line)
    except ValueError:
        raise NotRedis("this is no Redis") from None
