"""JSON Schema to GBNF, llama.cpp's grammar language: the text of a constrained generation always satisfies the schema.

The grammar may be narrower than the schema (properties in their order, none that are not declared), never wider: a
keyword that cannot be expressed is an error that names it, because ignoring it would hand out text that does not validate.
`$ref` is followed inside the document only. GBNF: llama.cpp's grammars/README.md; JSON: RFC 8259.
"""

from __future__ import annotations

import json
from typing import Any

from engines.chat.gbnf import Check, refusal

MAX_RULES = 2000
MAX_DEPTH = 48
MAX_REPEAT = 1000
MAX_NAMES = 2 * MAX_RULES
"""The most names of properties, required or not, of one object with all that `allOf` combines. More could not be expressed anyway."""

_PRIMITIVES = {
    "space": '| " " | "\\n" [ \\t]{0,20}',
    "char": '[^"\\\\\\x7F\\x00-\\x1F] | [\\\\] (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "string": '"\\"" char* "\\"" space',
    "integer": '("-"? ([0] | [1-9] [0-9]{0,15})) space',
    "number": '("-"? ([0] | [1-9] [0-9]{0,15})) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})? space',
    "boolean": '("true" | "false") space',
    "null": '"null" space',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" space ( string ":" space value ("," space string ":" space value)* )? "}" space',
    "array": '"[" space ( value ("," space value)* )? "]" space',
    "date": '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [1-2] [0-9] | "3" [0-1] )',
    "time": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{3} )? '
    '( "Z" | ( "+" | "-" ) ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )',
    "uuid": '[0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{12}',
}
_NEEDS = {
    "string": ("char", "space"), "integer": ("space",), "number": ("space",), "boolean": ("space",), "null": ("space",),
    "value": ("object", "array", "string", "number", "boolean", "null"), "object": ("value", "space"), "array": ("value", "space"),
}  # fmt: skip
_FORMATS = {"date": "date", "time": "time", "date-time": 'date "T" time', "uuid": "uuid"}
_NOTES = frozenset({
    "title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly",
    "$defs", "definitions", "nullable",
})  # fmt: skip
_KEYS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems", "prefixItems"},
    "string": {"minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(), "boolean": set(), "null": set(),
}  # fmt: skip


class SchemaError(Exception):
    """The schema cannot be expressed; the message names the place and the keyword."""


