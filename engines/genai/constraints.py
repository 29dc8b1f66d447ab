"""What may follow, as onnxruntime-genai's guidance takes it: a JSON Schema, or a grammar. Source: llguidance's documentation of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engines.chat.conversation import SCHEMA_PARAM, Constraints, format_of_body
from engines.chat.formats.base import Choice, Format
from engines.chat.formats.table import GENERIC
from engines.chat.gbnf import Check, GrammarRefused
from engines.chat.params import Common, unsupported
from engines.chat.schema import SchemaError, check_grammar
from engines.chat.tools import call_grammar
from engines.genai.lark import lark
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.shell import ApiError

MAX_SCHEMA = 64 * 1024
"""Longest schema, in characters."""
_COMPACT = {"whitespace_flexible": False}
"""Without it a small model may write spaces for ever."""


class Guidance(Constraints):
    """`SamplingParams.grammar` is the text of a JSON Schema, which begins with a brace, or of a grammar in Lark, which does not."""

    def __init__(self, vocabulary: GenaiVocabulary) -> None:
        self._vocabulary = vocabulary

    def form(self, body: Common, check: Check) -> str | None:
        wanted = format_of_body(body)
        if wanted.kind == "grammar":
            return self._grammar(str(wanted.value), check)
        if wanted.kind == "text":
            return None
        return self._guided(wanted.value if wanted.kind == "json_schema" else {"type": "object"}, SCHEMA_PARAM)

    def calls(self, form: Format, choice: Choice, *, parallel: bool, check: Check) -> str:
        if form is not GENERIC:
            return self._writable(lark(call_grammar(form, choice, parallel=parallel, check=check)), "tool_choice")
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
        return self._guided({"anyOf": forms}, "tools")

    def _guided(self, schema: Any, param: str) -> str:
        text = guided(schema, param)
        self._writable("".join(_demanded(schema)), param)
        return text

    def _grammar(self, text: str, check: Check) -> str:
        """A client's grammar, whose bounds are those of llama.cpp engines. Raises ApiError 400."""
        try:
            check_grammar(text, check)
            return self._writable(lark(text), "grammar")
        except (SchemaError, GrammarRefused) as exc:
            raise ApiError(400, str(exc), param="grammar", code="invalid_grammar") from None

    def _writable(self, grammar: str, param: str) -> str:
        """The grammar. The library knows the text of tokens, not their bytes: it cannot demand a character of which tokens hold parts.
        Raises ApiError 400."""
        words = self._vocabulary
        for character in sorted(set(grammar)):
            if not character.isascii():
                pieces = [words.special_piece(token) for token in words.tokenize(character, add_special=False, parse_special=False)]
                if any("\ufffd" in piece.decode("utf-8", "replace") for piece in pieces):
                    raise unsupported(
                        param, f"the text holds {character!r}, which this model writes in parts; this runtime cannot demand it"
                    )
        return grammar


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


def _demanded(schema: Any) -> Iterator[str]:
    """The texts that a schema has written: names of properties, constants."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            properties, choices = value.get("properties"), value.get("enum")
            yield from properties if isinstance(properties, dict) else ()
            for choice in [value.get("const"), *(choices if isinstance(choices, list) else ())]:
                yield json.dumps(choice, ensure_ascii=False)
            waiting += value.values()


def _closed(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
