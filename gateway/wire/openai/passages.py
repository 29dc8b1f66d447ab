"""The texts of a request: those of its messages or prompts, which the view knows, and all others. Names, tools with their
descriptions and parameters, schemas, predictions, the arguments of a template, unknown fields: all of it can reach a model, so guardrails
read it too.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import GuardrailViolation
from gateway.core.types import InferenceRequest
from gateway.core.wire import RequestTexts
from gateway.wire.bodies import may_speak, plain
from gateway.wire.openai.fields import MEDIA
from gateway.wire.openai.media import CONTENT, Pieces, is_media, unquoted, written
from gateway.wire.openai.parts import Place, joined, spoken, texts_at, unchanged
from gateway.wire.openai.views import Message

SILENT: Final = frozenset({"model"})
"""Fields that hold nothing that a user wrote."""
_STRUCTURE: Final = frozenset(
    [
        "type",
        "role",
        "function",
        "name",
        "description",
        "parameters",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "definitions",
        "title",
        "default",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "additionalProperties",
        "strict",
        "schema",
        "json_schema",
        "id",
        "index",
        "arguments",
        "content",
        "text",
        "tool_calls",
        "tool_call_id",
        "tool",
        "function_call",
        "refusal",
        "reasoning",
        "reasoning_content",
        "image_url",
        "video_url",
        "audio_url",
        "input_audio",
        "file",
        "file_data",
        "filename",
        "url",
        "data",
        "detail",
        "object",
        "string",
        "number",
        "integer",
        "boolean",
        "array",
        "null",
        "system",
        "user",
        "assistant",
        "developer",
        "auto",
        "none",
        "json_object",
        "custom",
        "audio",
        "annotations",
    ]
)
"""Words of the formats themselves, as keys and as values, which no user wrote."""
_NONE: Final[frozenset[str]] = frozenset()
_SPLIT: Final = object()
"""Stands for the place of a text that is split over parts."""
_READABLE: Final[frozenset[Any]] = frozenset({str, dict, list})


class OpenAiTexts(RequestTexts):
    """Every text of one request; the view's come first. read: the fields whose texts the view knows.

    Names of fields are texts that cannot be replaced.
    """

    __slots__ = ("_decoded", "_own", "_places", "_read", "_request")

    def __init__(self, request: InferenceRequest, read: frozenset[str], at_once: bool = True) -> None:
        super().__init__()
        self._request, self._read = request, read
        self._own = 0
        self._places: list[tuple[Any, Any]] = []
        self._decoded: dict[str, Any] = {}
        if at_once:
            for _ in self.reading():
                pass

    def reading(self) -> Generator[None, None, None]:
        """Reads the texts, with a pause after every few milliseconds; to be run once where `at_once` is False."""
        self.texts = self._request.view.texts()
        self._own = len(self.texts)
        yield
        yield from self._read_own_fields()
        read = self._read
        for name in self._request.unknown:
            if name in self._request.fields:
                self._read_name(name)
        for name, raw in self._request.fields.items():
            if name not in read and name not in SILENT and may_speak(bytes(raw)):
                self._decoded[name] = plain(raw, name)
                yield
                self._read_item(self._decoded, name)
                yield

    def _read_own_fields(self) -> Generator[None, None, None]:
        """Reads the parts of the fields in `read` that the view leaves out."""
        yield

    def replace(self, texts: Sequence[str]) -> None:
        for (holder, key), old, new in zip(self._places, self.texts[self._own :], texts[self._own :], strict=True):
            if new == old:
                continue
            if key is _SPLIT:
                continue
            if holder is None:
                raise GuardrailViolation("The name of a field or a file has content that a policy would rewrite.", code="guardrail")
            holder[key] = new
        self._request.view.replace(list(texts[: self._own]))

    def write(self) -> None:
        """Rewrites every field that holds text. All other fields keep the client's bytes."""
        fields = self._request.fields
        self._write_own_fields(fields)
        for name, value in self._decoded.items():
            fields[name] = Raw(msgspec.json.encode(value))

    def _write_own_fields(self, fields: dict[str, Raw]) -> None:
        view = self._request.view
        for name in self._read:
            if name in fields:
                fields[name] = Raw(msgspec.json.encode(getattr(view, name)))

    def _read_object(self, value: dict[str, Any], but: frozenset[str]) -> None:
        for key in value:
            if key not in but:
                self._read_name(key)
                self._read_item(value, key)

    def _read_name(self, name: str) -> None:
        if name not in _STRUCTURE:
            self.texts.append(name)
            self._places.append((None, None))

    def _read_item(self, holder: Any, key: Any) -> None:
        value = holder[key]
        if isinstance(value, str):
            if value and value not in _STRUCTURE:
                self.texts.append(value)
                self._places.append((holder, key))
        elif isinstance(value, dict):
            self._read_object(value, _NONE)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if item.__class__ in _READABLE:  # numbers, of which there may be many, are not read
                    self._read_item(value, index)


