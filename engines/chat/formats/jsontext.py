"""JSON that comes in pieces: passed on as it comes, checked on the way (RFC 8259).

Lenient where models err and the meaning is plain: control characters inside strings are escaped, Python's `True`, `False` and `None` become
JSON's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import Any, Literal

from engines.chat.formats.source import Malformed, Reading, Source

MAX_DEPTH = 256
MAX_WORD = 64
"""Longest number, in characters."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_BLANKS = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")

Said = Literal["content", "reasoning"]
Tools = Mapping[str, Mapping[str, Any]]
"""The functions that may be called, with the JSON Schema of their parameters."""


class Scanner:
    """Follows one JSON value. `done`: it is complete; `broken`: what came is not JSON."""

    def __init__(self) -> None:
        self.done = self.broken = False
        self._state = "value"
        self._stack: list[str] = []
        self._escape = self._word = ""

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """(what is certain of the value, where it stopped reading): more text, the value's end, or the character that broke it."""
        out: list[str] = []
        size = len(text)
        while at < size and not self.done and not self.broken:
            at = self._string(text, at, out) if self._state in ("string", "key string") else self._structure(text, at, out)
        return "".join(out), at

    def end(self) -> str:
        """The text ended: a number at the top is complete only now."""
        out: list[str] = []
        if self._word:
            self._close_word(out)
        return "".join(out)

    def _string(self, text: str, at: int, out: list[str]) -> int:
        if self._escape:
            self._escape += text[at]
            wanted = 6 if self._escape[1:2] == "u" else 2
            good = self._escape[1] in '"\\/bfnrtu' and all(char in "0123456789abcdefABCDEF" for char in self._escape[2:])
            if not good:
                self.broken = True
                return at
            if len(self._escape) == wanted:
                out.append(self._escape)
                self._escape = ""
            return at + 1
        plain = _PLAIN.match(text, at)
        if plain is not None:
            out.append(plain.group())
            return plain.end()
        char = text[at]
        if char == "\\":
            self._escape = char
        elif char == '"':
            out.append(char)
            if self._state == "key string":
                self._state = "colon"
            else:
                self._close()
        else:
            out.append(json.dumps(char)[1:-1])
        return at + 1

    def _structure(self, text: str, at: int, out: list[str]) -> int:
        if self._word or self._state.startswith("value"):
            word = _WORD.match(text, at, at + MAX_WORD - len(self._word))
            if word is not None:
                self._word += word.group()
                return word.end()
            if len(self._word) == MAX_WORD and _WORD.match(text, at):
                self.broken = True
                out.append(self._word)
                return at
            if self._word:
                self._close_word(out)
                return at
        blanks = _BLANKS.match(text, at)
        if blanks is not None:
            out.append(blanks.group())
            return blanks.end()
        if not self._step(text[at]):
            self.broken = True
            return at
        out.append(text[at])
        return at + 1

    def _step(self, char: str) -> bool:
        """Takes one structural character; False if it may not stand here."""
        state = self._state
        if state.startswith("value"):
            if char == '"':
                self._state = "string"
            elif char in "{[" and len(self._stack) < MAX_DEPTH:
                self._stack.append(char)
                self._state = "key or end" if char == "{" else "value or end"
            elif char == "]" and state == "value or end":
                self._stack.pop()
                self._close()
            else:
                return False
        elif char == '"' and state in ("key", "key or end"):
            self._state = "key string"
        elif char == "}" and state == "key or end":
            self._stack.pop()
            self._close()
        elif char == ":" and state == "colon":
            self._state = "value"
        elif char == "," and state == "comma":
            self._state = "key" if self._stack[-1] == "{" else "value"
        elif state == "comma" and char == ("}" if self._stack[-1] == "{" else "]"):
            self._stack.pop()
            self._close()
        else:
            return False
        return True

    def _close_word(self, out: list[str]) -> None:
        word, self._word = self._word, ""
        if word not in _WORDS and not _NUMBER.fullmatch(word):
            self.broken = True
            out.append(word)  # for the reader to see; it is not lost
            return
        out.append(_WORDS.get(word, word))
        self._close()

    def _close(self) -> None:
        self._state = "comma"
        self.done = not self._stack


def stream(source: Source) -> Reading:
    """Say the JSON value that comes next as arguments, as it comes. Raises Malformed where it breaks."""
    scanner = Scanner()
    while True:
        out, source.at = scanner.feed(source.text, source.at)
        if source.ended:
            out += scanner.end()
        source.say("arguments", out)
        if scanner.done:
            return
        if scanner.broken or source.ended:
            raise Malformed("the arguments")
        yield


def value(source: Source) -> Generator[None, None, str]:
    """Consume the JSON value that comes next; its text. Raises Malformed."""
    scanner = Scanner()
    collected = ""
    while True:
        out, source.at = scanner.feed(source.text, source.at)
        collected += out
        if scanner.done:
            return collected
        if scanner.broken or source.ended:
            raise Malformed("a value")
        yield


def string(source: Source) -> Generator[None, None, str]:
    """Consume a JSON string; what it means. Raises Malformed."""
    if (yield from source.ahead()) != '"':
        raise Malformed("a string")
    text: str = json.loads((yield from value(source)))
    return text


def arguments(source: Source, name: str, ident: str = "") -> Reading:
    """A call of this function, with the JSON that comes next as its arguments: an object, as text or not, or null. Raises Malformed."""
    first = yield from source.ahead()
    if first == "{":
        source.call(name, ident)
        yield from stream(source)
        return
    if first not in ('"', "n"):
        raise Malformed("the arguments")
    decoded = json.loads((yield from value(source)))
    source.call(name, ident)
    source.say("arguments", whole(decoded) if isinstance(decoded, str) else "{}")


def whole(text: str) -> str:
    """A decoded text with surrogate pairs joined, and halves of them, which no encoding has, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def call(source: Source, tools: Tools, *, inner: bool = False) -> Reading:
    """An object with the name of one of the tools and its arguments; also the form with `function` around both. Raises Malformed.
    inner: it is inside of such a form."""
    name, early, opened = "", "", False
    yield from source.expect("{")
    while True:
        yield from source.skip()
        key = yield from string(source)
        yield from source.skip()
        yield from source.expect(":")
        yield from source.skip()
        if key in _NAMES:
            name = yield from string(source)
            if name not in tools:
                raise Malformed("no such function")
        elif key == "function" and not opened and not inner and (yield from source.ahead()) == "{":
            yield from call(source, tools, inner=True)
            opened = True
        elif key in _ARGUMENTS and name and not opened:
            yield from arguments(source, name)
            opened = True
        else:
            text = yield from value(source)
            if key in _ARGUMENTS:
                early = text
        yield from source.skip()
        end = yield from source.taken(",", "}")
        if end is None:
            raise Malformed("an object")
        if end == "}":
            break
    if not opened:
        if not name:
            raise Malformed("no name")
        source.call(name)
        source.say("arguments", _object(early))
    source.settle()


def _object(text: str) -> str:
    decoded = json.loads(text) if text else None
    if isinstance(decoded, str):
        return whole(decoded)
    return text if isinstance(decoded, dict) else "{}"


def calls(source: Source, tools: Tools, separators: str = ",;") -> Reading:
    """One call after the other, in lists or not, until something else comes. Raises Malformed if the first is none."""
    some = False
    while True:
        yield from source.skip()
        bracket = yield from source.taken("[", "]", *separators)
        if bracket is not None and (some or bracket == "["):
            continue
        if some and (yield from source.ahead()) != "{":
            return
        yield from call(source, tools)
        some = True
