"""What may follow, as onnxruntime-genai's guidance takes it: a JSON Schema. Source: llguidance's documentation of JSON Schema."""

from __future__ import annotations

import json
from typing import Any

from engines.chat.conversation import SCHEMA_PARAM, Constraints, format_of_body
from engines.chat.formats.base import Choice, Format
from engines.chat.formats.table import GENERIC
from engines.chat.gbnf import Check
from engines.chat.params import Common, unsupported
from engines.sidecar.shell import ApiError

MAX_SCHEMA = 64 * 1024
"""Longest schema, in characters."""
_COMPACT = {"whitespace_flexible": False}
"""Without it a small model may write spaces for ever."""


class Guidance(Constraints):
    """`SamplingParams.grammar` is the text of a JSON Schema."""

    def form(self, body: Common, check: Check) -> str | None:
        wanted = format_of_body(body)
        if wanted.kind == "grammar":
            raise unsupported("grammar", "this runtime has no GBNF; use response_format with a JSON Schema")
        if wanted.kind == "text":
            return None
        return guided(wanted.value if wanted.kind == "json_schema" else {"type": "object"}, SCHEMA_PARAM)

    def calls(self, form: Format, choice: Choice, *, parallel: bool, check: Check) -> str:
        if form is not GENERIC:
            raise unsupported("tool_choice", f"this runtime cannot force calls in the format {form.name}; use auto")
        one = [
            {
                "type": "object", "properties": {"name": {"const": tool.name}, "arguments": {"type": "object", **tool.parameters}},
                "required": ["name", "arguments"], "additionalProperties": False,
            }
            for tool in choice.tools
        ]  # fmt: skip
        calls = {"type": "array", "items": {"anyOf": one}, "minItems": 1, **({} if parallel else {"maxItems": 1})}
        forms: list[dict[str, Any]] = [_closed("tool_calls", calls)]
        if not choice.required:
            forms.append(_closed("response", {"type": "string"}))
        return guided({"anyOf": forms}, "tools")


def guided(schema: Any, param: str) -> str:
    """The schema as guidance takes it. Raises ApiError 400."""
    if not isinstance(schema, dict):
        raise ApiError(400, f"{param} must be a JSON Schema that is an object", param=param, code="unsupported_schema")
    try:
        text = json.dumps({**schema, "x-guidance": _COMPACT}, ensure_ascii=False)
    except RecursionError:
        raise ApiError(400, f"{param} is nested too deeply", param=param, code="unsupported_schema") from None
    if len(text) > MAX_SCHEMA:
        raise ApiError(400, f"{param} has {len(text)} characters, at most {MAX_SCHEMA} may be", param=param, code="unsupported_schema")
    return text


def _closed(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