class ChatTexts(OpenAiTexts):
    """The texts of a chat, whose messages are forwarded as decoded here."""

    __slots__ = ("_messages", "_pieces", "_split")

    def _read_own_fields(self) -> Generator[None, None, None]:
        self._pieces = Pieces()
        self._split: list[tuple[int, int, list[Place]]] = []
        self._messages: list[dict[str, Any]] = plain(self._request.fields["messages"], "messages")
        yield
        for number, message in enumerate(self._messages):
            content = message.get("content")
            self._read_name(message["role"])  # of any name: templates write it into the prompt
            if isinstance(content, list):
                for part in content:
                    if len(part) > 2 or part.get("text") is None or part.get("type") != "text":
                        self._read_part(part)
                        yield
                for places in spoken(content):
                    self._split.append((len(self.texts), number, places))
                    self.texts += joined(texts_at(places))
                    self._places += [(None, _SPLIT)] * 2
            if len(message) > 2 or "content" not in message:
                self._read_object(message, _MESSAGE)
                for call in message.get("tool_calls") or ():
                    self._read_object(call, _FUNCTION)
                    if function := call.get("function"):
                        self._read_object(function, _ARGUMENTS if function.get("arguments") else _NONE)

    def replace(self, texts: Sequence[str]) -> None:
        super().replace(texts)
        for at, number, places in self._split:
            if texts[at : at + 2] != self.texts[at : at + 2]:
                parts = zip(self._messages[number]["content"], self._request.view.messages[number].content, strict=True)
                shown = {id(part): view.text for part, view in parts if view.text is not None}
                now = [str(shown.get(id(holder), holder[key]) if key == "text" else holder[key]) for holder, key in places]
                unchanged(now, self.texts[at : at + 2], texts[at : at + 2])

    def sources(self) -> list[str]:
        known: list[str] = self._request.view.sources()
        return known + ["other"] * (len(self.texts) - len(known))

    def _read_part(self, part: dict[str, Any]) -> None:
        """A part of a message, except for its text, which the view has, and its media."""
        for key, value in part.items():
            if key == "text" and value is not None:
                continue
            self._read_name(key)
            if key in MEDIA and value.__class__ is dict:
                for name, content in value.items():
                    self._read_name(name)
                    if name not in CONTENT or content.__class__ is not str or not is_media(content):
                        self._read_item(value, name)
                        self._read_decoded(unquoted(content, self._pieces))
                    else:
                        self._read_file(content)
            elif key not in MEDIA or value.__class__ is not str or not is_media(value):
                self._read_item(part, key)
                self._read_decoded(unquoted(value, self._pieces))
            else:
                self._read_file(value)

    def _read_file(self, media: str) -> None:
        """A file that is a text can be read, and not replaced."""
        self._read_decoded(written(media, self._pieces))

    def _read_decoded(self, text: str | None) -> None:
        if text is not None:
            self.texts.append(text)
            self._places.append((None, None))

    def _write_own_fields(self, fields: dict[str, Raw]) -> None:
        for target, message in zip(self._messages, self._request.view.messages, strict=True):
            _replace_message(target, message)
        fields["messages"] = Raw(msgspec.json.encode(self._messages))


_TEXT: Final = frozenset({"text"})
_MESSAGE: Final = frozenset({"role", "content", "tool_calls"})
_FUNCTION: Final = frozenset({"function"})
_ARGUMENTS: Final = frozenset({"arguments"})


class RerankTexts(OpenAiTexts):
    """The texts of a rerank request, whose documents may be objects."""

    __slots__ = ()

    def _read_own_fields(self) -> Generator[None, None, None]:
        yield
        for document in self._request.view.documents:
            if not isinstance(document, str):
                self._read_object(document, _TEXT)


def _replace_message(target: dict[str, Any], message: Message) -> None:
    if isinstance(message.content, str):
        target["content"] = message.content
    elif message.content:
        for there, part in zip(target["content"], message.content, strict=True):
            if part.text is not None:
                there["text"] = part.text
    for there, call in zip(target.get("tool_calls") or (), message.tool_calls or (), strict=True):
        if call.function and call.function.arguments:
            there["function"]["arguments"] = call.function.arguments
