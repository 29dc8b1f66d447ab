"""How deep in the strings of JSON a place of a text is, and values written for that depth.

A tool's arguments are JSON; a string in them may be JSON again, and so on. What is put into such a place is escaped once for each string
around it, or the JSON could not be read any more.
"""

from __future__ import annotations

import json
import re
from typing import Final

MOST: Final = 8
"""Strings within strings that are followed."""
_RUN: Final = re.compile(r'[^"\\]+')
_SPACE: Final = " \t\r\n"
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class Nesting:
    """Follows a text as it comes. depth: the strings of JSON around its end; 0 in a text that is not a JSON object or list."""

    __slots__ = ("_code", "_escaped", "_inner", "_json", "_level")

    def __init__(self, level: int = 0) -> None:
        self._level = level
        self._json: bool | None = None  # not known before the first character that is not a space
        self._inner: Nesting | None = None
        self._escaped = False
        self._code: str | None = None

    @property
    def depth(self) -> int:
        return 0 if self._inner is None else 1 + self._inner.depth

    def feed(self, text: str) -> None:
        place, size = 0, len(text)
        if self._json is None:
            while place < size and text[place] in _SPACE:
                place += 1
            if place == size:
                return
            self._json = text[place] in "{[" and self._level < MOST
        if not self._json:
            return
        while place < size:
            place = self._step(text, place)

    def _step(self, text: str, place: int) -> int:
        inner = self._inner
        if self._code is not None and inner is not None:
            self._code += text[place]
            if len(self._code) == 4:
                inner.feed(_character(self._code))
                self._code = None
        elif self._escaped and inner is not None:
            self._escaped = False
            if text[place] == "u":
                self._code = ""
            else:
                inner.feed(_ESCAPES.get(text[place], text[place]))
        elif text[place] == '"':
            self._inner = Nesting(self._level + 1) if inner is None else None
        elif text[place] == "\\":
            self._escaped = inner is not None
        else:
            run = _RUN.match(text, place)
            assert run is not None
            if inner is not None:
                inner.feed(run[0])
            return run.end()
        return place + 1


def _character(code: str) -> str:
    try:
        return chr(int(code, 16))
    except ValueError:
        return "?"


def escaped(value: str, depth: int) -> str:
    """As it is written within so many strings of JSON."""
    for _ in range(depth):
        value = json.dumps(value, ensure_ascii=False)[1:-1]
    return value


def unescaped(text: str, depth: int) -> str:
    """What a text within so many strings of JSON says; as far as it is JSON."""
    for _ in range(depth):
        try:
            text = json.loads(f'"{text}"', strict=False)
        except ValueError:
            break
    return text
