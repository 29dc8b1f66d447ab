"""What a request says beside the texts of its messages and prompts: names, tools with their descriptions and parameters, schemas,
predictions, the arguments of a template, fields that nobody here knows. All of it can reach a model, so guardrails read it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.core.errors import GuardrailViolation, RequestError
from gateway.core.types import InferenceRequest

READ = {
    "chat": frozenset({"messages"}),
    "completions": frozenset({"prompt", "suffix"}),
    "embeddings": frozenset({"input"}),
    "classify": frozenset({"input"}),
    "rerank": frozenset({"query", "documents"}),
}
"""Fields whose texts each operation's view reads itself."""
_SILENT = frozenset({"model", "stream_options", "encoding_format", "service_tier"})
"""Fields that reach no model."""
_STRUCTURE = frozenset(
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
"""Words of the formats themselves, as keys and as values: no text of anybody's."""


def plain(raw: Raw, field: str) -> Any:
    """A field of a request as plain values. Raises RequestError for what the first reading passed over, such as a number like 1e999."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error).partition(" - at `")[0]
        raise RequestError(f"{field} has a value that cannot be read: {problem}.", param=field) from None


class Passages:
    """Every other text of one request. `texts` may be replaced one by one, names of fields excepted."""

    def __init__(self, request: InferenceRequest) -> None:
        self.texts: list[str] = []
        self.messages: list[dict[str, Any]] = []
        """A chat's messages as plain values, which `write` puts back."""
        self._places: list[tuple[Any, Any]] = []
        self._decoded: dict[str, Any] = {}
        self._request = request
        if request.operation == "chat":
            self._read_messages()
        elif request.operation == "rerank":
            for document in request.view.documents:
                if not isinstance(document, str):
                    self._read_object(document, frozenset({"text"}))
        read = READ[request.operation]
        for name, raw in request.fields.items():
            if name not in read and name not in _SILENT and bytes(raw)[:1] in (b'"', b"{", b"["):
                self._decoded[name] = plain(raw, name)
                self._read_item(self._decoded, name)

    def replace(self, texts: Sequence[str]) -> None:
        """Puts one text in the place of each. Raises GuardrailViolation where a name would change."""
        for (holder, key), old, new in zip(self._places, self.texts, texts, strict=True):
            if new == old:
                continue
            if holder is None:
                raise GuardrailViolation("The name of a field has content that a policy would rewrite.", code="guardrail")
            holder[key] = new

    def write(self) -> None:
        """The fields that were read, written anew: no key in them can be read in two ways any more."""
        for name, value in self._decoded.items():
            self._request.fields[name] = Raw(msgspec.json.encode(value))

    def _read_messages(self) -> None:
        self.messages = plain(self._request.fields["messages"], "messages")
        for message in self.messages:
            content = message.get("content")
            if isinstance(content, list):
                for part in content:
                    self._read_part(part)
            if len(message) > 2 or "content" not in message:
                self._read_object(message, frozenset({"role", "content", "tool_calls"}))
                for call in message.get("tool_calls") or ():
                    self._read_object(call, frozenset({"function"}))
                    if function := call.get("function"):
                        self._read_object(function, frozenset({"arguments"}) if function.get("arguments") else frozenset())

    def _read_part(self, part: dict[str, Any]) -> None:
        """A part of a message's content; its text is the view's, media are no text."""
        self._read_object(part, frozenset({"text"}) if part.get("text") is not None else frozenset())

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
            if value and value not in _STRUCTURE and not _is_media(key, value):
                self.texts.append(value)
                self._places.append((holder, key))
        elif isinstance(value, dict):
            self._read_object(value, frozenset())
        elif isinstance(value, list):
            for index in range(len(value)):
                self._read_item(value, index)


def _is_media(key: Any, value: str) -> bool:
    """Whether a text is an image, sound or file in base64."""
    return key in ("data", "file_data") or (isinstance(key, str) and key.endswith("url") and value.startswith("data:"))
