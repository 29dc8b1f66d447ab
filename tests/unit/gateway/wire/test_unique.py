"""Keys that stand twice are found by counting colons."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import unique

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet=':\\u03aA"é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(st.sampled_from("ab:"), inner), max_size=3).map(tuple),
    max_leaves=15,
)
"""Objects are tuples of pairs, in which a key may stand twice."""


def written(value: Any, escape: bool) -> str:
    if isinstance(value, tuple):
        return "{" + " , ".join(f"{text(key, escape)} : {written(inner, escape)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(inner, escape) for inner in value) + "]"
    return text(value, escape) if isinstance(value, str) else json.dumps(value)


def text(value: str, escape: bool) -> str:
    found = json.dumps(value)
    return found.replace(":", "\\u003a") if escape else found


def twice(value: Any) -> bool:
    if isinstance(value, tuple):
        names = [key for key, _ in value]
        return len(set(names)) < len(names) or any(twice(inner) for _, inner in value)
    return isinstance(value, list) and any(map(twice, value))


@given(VALUES, st.booleans())
def test_colons_differ_if_and_only_if_a_key_stands_twice(value: Any, escape: bool) -> None:
    raw = written(value, escape).encode()
    decoded = msgspec.json.decode(raw)
    assert (unique.colons(raw) != unique.written(decoded)) is twice(value)


def test_the_error_names_the_key() -> None:
    assert unique.duplicate(b'{"a":1,"b":{"c":1,"c":2}}', "x").param == "x.c"
    assert unique.duplicate(b'{"a":1,"a":2}', "").param == "a"
    assert unique.duplicate(b'{"a":1,"a":"' + b"x" * unique.NAMED + b'"}', "x").param == "x"
