"""Takes a model's output apart into reasoning, content and tool calls; from a stream of text that may be split anywhere.

The tags are those of the model's family (:class:`Dialect`). Text that could still become a tag is held back. A call whose JSON is broken,
or that names no known function, becomes content: nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engines.llamacpp.text import held

Family = Literal["hermes", "mistral", "llama3", "generic"]
REASONING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of output. `kind` call: `name` and `arguments` (JSON text); otherwise `text`."""

    kind: Literal["content", "reasoning", "call"]
    text: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model marks its output. `tools` are the names that may be called; empty: calls are not looked for."""

    family: Family | None = None
    tools: frozenset[str] = frozenset()
    reasoning: tuple[str, str] | None = None
    inside: bool = False
    """The prompt already opened the reasoning."""


class OutputParser:
    """Feed text, get parts; `finish` gives the rest. The output does not depend on how the text was split, except for its chunking."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._state: Literal["start", "reasoning", "content", "call"] = "reasoning" if dialect.inside else "start"
        self._buffer = ""
        self._thought = dialect.inside
        self._skip_lines = False
        self.calls = 0

    def feed(self, text: str) -> list[Part]:
        """Parts that are certain after this text."""
        self._buffer += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """The text still held when the generation ended."""
        parts = self.feed("")
        rest, self._buffer = self._buffer, ""
        if self._state == "reasoning":
            parts += _text("reasoning", rest)
        elif self._state == "call" or (self._state == "start" and self._whole()):
            parts += self._parse_call(rest)
        else:
            parts += _text("content", rest.lstrip("\n") if self._skip_lines else rest)
        return parts

    def _whole(self) -> bool:
        return bool(self._dialect.tools) and self._dialect.family in ("llama3", "generic")

    def _advance(self, parts: list[Part]) -> bool:
        """Makes one transition; returns False if more text is needed."""
        if self._state == "start":
            return self._start()
        if self._state == "reasoning":
            return self._reasoning(parts)
        if self._state == "content":
            return self._content(parts)
        return self._call(parts)

    def _start(self) -> bool:
        """Decides at the first visible character: reasoning, a message that is all JSON, or content."""
        text = self._buffer.lstrip()
        tags = None if self._thought else self._dialect.reasoning
        if tags is not None:
            if text.startswith(tags[0]):
                self._buffer = text[len(tags[0]) :]
                self._state = "reasoning"
                self._thought = True
                return True
            if tags[0].startswith(text):
                return False
        if self._whole():
            if self._dialect.family == "generic" or text.startswith(("{", "<|python_tag|>")):
                self._state = "call"
                return True
            if not text or "<|python_tag|>".startswith(text):
                return False
        elif not text and tags is not None:
            return False
        self._state = "content"
        return True

    def _reasoning(self, parts: list[Part]) -> bool:
        close = (self._dialect.reasoning or REASONING_TAGS[0])[1]
        at = self._buffer.find(close)
        if at >= 0:
            parts += _text("reasoning", self._buffer[:at].rstrip("\n"))
            self._buffer = self._buffer[at + len(close) :]
            self._state = "start" if self._whole() else "content"
            self._skip_lines = True
            return True
        self._emit(parts, "reasoning", _held_back(self._buffer, close, "\n"))
        return False

    def _content(self, parts: list[Part]) -> bool:
        if self._skip_lines:  # those after a closing tag
            self._buffer = self._buffer.lstrip("\n")
            if not self._buffer:
                return False
            self._skip_lines = False
        tag = self._open_tag()
        if tag is None:
            self._emit(parts, "content", 0)
            return False
        at = self._buffer.find(tag)
        if at >= 0:
            parts += _text("content", self._buffer[:at].rstrip())
            self._buffer = self._buffer[at + len(tag) :]
            self._state = "call"
            return True
        self._emit(parts, "content", _held_back(self._buffer, tag, None))  # blanks before a call are not content
        return False

    def _open_tag(self) -> str | None:
        if not self._dialect.tools:
            return None
        return {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]"}.get(self._dialect.family or "")

    def _call(self, parts: list[Part]) -> bool:
        """Hermes calls end with a tag, and content may follow; those of the other families run to the end."""
        if self._dialect.family != "hermes":
            return False
        at = self._buffer.find("</tool_call>")
        if at < 0:
            return False
        body, self._buffer = self._buffer[:at], self._buffer[at + len("</tool_call>") :]
        calls = self._parse_call(body)
        parts += calls
        self._state = "content"
        self._skip_lines = calls[-1:] != [] and calls[-1].kind == "call"
        return True

    def _emit(self, parts: list[Part], kind: Literal["content", "reasoning"], keep: int) -> None:
        cut = len(self._buffer) - keep
        parts += _text(kind, self._buffer[:cut])
        self._buffer = self._buffer[cut:]

    def _parse_call(self, body: str) -> list[Part]:
        calls = _calls(body, self._dialect)
        if calls is None:
            tag = self._open_tag() or ""
            close = "</tool_call>" if tag == "<tool_call>" and self._state == "call" else ""
            return _text("content", f"{tag}{body}{close}" if tag else body)
        self.calls += sum(part.kind == "call" for part in calls)
        return calls