def literal(text: str) -> str:
    """A GBNF string that matches exactly `text`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


class Grammar:
    """Collects rules. `schema` adds what a schema needs and returns the name of its rule; `text` is the whole grammar."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._refs: dict[str, str] = {}
        self._document: Any = {}

    def text(self, root: str) -> str:
        """The grammar, starting with the expression `root`."""
        return "\n".join(f"{name} ::= {body}" for name, body in {"root": root, **self._rules}.items()) + "\n"

    def primitive(self, name: str) -> str:
        """Add one of the rules every grammar of JSON needs, with those it uses."""
        if name not in self._rules:
            self._rules[name] = _PRIMITIVES[name]
            for other in _NEEDS.get(name, ()):
                self.primitive(other)
        return name

    def add(self, body: str) -> str:
        """Add a rule of its own; its name."""
        if len(self._rules) >= MAX_RULES:
            raise SchemaError(f"the schema needs more than {MAX_RULES} grammar rules")
        name = f"r{len(self._rules)}"
        self._rules[name] = body
        return name

    def schema(self, schema: Any) -> str:
        """The rule of a whole schema document. Raises SchemaError."""
        self._document = schema
        self._refs = {}
        self.primitive("space")
        return self._visit(schema, "$", 0)

    def _visit(self, schema: Any, at: str, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise SchemaError(f"{at}: nested deeper than {MAX_DEPTH}")
        if schema is True or schema == {}:
            return self.primitive("value")
        if not isinstance(schema, dict):
            raise SchemaError(f"{at}: a schema must be an object")
        if "$ref" in schema:
            return self._ref(schema, at, depth)
        if "const" in schema:
            return self._constants([schema["const"]], schema, at, "const")
        if "enum" in schema:
            return self._constants(schema["enum"], schema, at, "enum")
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._any(schema, key, at, depth)
        if "allOf" in schema:
            return self._visit(self._merged(schema, at), at, depth + 1)
        return self._typed(schema, at, depth)

    def _ref(self, schema: dict[str, Any], at: str, depth: int) -> str:
        self._only(schema, {"$ref"}, at)
        target = schema["$ref"]
        if not isinstance(target, str) or target not in self._refs:
            resolved = self._resolve(target, at)
            name = self.add("")  # first, so that a schema may refer to itself
            self._refs[target] = name
            self._rules[name] = self._visit(resolved, str(target), depth + 1)
            if self._rules[name] == name:
                raise SchemaError(f"{at}: {target} refers to nothing but itself")
        return self._refs[target]

    def _resolve(self, target: Any, at: str) -> Any:
        if not isinstance(target, str) or not target.startswith("#"):
            raise SchemaError(f"{at}.$ref: only references inside the schema (#/...) are followed")
        node = self._document
        for part in target[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or part not in node:
                raise SchemaError(f"{at}.$ref: {target} does not exist")
            node = node[part]
        return node

    def _constants(self, values: Any, schema: dict[str, Any], at: str, key: str) -> str:
        self._only(schema, {key, "type"}, at)
        if not isinstance(values, list) or not values:
            raise SchemaError(f"{at}.{key}: must be a list of values")
        return self.add("(" + " | ".join(literal(json.dumps(value, ensure_ascii=False)) for value in values) + ") space")

    def _any(self, schema: dict[str, Any], key: str, at: str, depth: int) -> str:
        self._only(schema, {key}, at)
        options = schema[key]
        if not isinstance(options, list) or not options:
            raise SchemaError(f"{at}.{key}: must be a list of schemas")
        return self.add(" | ".join(self._visit(option, f"{at}.{key}[{n}]", depth + 1) for n, option in enumerate(options)))

    def _merged(self, schema: dict[str, Any], at: str) -> dict[str, Any]:
        """`allOf` of object schemas: their properties together."""
        result: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
        if not isinstance(schema["allOf"], list):
            raise SchemaError(f"{at}.allOf: must be a list of schemas")
        parts = [{key: value for key, value in schema.items() if key != "allOf"}, *schema["allOf"]]
        named = 0
        for number, part in enumerate(parts):
            followed = 0
            while isinstance(part, dict) and "$ref" in part:
                part, followed = self._resolve(part["$ref"], at), followed + 1
                if followed > MAX_DEPTH:
                    raise SchemaError(f"{at}.allOf[{number}]: its references lead nowhere")
            if not isinstance(part, dict) or part.get("type", "object") != "object" or set(part) - _NOTES - _KEYS["object"] - {"type"}:
                raise SchemaError(f"{at}.allOf[{number}]: only plain object schemas can be combined")
            properties, required = part.get("properties", {}), part.get("required", [])
            if not isinstance(properties, dict) or not isinstance(required, list):
                raise SchemaError(f"{at}.allOf[{number}]: properties must be an object, required a list")
            named += len(properties) + len(required)
            if named > MAX_NAMES:
                raise SchemaError(f"{at}.allOf: more than {MAX_NAMES} properties and required ones together")
            result["properties"] |= properties
            result["required"] += required
        return result

    def _typed(self, schema: dict[str, Any], at: str, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise SchemaError(f"{at}: nested deeper than {MAX_DEPTH}")
        kind = schema.get("type")
        if kind is None:
            kind = next((name for name, keys in _KEYS.items() if keys & set(schema)), None)
            if kind is None:
                self._only(schema, set(), at)
                return self.primitive("value")
        if isinstance(kind, list) and kind:
            return self.add(" | ".join(self._typed(self._of_type(schema, name), at, depth + 1) for name in kind))
        if not isinstance(kind, str) or kind not in _KEYS:
            raise SchemaError(f"{at}.type: {kind!r} is not a type")
        self._only(schema, _KEYS[kind] | {"type"}, at)
        body = {"object": self._object, "array": self._array, "string": self._string, "integer": self._integer}.get(kind)
        name = self.primitive(kind) if body is None else body(schema, at, depth)
        return self.add(f"{name} | {self.primitive('null')}") if schema.get("nullable") else name

    @staticmethod
    def _of_type(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
        keys = _KEYS.get(kind, set()) if isinstance(kind, str) else set()
        others = set().union(*_KEYS.values()) - keys
        return {**{key: value for key, value in schema.items() if key not in others}, "type": kind}

    def _only(self, schema: dict[str, Any], known: set[str], at: str) -> None:
        unknown = sorted(set(schema) - known - _NOTES)
        if unknown:
            raise SchemaError(f"{at}.{unknown[0]}: this keyword cannot be expressed by a grammar")

    def _object(self, schema: dict[str, Any], at: str, depth: int) -> str:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        more = schema.get("additionalProperties", True)
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise SchemaError(f"{at}: properties must be an object, required a list")
        if len(properties) + len(required) > MAX_NAMES:
            raise SchemaError(f"{at}: more than {MAX_NAMES} properties and required ones together")
        missing = [name for name in required if not isinstance(name, str) or name not in properties]
        if missing:
            raise SchemaError(f"{at}.required: {missing[0]!r} is not among the properties")
        if not properties:
            if more is False:
                return self.add('"{" space "}" space')
            if more is True:
                return self.primitive("object")
            pair = f'{self.primitive("string")} ":" space {self._visit(more, f"{at}.additionalProperties", depth + 1)}'
            return self.add(f'"{{" space ( {pair} ("," space {pair})* )? "}}" space')
        first = rest = '"}" space'
        for name in reversed(properties):
            value = self._visit(properties[name], f"{at}.properties.{name}", depth + 1)
            pair = f'{literal(json.dumps(name, ensure_ascii=False))} space ":" space {value}'
            if name in required:
                first, rest = self.add(f"{pair} {rest}"), self.add(f'"," space {pair} {rest}')
            else:
                first, rest = self.add(f"{pair} {rest} | {first}"), self.add(f'("," space {pair})? {rest}')
        return self.add(f'"{{" space {first}')

    def _array(self, schema: dict[str, Any], at: str, depth: int) -> str:
        if "prefixItems" in schema:
            self._only(schema, {"prefixItems", "type"}, at)
            if not isinstance(schema["prefixItems"], list):
                raise SchemaError(f"{at}.prefixItems: must be a list of schemas")
            items = [self._visit(item, f"{at}.prefixItems[{n}]", depth + 1) for n, item in enumerate(schema["prefixItems"])]
            return self.add('"[" space ' + ' "," space '.join(items) + ' "]" space')
        item = self._visit(schema.get("items", True), f"{at}.items", depth + 1)
        low, high = self._range(schema, "minItems", "maxItems", at)
        if high == 0:
            return self.add('"[" space "]" space')
        upper = "" if high is None else str(high - 1)
        some = f'{item} ("," space {item}){{{max(low - 1, 0)},{upper}}}'
        return self.add(f'"[" space {some} "]" space' if low else f'"[" space ({some})? "]" space')

    def _string(self, schema: dict[str, Any], at: str, depth: int) -> str:
        form = schema.get("format")
        if form is not None:
            if not isinstance(form, str) or form not in _FORMATS:
                raise SchemaError(f"{at}.format: {form!r} cannot be expressed by a grammar (date, time, date-time, uuid can)")
            for name in ("date", "time", "uuid"):
                if name in _FORMATS[form]:
                    self.primitive(name)
            return self.add(f'"\\"" {_FORMATS[form]} "\\"" space')
        low, high = self._range(schema, "minLength", "maxLength", at)
        if low == 0 and high is None:
            return self.primitive("string")
        self.primitive("char")
        return self.add(f'"\\"" char{{{low},{"" if high is None else high}}} "\\"" space')

    def _range(self, schema: dict[str, Any], least: str, most: str, at: str) -> tuple[int, int | None]:
        low, high = schema.get(least, 0), schema.get(most)
        for key, value in ((least, low), (most, high)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_REPEAT):
                raise SchemaError(f"{at}.{key}: must be a whole number from 0 to {MAX_REPEAT}")
        if high is not None and high < low:
            raise SchemaError(f"{at}: {most} is below {least}")
        return low, high

    def _integer(self, schema: dict[str, Any], at: str, depth: int) -> str:
        if not _KEYS["integer"] & set(schema):
            return self.primitive("integer")
        low, high = -(10**15), 10**15
        for key, shift in (("minimum", 0), ("exclusiveMinimum", 1), ("maximum", 0), ("exclusiveMaximum", -1)):
            value = schema.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 10**15:
                raise SchemaError(f"{at}.{key}: must be a whole number within 10^15")
            low, high = (max(low, value + shift), high) if key.endswith("inimum") else (low, min(high, value + shift))
        if high < low:
            raise SchemaError(f"{at}: no whole number is between the bounds")
        return self.add(f"({' | '.join(integers(low, high))}) space")


def integers(low: int, high: int) -> list[str]:
    """GBNF alternatives that together match exactly the whole numbers from `low` to `high`, without leading zeros."""
    if low < 0:
        negative = [f'"-" {part}' for part in _naturals(max(1, -high), -low)]
        return negative + (_naturals(0, high) if high >= 0 else [])
    return _naturals(low, high)


def _naturals(low: int, high: int) -> list[str]:
    parts = []
    while low <= high:
        digits = len(str(low))
        top = min(high, 10**digits - 1)
        parts += _same_length(str(low), str(top))
        low = top + 1
    return parts


def _same_length(low: str, high: str) -> list[str]:
    """Numbers of one length between two bounds: split where the first digits differ, then descend on both edges."""
    if not low:
        return [""]
    if low[0] == high[0]:
        return [_join(f'"{low[0]}"', tail) for tail in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    parts = []
    first, last = int(low[0]), int(high[0])
    if low[1:].strip("0"):
        parts += [_join(f'"{first}"', tail) for tail in _same_length(low[1:], "9" * rest)]
        first += 1
    upper = []
    if high[1:].strip("9"):
        upper = [_join(f'"{last}"', tail) for tail in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        parts.append(_join(f"[{first}-{last}]", f"[0-9]{{{rest}}}" if rest else ""))
    return parts + upper


def _join(head: str, tail: str) -> str:
    return f"{head} {tail}" if tail else head


def json_object() -> str:
    """The grammar of `response_format: {"type": "json_object"}`."""
    grammar = Grammar()
    return grammar.text(grammar.primitive("object"))


def json_schema(schema: Any, check: Check = refusal) -> str:
    """The grammar of a schema. Raises SchemaError."""
    grammar = Grammar()
    text = grammar.text(grammar.schema(schema))
    check_grammar(text, check)
    return text


def check_grammar(text: str, check: Check = refusal) -> None:
    """Bounds on what a grammar costs, so that llama.cpp is safe from it. Raises SchemaError."""
    refused = check(text)
    if refused is not None:
        raise SchemaError(refused)
