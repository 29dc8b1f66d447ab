"""Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,number:3}<tool_call|>`, a notation of its own, turned into JSON as it comes.

Read from Google's published template of Gemma 4. Gemma 2 and 3 have no calls in their templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engines.chat.formats.base import Choice, Format, Tool, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.markup import converted
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, SchemaError, literal
from engines.chat.text import held

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
MAX_DEPTH = 32


def _one(source: Source, tools: Tools, _tag: str) -> Reading:
    yield from source.skip()
    yield from source.expect("call:")
    name, _end = yield from source.header("{")
    if name.strip() not in tools:
        raise Malformed("no such function")
    source.call(name.strip())
    yield from _object(source, 0)
    yield from source.skip()
    yield from source.taken(_CLOSE)


def _object(source: Source, depth: int) -> Reading:
    """What follows an opening brace."""
    source.say("arguments", "{")
    first = True
    while True:
        yield from source.skip()
        if (yield from source.taken("}")) is not None:
            source.say("arguments", "}")
            return
        if not first:
            yield from source.expect(",")
            yield from source.skip()
        if (yield from source.taken(_QUOTE)) is not None:
            key, _end = yield from source.header(_QUOTE)
            yield from source.skip()
            yield from source.expect(":")
        else:
            key, _end = yield from source.header(":")
        source.say("arguments", f"{'' if first else ', '}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        first = False
        yield from _value(source, depth + 1)


def _list(source: Source, depth: int) -> Reading:
    source.say("arguments", "[")
    first = True
    while True:
        yield from source.skip()
        if (yield from source.taken("]")) is not None:
            source.say("arguments", "]")
            return
        if not first:
            yield from source.expect(",")
            source.say("arguments", ", ")
        first = False
        yield from _value(source, depth + 1)


def _value(source: Source, depth: int) -> Reading:
    if depth > MAX_DEPTH:
        raise Malformed("nested too deep")
    yield from source.skip()
    tag = yield from source.taken(_QUOTE, "{", "[")
    if tag == "{":
        yield from _object(source, depth)
    elif tag == "[":
        yield from _list(source, depth)
    elif tag == _QUOTE:
        yield from _string(source)
    else:
        text, _end = yield from source.header(",", "}", "]")
        source.at -= 1
        if not text.strip():
            raise Malformed("a value")
        source.say("arguments", converted(text.strip()))


def _string(source: Source) -> Reading:
    source.say("arguments", '"')
    while True:
        rest = source.text[source.at :]
        place = rest.find(_QUOTE)
        cut = place if place >= 0 else len(rest) if source.ended else len(rest) - held(rest, (_QUOTE,))
        source.at += cut + (len(_QUOTE) if place >= 0 else 0)
        source.say("arguments", json.dumps(rest[:cut], ensure_ascii=False)[1:-1] + ('"' if place >= 0 else ""))
        if place >= 0:
            return
        if source.ended:
            raise Malformed("a string has no end")
        yield


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    calls = []
    for tool in choice.tools:
        before = literal(f"{_OPEN}call:{tool.name}")
        calls.append(f"{before} {_rule(grammar, tool, {'type': 'object', **tool.parameters}, 0)} {literal(_CLOSE)}")
    return several(grammar.add(" | ".join(calls)), parallel)


def _rule(grammar: Grammar, tool: Tool, schema: Any, depth: int) -> str:
    """The rule of a value in this notation. Raises SchemaError for what it does not express."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    known = {
        "type",
        "title",
        "description",
        "default",
        "examples",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "$schema",
    }
    extra = next((key for key in schema if key not in known), None) if isinstance(schema, Mapping) else None
    if extra is not None or depth > MAX_DEPTH or kind not in ("string", "number", "integer", "boolean", "null", "array", "object"):
        raise SchemaError(f"the parameters of {tool.name}: {extra or 'a schema without type'} cannot be expressed in this model's format")
    if "enum" in schema:
        quote = _QUOTE if kind == "string" else ""
        texts = [item if isinstance(item, str) else json.dumps(item) for item in schema["enum"]]
        return "(" + " | ".join(literal(f"{quote}{text}{quote}") for text in texts) + ")"
    if kind == "string":
        return grammar.add(f'{literal(_QUOTE)} ([^<] | "<" [^|<])* {literal(_QUOTE)}')
    if kind == "array":
        item = _rule(grammar, tool, schema.get("items", {"type": "string"}), depth + 1)
        return grammar.add(f'"[" ({item} ("," {item})*)? "]"')
    if kind == "object":
        return _object_rule(grammar, tool, schema, depth)
    return grammar.primitive(str(kind))


def _object_rule(grammar: Grammar, tool: Tool, schema: Mapping[str, Any], depth: int) -> str:
    """Required properties first, so that commas need no second thought, then optional ones, each with its comma."""
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    rules = {key: f"{literal(f'{key}:')} {_rule(grammar, tool, wanted, depth + 1)}" for key, wanted in properties.items()}
    must = ' "," '.join(rule for key, rule in rules.items() if key in required)
    may = [rule for key, rule in rules.items() if key not in required]
    if must:
        rest = " ".join(f'("," {rule})?' for rule in may)
        return grammar.add(f'"{{" {must} {rest} "}}"')
    tail = ""
    for rule in reversed(may):
        tail = f'({rule} ("," {tail})?)' if tail else f"({rule})"
    return grammar.add(f'"{{" {tail}{"?" if tail else ""} "}}"')


FORMAT = Format(
    "gemma", lambda template: _OPEN in template and _CLOSE in template, tagged((_OPEN,), _one), _write,
    (_OPEN, _CLOSE, _QUOTE, "<|channel>", "<channel|>"),
)  # fmt: skip
