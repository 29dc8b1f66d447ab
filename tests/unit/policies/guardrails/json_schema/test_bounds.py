"""Schemas that can be checked in bounded time, and those that cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.guardrails.json_schema.bounds import MAX_DEPTH, MAX_NODES, MAX_READINGS, check, depth


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


USABLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an object": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "number"}}}},
    "a tree": {"$defs": {"node": {"properties": {"left": ref("node"), "right": ref("node")}}}, **ref("node")},
    "a list of itself": {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}, "additionalProperties": False},
    "alternatives": {"anyOf": [{"properties": {"kind": {"const": n}, "child": {"type": "object"}}} for n in range(20)]},
    "many properties": {
        "properties": {f"p{n}": ref("v") for n in range(300)},
        "$defs": {"v": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
    },
    "a tuple": {"prefixItems": [{"type": "string"}, {"$ref": "#"}], "items": {"type": "null"}},
    "escaped names": {"$defs": {"a/b~c": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a~1b~0c"}}},
}
BOMB = {"$defs": {f"n{n}": {"allOf": [ref(f"n{n + 1}"), ref(f"n{n + 1}")]} for n in range(20)} | {"n20": {}}, **ref("n0")}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(100):
    DEEP = {"items": DEEP}
REFUSED: dict[str, tuple[Any, str]] = {
    "a list": ([], "a schema is an object"),
    "another file": ({"$ref": "https://example.com/schema.json"}, "only references into the schema itself"),
    "a file": ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "only references into the schema itself"),
    "an identifier inside": ({"properties": {"a": {"$id": "https://example.com/"}}}, "only allowed at the top"),
    "nothing there": ({"$ref": "#/$defs/x"}, "there is no"),
    "itself": ({"$ref": "#"}, "refers to itself for the same value"),
    "itself by a detour": ({"$defs": {"a": {"allOf": [ref("b")]}, "b": {"not": ref("a")}}, **ref("a")}, "refers to itself"),
    "doubling": (BOMB, "read more than"),
    "doubling with the depth": ({"anyOf": [{"properties": {"c": {"$ref": "#"}}}, {"properties": {"c": {"$ref": "#"}}}]}, "read more than"),
    "by patterns too": ({"properties": {"c": {"$ref": "#"}}, "patternProperties": {"c": {"$ref": "#"}}}, "read more than"),
    "too deep": (DEEP, "nested deeper"),
    "too large": ({"properties": {str(n): {"type": "null"} for n in range(MAX_NODES + 1)}}, "more than"),
    "dynamic": ({"properties": {"a": {"$dynamicRef": "#x"}}}, "not supported"),
    "unevaluated": ({"unevaluatedProperties": False}, "not supported"),
}


@pytest.mark.parametrize("name", USABLE)
def test_schemas_that_are_used(name: str) -> None:
    check(USABLE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_schemas_that_are_not(name: str) -> None:
    schema, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        check(schema)


def readings(schema: dict[str, Any], root: dict[str, Any], value: Any) -> dict[int, int]:
    """How often each part of a value is read, counted by following the schema."""
    found: dict[int, int] = {}

    def read(here: Any, part: Any) -> None:
        if not isinstance(here, dict):
            return
        found[id(part)] = found.get(id(part), 0) + 1
        if "$ref" in here:
            read(root["$defs"][here["$ref"].rpartition("/")[2]], part)
        for inner in here.get("anyOf", ()):
            read(inner, part)
        if isinstance(part, dict):
            for name, inner in here.get("properties", {}).items():
                if name in part:
                    read(inner, part[name])
            if "additionalProperties" in here:
                for name in part.keys() - here.get("properties", {}).keys():
                    read(here["additionalProperties"], part[name])

    read(schema, value)
    return found


NAMES = st.sampled_from(["a", "b"])
SCHEMAS = st.recursive(
    st.just({}) | st.sampled_from(["x", "y"]).map(ref),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner,
        },
    ),
    max_leaves=6,
)


@given(SCHEMAS, SCHEMAS, SCHEMAS, st.lists(NAMES, max_size=9))
def test_what_passes_reads_nothing_more_often(root: dict[str, Any], x: dict[str, Any], y: dict[str, Any], path: list[str]) -> None:
    schema = {**root, "$defs": {"x": x, "y": y}}
    try:
        check(schema)
    except ValueError:
        return
    value: dict[str, Any] = {}
    for name in path:
        value = {name: value}
    assert max(readings(schema, schema, value).values(), default=0) <= MAX_READINGS


def test_depths() -> None:
    assert [depth(value) for value in (1, [], [1], {"a": [1]}, {"a": [{"b": {}}]})] == [0, 0, 1, 2, 3]
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert depth(deep) == MAX_DEPTH + 1
