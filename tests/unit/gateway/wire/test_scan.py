"""How deep a JSON body may nest and how many values it may have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.wire import scan, table
from tests.steady import at_most, spent

KEYS = st.text(alphabet='[{"\\k', max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\ab,\u00e9', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max((depth_of(v) for v in value), default=0)
    if isinstance(value, dict):
        return 1 + max((depth_of(v) for v in value.values()), default=0)
    return 0


def nodes_of(value: Any) -> int:
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return 1 + sum(map(nodes_of, value))
    if isinstance(value, dict):
        return 1 + sum(1 + nodes_of(v) for v in value.values())
    return 0


def counted(body: bytes, depth: int, nodes: int, values: int = 1 << 40) -> None:
    for _ in scan.counted(body, depth, nodes, values):
        pass


@given(st.binary(max_size=40) | st.text(alphabet="[{:a", max_size=40).map(str.encode), st.sampled_from(b"[{:a"), st.integers(0, 12))
def test_a_byte_is_counted_up_to_a_number(data: bytes, mark: int, most: int) -> None:
    assert scan.occurrences(data, bytes([mark]), most) == min(data.count(mark), most)


@given(JSON, st.integers(0, 8))
def test_a_small_body_nests_as_deep_as_it_may(value: Any, depth: int) -> None:
    body = json.dumps(value).encode()
    if depth_of(value) <= depth:
        scan.check(body, depth)
    else:
        with pytest.raises(RequestError, match="deeper"):
            scan.check(body, depth)


@given(JSON, st.booleans(), st.sampled_from([2, 4, 16, 64 * 1024]))
def test_depth_and_nodes_are_exact_however_the_body_is_cut(value: Any, ascii: bool, segment: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    depth, nodes = depth_of(value), nodes_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SEGMENT", segment)
        counted(body, depth, nodes)
        if depth:
            with pytest.raises(RequestError, match="nested deeper"):
                counted(body, depth - 1, nodes)
        if nodes:
            with pytest.raises(RequestError, match="arrays, objects and strings"):
                counted(body, depth, nodes - 1)


@given(JSON)
def test_the_check_never_refuses_what_is_within_the_limits(value: Any) -> None:
    body = json.dumps(value).encode()
    scan.check(body, depth_of(value), max(1, nodes_of(value)))


def test_numbers_have_a_bound_of_their_own() -> None:
    counted(b"[1,2,3]", 1, 1, 3)
    with pytest.raises(RequestError, match="values"):
        counted(b"[1,2,3,4]", 1, 1, 3)
    with pytest.raises(RequestError) as caught:
        scan.check(b"[" + b"1," * 600_000 + b"1]", 64)
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")


def test_a_large_text_is_one_node() -> None:
    text = 'def f(x): return [x["a"], {"b": x}]\n' * 100_000
    scan.check(json.dumps({"text": text}).encode(), 64, 256)


@pytest.mark.parametrize("tail", [b'"' + b'\\"' * 200_000, b'"' + b"\\" * 400_001, b'"' + b"a" * 400_000, b'""' * 20_000])
def test_hostile_strings_take_linear_time(tail: bytes) -> None:
    at_most(2.0, lambda: spent(lambda: scan.check(b"[]," * 100 + tail, 64)))  # quadratic: some hours


@pytest.mark.parametrize("unit", [b"[],", b'"",', b'{"a":1},', b"[[[]]],"])
def test_a_body_of_many_values_is_refused_before_it_is_decoded(unit: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"u"}],"x":[' + unit * (8_000_000 // len(unit)) + b"1]}"

    def refuse() -> None:
        with pytest.raises(RequestError, match="arrays, objects and strings"):
            table.parse(b"/v1/chat/completions", body, {})

    at_most(0.5, lambda: spent(refuse))  # 1.2 s where it was decoded
