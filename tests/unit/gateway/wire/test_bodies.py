"""How deep a JSON body may nest."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.wire.bodies import check_depth

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\ab\u00e9', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{"\\k', max_size=3), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max((depth_of(v) for v in value), default=0)
    if isinstance(value, dict):
        return 1 + max((depth_of(v) for v in value.values()), default=0)
    return 0


@given(JSON, st.booleans())
def test_depth_is_exact(value: Any, ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    depth = depth_of(value)
    check_depth(body, depth)
    if depth:
        with pytest.raises(RequestError, match="nested deeper"):
            check_depth(body, depth - 1)


@pytest.mark.parametrize("tail", [b'"' + b'\\"' * 200_000, b'"' + b"\\" * 400_001, b'"' + b"a" * 400_000, b'""' * 200_000])
def test_the_depth_of_hostile_strings_takes_linear_time(tail: bytes) -> None:
    start = time.process_time()
    check_depth(b"[]," * 100 + tail, 64)
    assert time.process_time() - start < 2.0, "quadratic: some hours"
