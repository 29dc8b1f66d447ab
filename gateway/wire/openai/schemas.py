"""The form that a chat asks its answer to have (`response_format`), the contents that must have it, and a second try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.core.errors import EngineError, RequestError


class _JsonSchema(Struct):
    schema: Raw | UnsetType = UNSET


class _Format(Struct):
    type: str = ""
    json_schema: _JsonSchema | None = None


def asked(given: Raw) -> bytes | None:
    """The schema of a `response_format`; b"" for `json_object`; None for anything else. Raises RequestError."""
    if bytes(given) == b"null":
        return None
    try:
        found = msgspec.json.decode(given, type=_Format)
    except msgspec.DecodeError as error:
        raise RequestError(f"response_format: {error}.", param="response_format") from None
    if found.type == "json_object":
        return b""
    if found.type != "json_schema" or found.json_schema is None:
        return None
    schema = found.json_schema.schema
    return None if schema is UNSET or bytes(schema) == b"null" else bytes(schema)


def contents(body: bytes) -> Sequence[str]:
    """Of a whole answer. Raises EngineError."""
    try:
        choices: Any = msgspec.json.decode(body)["choices"]
        return [text for choice in choices if (text := _content(choice)) is not None]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
        raise EngineError("The engine's answer cannot be read.") from None


def _content(choice: dict[str, Any]) -> str | None:
    message = choice.get("message")
    if message is None:
        return str(choice.get("text") or "")
    if message.get("tool_calls") or message.get("function_call") or message.get("refusal"):
        return None
    content = message.get("content")
    if isinstance(content, list):
        content = "".join([str(part.get("text") or "") for part in content if isinstance(part, dict)])
    return content if isinstance(content, str) else ""


def going_on(messages: Raw, content: str, advice: str) -> Raw:
    """The messages, the answer to them, and what is wrong with it."""
    more = [{"role": "assistant", "content": content}, {"role": "user", "content": advice}]
    return Raw(bytes(messages).rstrip()[:-1] + b"," + msgspec.json.encode(more)[1:])
