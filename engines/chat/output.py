"""Takes a model's output apart into reasoning, content and tool calls; from a stream of text that may be split anywhere.

How the model marks its output is its format's business (:mod:`engines.chat.formats`). Text that could still become a tag is held back.
A call's arguments are passed on as they come. What is no call of a known function becomes content: nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.chat.formats.base import Format, Tags
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Part, Reading, Source


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model marks its output. `tools`: those that may be called, with their parameters' schemas; none: calls are not looked for."""

    format: Format | None = None
    tools: Tools = field(default_factory=dict)
    reasoning: Tags | None = None
    inside: bool = False
    """The prompt already opened the reasoning."""

    @property
    def plain(self) -> bool:
        """Whether the whole output is content."""
        return not self.tools and self.reasoning is None and (self.format is None or not self.format.always)


class OutputParser:
    """Feed text, get parts; `finish` gives the rest. The output does not depend on how the text was split, except for its chunking.

    parallel: not so: everything up to and with the first call is given, nothing after it.
    """

    def __init__(self, dialect: Dialect, *, parallel: bool = True) -> None:
        self._source = Source()
        self._reading: Reading | None = _answer(self._source, dialect)
        self._parallel = parallel
        self._calls = 0
        next(self._reading, None)

    def feed(self, text: str) -> list[Part]:
        """Parts that are certain after this text."""
        self._source.feed(text)
        self._advance()
        return self._taken()

    def finish(self) -> list[Part]:
        """The text still held when the generation ended."""
        self._source.ended = True
        self._advance()
        return self._taken()

    def _advance(self) -> None:
        if self._reading is not None:
            try:
                next(self._reading)
            except StopIteration:
                self._reading = None

    def _taken(self) -> list[Part]:
        parts, self._source.parts = self._source.parts, []
        if self._parallel:
            return parts
        result = []
        for part in parts:
            self._calls += part.kind == "call"
            if self._calls == 0 or (self._calls == 1 and part.kind in ("call", "arguments")):
                result.append(part)
        return result


def _answer(source: Source, dialect: Dialect) -> Reading:
    tags = dialect.reasoning
    if tags is not None:
        opened = dialect.inside
        if not opened:
            yield from source.skip()
            opened = (yield from source.taken(tags[0])) is not None
            source.settle() if opened else source.rewind()
        if opened:
            yield from source.text_until("reasoning", (tags[1],), "\n")
            yield from source.skip("\n")
            source.settle()
    if dialect.format is not None and (dialect.tools or dialect.format.always):
        yield from dialect.format.read(source, dialect.tools)
    yield from source.rest("content")
