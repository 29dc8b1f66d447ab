"""The texts of a request in Anthropic's Messages API: system prompt, messages with all their blocks, tools, and whatever else can reach a
model. Names of fields are texts that cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from gateway.core.types import InferenceRequest
from gateway.wire.bodies import may_speak, plain
from gateway.wire.openai.fields import names
from gateway.wire.passages import BlockTexts

_SILENT: Final = frozenset({"model"})
"""Fields that hold nothing that a user wrote."""
_FIRST: Final = ("system", "messages")
_WORDS: Final = names(
    "type role content text source media_type data title context citations enabled cache_control ephemeral ttl 5m 1h id name",
    "input tool_use_id is_error thinking signature base64 image document search_result tool_use tool_result redacted_thinking",
    "server_tool_use tool_reference tool_name user assistant system caller direct description input_schema strict",
    "input_examples defer_loading allowed_callers eager_input_streaming custom properties required items enum const anyOf",
    "oneOf allOf $ref $defs $schema definitions default format pattern minimum maximum exclusiveMinimum exclusiveMaximum",
    "minItems maxItems minLength maxLength additionalProperties propertyNames schema json_schema object string number integer",
    "boolean array null auto any tool none disable_parallel_tool_use budget_tokens disabled adaptive display effort low",
    "medium high max edits keep trigger clear_thinking_20251015 clear_tool_uses_20250919",
    "user_id data_label image/png image/jpeg image/gif image/webp application/pdf text/plain",
)
"""Words of the format itself, as keys and as values, which no user wrote."""
_OPAQUE: Final[dict[Any, str]] = {"thinking": "signature", "redacted_thinking": "data"}
"""Kinds of blocks -> the field in base64 that no model reads as a text."""


class MessagesTexts(BlockTexts):
    """Every text of one request."""

    __slots__ = ()

    def __init__(self, request: InferenceRequest, at_once: bool = True) -> None:
        super().__init__(request, _WORDS, _OPAQUE, "tool_result", at_once)

    def reading(self) -> Generator[None, None, None]:
        fields = self._request.fields
        if "system" in fields:
            system = self._decoded["system"] = plain(fields["system"], "system")
            self._content(self._decoded, "system", system, "system")
            yield
        messages: list[dict[str, Any]] = plain(fields["messages"], "messages")
        self._decoded["messages"] = messages
        yield
        for message in messages:
            role = message["role"]
            self._content(message, "content", message["content"], role)
            if len(message) > 2:
                self._object(message, _MESSAGE, "other")
        yield
        for name in self._request.unknown:
            if name in fields:
                self._name(name)
        for name, raw in fields.items():
            if name not in _FIRST and name not in _SILENT and may_speak(bytes(raw)):
                self._decoded[name] = plain(raw, name)
                yield
                self._item(self._decoded, name, "other")
                yield


_MESSAGE: Final = frozenset({"role", "content"})