def _held_back(text: str, tag: str, blanks: str | None) -> int:
    """How many characters at the end could become the tag, with the blanks (None: any white space) before it."""
    keep = held(text, (tag,))
    before = text[: len(text) - keep]
    return keep + len(before) - len(before.rstrip(blanks))


def _text(kind: Literal["content", "reasoning"], text: str) -> list[Part]:
    return [Part(kind, text)] if text else []


def _calls(body: str, dialect: Dialect) -> list[Part] | None:
    """The calls in a body, or None if it contains anything else."""
    if dialect.family == "mistral":
        named = re.fullmatch(r"\s*(?:[A-Za-z0-9_.-]{1,64}\[ARGS\].*)", body, re.DOTALL)
        if named:
            return _mistral_named(body, dialect)
    text = body.strip().removeprefix("<|python_tag|>").strip()
    values = _json_values(text, ";" if dialect.family == "llama3" else "")
    if values is None:
        return None
    if dialect.family == "generic" and len(values) == 1 and isinstance(values[0], dict) and set(values[0]) == {"response"}:
        answer = values[0]["response"]
        return _text("content", answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    items: list[Any] = []
    for value in values:
        if dialect.family == "generic" and isinstance(value, dict) and "tool_calls" in value:
            value = value["tool_calls"]
        items += value if isinstance(value, list) else [value]
    parts = [_part(item, dialect) for item in items]
    return [part for part in parts if part is not None] if parts and None not in parts else None


def _part(item: Any, dialect: Dialect) -> Part | None:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or name not in dialect.tools:
        return None
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        return Part("call", name=name, arguments=arguments)
    return Part("call", name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _mistral_named(body: str, dialect: Dialect) -> list[Part] | None:
    """`name[ARGS]{...}`, repeated after another `[TOOL_CALLS]`."""
    parts = []
    for piece in body.split("[TOOL_CALLS]"):
        name, found, arguments = piece.strip().partition("[ARGS]")
        values = _json_values(arguments.strip(), "")
        if not found or values is None or len(values) != 1:
            return None
        part = _part({"name": name, "arguments": values[0]}, dialect)
        if part is None:
            return None
        parts.append(part)
    return parts


def _json_values(text: str, separator: str) -> list[Any] | None:
    """JSON values one after the other, with an optional separator between them; None when something else is there."""
    decoder = json.JSONDecoder()
    values: list[Any] = []
    at = 0
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            while at < len(text) and (text[at].isspace() or text[at] == separator):
                at += 1
    except (ValueError, RecursionError):
        return None
    return values or None


def single(parts: Sequence[Part], already: int) -> list[Part]:
    """`parallel_tool_calls: false`: everything up to and with the first call of all."""
    result = []
    for part in parts:
        if part.kind == "call":
            if already:
                break
            already += 1
        result.append(part)
    return result
