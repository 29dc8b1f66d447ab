"""The base of requests whose turns are blocks of several kinds: every text of them is read, wherever it stands, and can be replaced. Names
of fields are texts that cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import GuardrailViolation
from gateway.core.types import InferenceRequest
from gateway.core.wire import RequestTexts
from gateway.wire.openai.answers import FREE, WHOLE, Figure
from gateway.wire.openai.media import Pieces, is_base64, is_media, unquoted, written
from gateway.wire.openai.parts import Place, joined, separated, spoken, texts_at, unchanged

_READABLE: Final[frozenset[Any]] = frozenset({str, dict, list})
_NONE: Final[frozenset[str]] = frozenset()


class BlockTexts(RequestTexts):
    """Every text of one request. The text blocks of one turn are read together, as a model reads them.

    words: of the format itself, as keys and as values, which no user wrote. opaque: kinds of blocks with a field in base64 that no model
    reads as a text. results: kinds of blocks that end so hold what a tool said.
    """

    __slots__ = ("_decoded", "_opaque", "_pieces", "_places", "_request", "_results", "_sources", "_words")

    def __init__(
        self, request: InferenceRequest, words: frozenset[str], opaque: Mapping[Any, str], results: str, at_once: bool = True
    ) -> None:
        super().__init__()
        self._request, self._words, self._opaque, self._results = request, words, opaque, results
        self._places: list[tuple[Any, Any]] = []
        self._sources: list[str] = []
        self._decoded: dict[str, Any] = {}
        self._pieces = Pieces()
        if at_once:
            for _ in self.reading():
                pass

    def reading(self) -> Generator[None, None, None]:
        """Reads the texts, with a pause after every few milliseconds; to be run once where `at_once` is False."""
        raise NotImplementedError

    def _content(self, holder: Any, key: Any, content: Any, source: str) -> None:
        """A text, or a list of blocks: the text blocks together, then what else the blocks have."""
        if content.__class__ is str:
            self._one(holder, key, content, source)
            return
        if content.__class__ is not list:
            self._item(holder, key, source)
            return
        blocks = [block for block in content if block.__class__ is dict]
        parts = [block for block in blocks if block.get("text").__class__ is str]
        for text in joined([part["text"] for part in parts]):
            self.texts.append(text)
            self._places.append((_Parts, parts))
            self._sources.append(source)
        for places in spoken(blocks):
            self._together(places, source)
        for block in blocks:
            kind = block.get("type")
            of = "tool" if kind.__class__ is str and kind.endswith(self._results) else source
            for name, value in block.items():
                if name == "text" and value.__class__ is str:
                    continue
                self._name(name)
                if name == "content":
                    self._content(block, name, value, of)
                elif name == "source" and value.__class__ is dict:
                    self._source(value, of)
                elif name != self._opaque.get(kind, "") or not self._is_opaque(value):
                    self._item(block, name, of)
                    if (hidden := unquoted(value, self._pieces)) is not None:
                        self._one(None, None, hidden, of)
                    if name in FREE:
                        self._figures(block, name, of)
                else:
                    self._file(value, of)

    def _together(self, places: list[Place], source: str) -> None:
        """Texts of several blocks as one, both ways."""
        self.texts += joined(texts_at(places))
        self._places += [(_Spoken, places)] * 2
        self._sources += [source] * 2

    def _is_opaque(self, value: Any) -> bool:
        """Whether a value in a place for what no model reads as a text is only base64, bare or as a data URL."""
        return value.__class__ is str and is_media(value)

    def _source(self, source: dict[str, Any], said: str) -> None:
        """Where the content of an image or a document is."""
        for name, value in source.items():
            self._name(name)
            if name == "content":
                self._content(source, name, value, said)
            elif not (name == "data" and source.get("type") == "base64" and value.__class__ is str and is_base64(value)):
                self._item(source, name, said)
            else:
                self._file(value, said)

    def _file(self, media: str, source: str) -> None:
        """A file that is a text can be read, and not replaced."""
        if (text := written(media, self._pieces)) is not None:
            self._one(None, None, text, source)

    def _one(self, holder: Any, key: Any, text: str, source: str) -> None:
        self.texts.append(text)
        self._places.append((holder, key))
        self._sources.append(source)

    def _object(self, value: dict[str, Any], but: frozenset[str], source: str) -> None:
        for key in value:
            if key not in but:
                self._name(key)
                self._item(value, key, source)

    def _name(self, name: str) -> None:
        if name not in self._words:
            self._one(None, None, name, "other")

    def _item(self, holder: Any, key: Any, source: str) -> None:
        value = holder[key]
        if value.__class__ is str:
            if value and value not in self._words:
                self._one(holder, key, value, source)
        elif value.__class__ is dict:
            self._object(value, _NONE, source)
        elif value.__class__ is list:
            for index, item in enumerate(value):
                if item.__class__ in _READABLE:  # numbers, of which there may be many, are not read
                    self._item(value, index, source)

    def _figures(self, holder: Any, key: Any, source: str) -> None:
        """The numbers in a value that a model wrote freely: in the APIs where it is not an object but a text, they are read, too."""
        value = holder[key]
        if value.__class__ is int or value.__class__ is float:
            figure = Figure(holder, key)
            self._one(figure, WHOLE, figure[WHOLE], source)
        elif value.__class__ is dict:
            for name in value:
                self._figures(value, name, source)
        elif value.__class__ is list:
            for number in range(len(value)):
                self._figures(value, number, source)

    def sources(self) -> list[str]:
        return self._sources

    def replace(self, texts: Sequence[str]) -> None:
        number, places = 0, self._places
        split: list[int] = []
        while number < len(places):
            holder, key = places[number]
            if holder is _Parts:
                old = [part["text"] for part in key]
                count = min(len(old), 2)
                if texts[number : number + count] != self.texts[number : number + count]:
                    for part, text in zip(key, separated(old, texts[number : number + count]), strict=True):
                        part["text"] = text
                number += count
                continue
            if holder is _Spoken:
                split.append(number)
                number += 2
                continue
            if texts[number] != self.texts[number]:
                if holder is None:
                    raise GuardrailViolation("The name of a field or a file has content that a policy would rewrite.", code="guardrail")
                holder[key] = texts[number]
            number += 1
        for number in split:
            unchanged(texts_at(places[number][1]), self.texts[number : number + 2], texts[number : number + 2])

    def write(self) -> None:
        fields = self._request.fields
        for name, value in self._decoded.items():
            fields[name] = Raw(msgspec.json.encode(value))


class _Spoken:
    """Stands for the holder of texts that engines read in several blocks by their types."""


class _Parts:
    """Stands for the holder of texts that are in several blocks."""
