"""Arguments written as markup, a key and a value at a time, and turned into JSON on the way.

The text does not say whether `3` is a number: the function's schema does. A value that can only be a string is passed on as it comes; any
other when it is complete. A value that does not fit its schema becomes a string: it is the model's mistake, and is not lost.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from engines.chat.formats.base import Tool
from engines.chat.formats.jsontext import whole
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, SchemaError, literal
from engines.chat.text import held

MAX_LITERAL = 16 * 1024
"""Longest value in Python's notation: translating this much takes some 50 ms, on the event loop."""
_STRING_KEYS = frozenset({"type", "title", "description", "default", "examples", "enum", "const", "nullable"})

Key = tuple[str, bool | None]
"""A key, and whether the model says that its value is a string (None: it does not say)."""


@dataclass(frozen=True, slots=True)
class Markup:
    """How one family writes arguments. `argument`: opens one; `key`: reads its key up to the value; `pad`: blanks around the value."""

    argument: str
    key: Callable[[Source], Generator[None, None, Key]]
    argument_end: str
    call_end: str
    between: str
    """What stands between key and value, for the grammar."""
    pad: str = ""
    typed: bool = False
    """Each argument says whether it is a string."""


def attribute(source: Source) -> Generator[None, None, Key]:
    """A key that ends its tag: `city>`, `city">` or `city" string="true">`."""
    text, _end = yield from source.header(">")
    key, _quote, rest = text.partition('"')
    return key.strip(), {'string="true"': True, 'string="false"': False}.get(rest.strip())


def arguments(source: Source, name: str, schema: Mapping[str, Any], markup: Markup) -> Reading:
    """A call of this function with the arguments that come next, up to the call's end. Raises Malformed."""
    source.call(name)
    opening = "{"
    while True:
        yield from source.skip()
        tag = yield from source.taken(markup.argument, markup.call_end)
        if tag == markup.call_end:
            source.say("arguments", "{}" if opening == "{" else "}")
            return
        if tag is None:
            if (yield from source.ahead()):  # something else; what was read so far is a call nevertheless
                source.say("arguments", "{}" if opening == "{" else "}")
            raise Malformed("an argument")
        key, text = yield from markup.key(source)
        source.say("arguments", f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        opening = ", "
        wanted = schema_of(schema, key)
        if only_string(wanted) if text is None else text:
            yield from _string(source, markup)
        else:
            raw = yield from _whole(source, markup)
            source.say("arguments", converted(raw))


def schema_of(schema: Mapping[str, Any], key: str) -> Any:
    """The schema of one parameter."""
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def only_string(schema: Any) -> bool:
    """Whether nothing but a string fits this schema."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(schema.get("enum"), list):
        return all(isinstance(item, str) for item in schema["enum"])
    return bool(schema.get("type") == "string")


def converted(raw: str) -> str:
    """A value's text as JSON: itself if it is JSON, Python's notation translated, else a string."""
    text = raw.strip()

    def refuse(_constant: str) -> NoReturn:
        raise ValueError("not JSON")

    try:
        json.loads(text, parse_constant=refuse)
        return text
    except (ValueError, RecursionError):
        pass
    if len(text) <= MAX_LITERAL:
        try:
            with warnings.catch_warnings(action="ignore"):  # of the compiler; they quote the text
                return whole(json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return json.dumps(raw, ensure_ascii=False)


def _string(source: Source, markup: Markup) -> Reading:
    source.say("arguments", '"')
    if markup.pad:
        yield from source.taken(markup.pad)
        source.settle()
    end, ends = markup.argument_end, (markup.pad + markup.argument_end, markup.argument_end)
    while True:
        rest = source.text[source.at :]
        place = rest.find(end)
        if place >= 0:
            source.at += place + len(end)
            source.say("arguments", _escaped(rest[:place].removesuffix(markup.pad)) + '"')
            return
        cut = len(rest) if source.ended else len(rest) - held(rest, ends)
        source.at += cut
        source.say("arguments", _escaped(rest[:cut]))
        if source.ended:
            raise Malformed("a value has no end")
        yield


def _whole(source: Source, markup: Markup) -> Generator[None, None, str]:
    if markup.pad:
        yield from source.taken(markup.pad)
    searched = source.at
    kept = source.at
    while True:
        place = source.text.find(markup.argument_end, max(kept, searched))
        if place >= 0:
            raw = source.text[kept:place]
            source.at = place + len(markup.argument_end)
            return raw.removesuffix(markup.pad)
        if source.ended:
            source.at = len(source.text)
            raise Malformed("a value has no end")
        done = len(source.text) - kept
        source.at = kept
        yield
        kept = source.at
        searched = kept + max(0, done - len(markup.argument_end))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


# -- the grammar of calls -------------------------------------------------------------------------------------------------


def arguments_rule(grammar: Grammar, tool: Tool, markup: Markup, separator: str = "") -> str:
    """The rule of a tool's arguments in this markup: in the schema's order, optional ones may be missing. Raises SchemaError."""
    schema = tool.parameters
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description", "$schema"}
    extra = next((key for key in schema if key not in known), None)
    if extra is not None or schema.get("type", "object") != "object":
        raise SchemaError(f"the parameters of {tool.name}: {extra or 'type'} cannot be expressed in this model's format")
    properties = schema.get("properties")
    required = schema.get("required") or ()
    rules = []
    for key, wanted in (properties if isinstance(properties, Mapping) else {}).items():
        between = f'" string="{str(only_string(wanted)).lower()}">' if markup.typed else markup.between
        opening = literal(f"{markup.argument}{key}{between}{markup.pad}")
        rule = grammar.add(f"{opening} {_value(grammar, tool, key, wanted)} {literal(markup.pad + markup.argument_end + separator)}")
        rules.append(rule if key in required else f"({rule})?")
    return grammar.add(" ".join(rules) or '""')


def _value(grammar: Grammar, tool: Tool, key: str, schema: Any) -> str:
    where = f"the parameters of {tool.name}"
    try:
        if not only_string(schema):
            shared = {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}
            return grammar.schema({**shared, **schema} if isinstance(schema, dict) else schema)
        extra = next((name for name in schema if name not in _STRING_KEYS), None)
        if extra is not None:
            raise SchemaError(f"$.properties.{key}: {extra} cannot be expressed in this model's format")
    except SchemaError as exc:
        raise SchemaError(f"{where} cannot be expressed by a grammar: {exc}") from None
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices is not None:
        return "(" + " | ".join(literal(str(choice)) for choice in choices) + ")"
    return grammar.add('([^<] | "<" [^/<])*')
