"""Schemas become grammars that are never wider than the schema, or are refused by name."""

import re
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat.schema import MAX_DEPTH, MAX_NAMES, SchemaError, check_grammar, integers, json_object, json_schema, literal


def pattern(alternatives: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(part.replace('"', "").replace(" ", "") for part in alternatives))


@given(st.integers(-3000, 3000), st.integers(-3000, 3000))
def test_integer_bounds_are_exact(one: int, other: int) -> None:
    low, high = sorted((one, other))
    accepts = pattern(integers(low, high))
    for value in {low - 1, low, low + 1, high - 1, high, high + 1, 0, (low + high) // 2, low * 10, high * 10, -low, -high}:
        assert bool(accepts.fullmatch(str(value))) == (low <= value <= high), value
    assert not accepts.fullmatch("00") and not accepts.fullmatch("-0") and not accepts.fullmatch("")


def test_small_ranges_completely() -> None:
    for low in range(-25, 25):
        for high in range(low, 25):
            accepts = pattern(integers(low, high))
            assert [n for n in range(-120, 120) if accepts.fullmatch(str(n))] == list(range(low, high + 1))


GOOD = [
    {}, True, {"type": "object"}, {"type": "string", "minLength": 2, "maxLength": 5}, {"type": ["string", "null"]}, {"const": {"a": [1]}},
    {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4}, {"type": "array", "prefixItems": [{"type": "null"}, {}]},
    {"type": "object", "properties": {"a": {}, 'q"uote\\': {"type": "boolean"}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "object", "properties": {}, "additionalProperties": False},
    {"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
     "$ref": "#/$defs/node"},
    {"allOf": [{"type": "object", "properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
    {"type": "string", "format": "date-time"}, {"type": "string", "nullable": True}, {"properties": {"a": {"enum": [1, "x", None]}}},
    {"title": "t", "description": "d", "default": 1, "type": "integer", "exclusiveMinimum": 0},
]  # fmt: skip


@pytest.mark.parametrize("schema", GOOD)
def test_every_rule_that_is_used_exists(schema: object) -> None:
    rules = dict(line.split(" ::= ", 1) for line in json_schema(schema).splitlines())
    assert next(iter(rules)) == "root"
    for body in rules.values():
        bare = re.sub(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[^}]*\}', " ", body)
        assert set(re.findall(r"[a-z][a-z0-9]*", bare)) <= set(rules)


BAD = [
    ({"type": "string", "pattern": "a+"}, r"\$.pattern"), ({"type": "number", "minimum": 0}, r"\$.minimum"), ({"not": {}}, r"\$.not"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"type": "string", "format": "email"}, "email"),
    ({"$ref": "http://example.com/schema"}, "only references inside"), ({"$ref": "#/$defs/none"}, "does not exist"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "nothing but itself"), ({"type": "thing"}, "'thing' is not a type"),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "'b' is not among"), ({"enum": []}, "enum"), (3, "must be an object"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "no whole number"), ({"type": "string", "maxLength": 10**9}, "maxLength"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "below"), ({"allOf": [{"type": "string"}]}, "allOf"),
    ({"properties": {"x": {"properties": {"y": {"type": "string", "pattern": "a"}}}}}, r"\$.properties.x.properties.y.pattern"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "word"), BAD)
def test_what_cannot_be_expressed_is_named(schema: object, word: str) -> None:
    with pytest.raises(SchemaError, match=word):
        json_schema(schema)


def test_depth_and_size_are_bounded() -> None:
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH + 2):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="nested deeper"):
        json_schema(deep)
    with pytest.raises(SchemaError, match="grammar rules"):
        json_schema({"type": "object", "properties": {f"p{n}": {"enum": [n]} for n in range(1500)}})


def test_names_are_counted_before_anything_grows_with_them() -> None:
    named = {"type": "object", "properties": {f"p{n}": {} for n in range(900)}, "required": ["p0"] * MAX_NAMES}
    with pytest.raises(SchemaError, match="properties and required ones"):
        json_schema(named)
    many = {"properties": {"a": {}}, "required": ["a"] * 1000}
    with pytest.raises(SchemaError, match="properties and required ones"):
        json_schema({"allOf": [{"$ref": "#/$defs/many"}] * 10_000, "$defs": {"many": many}})


def test_literals_are_escaped() -> None:
    assert literal('a"b\\c\n') == '"a\\"b\\\\c\\n"'


def test_the_grammar_of_objects_starts_with_an_object() -> None:
    assert json_object().startswith("root ::= object\n")


def test_what_a_grammar_costs_is_bounded() -> None:
    check_grammar('root ::= "a"{3} ("b" | "c")*')
    with pytest.raises(SchemaError, match="may be empty"):
        check_grammar("root ::= ([a-z]*)*")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": {}}, {"type": [{"a": 1}]}, {"$ref": []}, {"$ref": {}}, {"type": "string", "format": []}, {"type": "string", "format": {}},
        {"type": "object", "properties": {"a": {}}, "required": [[]]}, {"type": "object", "properties": {"a": {}}, "required": [{}]},
        {"allOf": 5}, {"allOf": [{"properties": []}]}, {"allOf": [{"required": 5}]}, {"allOf": [{"type": []}]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}, {"type": []},
        {"type": "array", "prefixItems": 5}, {"type": "array", "prefixItems": None}, {"type": "array", "prefixItems": {"a": {}}},
        {"type": reduce(lambda kind, _: [kind], range(900), "string")},
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_and_circles_are_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        json_schema(schema)
