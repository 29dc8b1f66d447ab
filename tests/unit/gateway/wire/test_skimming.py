"""Large documents without what makes them large."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.slices import at_once
from gateway.wire.skimming import PORTION, skimmed
from tests.steady import at_most, longest_step

ROW = [round(number * 1e-5, 6) for number in range(1536)]
BASE64 = "QUFB" * 2048 + "QQ=="
USAGE = {"prompt_tokens": 5, "total_tokens": 5}


def embeddings(vector: Any, count: int) -> bytes:
    rows = [{"object": "embedding", "index": number, "embedding": vector} for number in range(count)]
    return json.dumps({"object": "list", "data": rows, "model": "m", "usage": USAGE}).encode()


@pytest.mark.parametrize(("vector", "less"), [(ROW, []), (BASE64, "")])
def test_vectors_are_left_out(vector: Any, less: Any) -> None:
    document = embeddings(vector, 200)
    assert len(document) > 4 * PORTION
    assert json.loads(at_once(skimmed(document))) == json.loads(embeddings(less, 200))
    assert sum(1 for _ in skimmed(document)) > len(document) // PORTION - 2


def test_what_is_short_stays() -> None:
    document = json.dumps({"a": [1, 2.5e-3, -4], "b": "A" * 500, "c": {"d": "x [" + "1," * 10 + "]"}}).encode()
    assert at_once(skimmed(document)) == document


VALUES = st.recursive(
    st.integers() | st.text() | st.lists(st.floats(allow_nan=False), max_size=40),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_what_is_valid_stays_valid(value: Any, plain: bool) -> None:
    document = json.dumps([value, ROW, {"k": [value], "b": BASE64}], ensure_ascii=plain).encode("utf-8", "surrogatepass")
    found = json.loads(at_once(skimmed(document)).decode("utf-8", "surrogatepass"))
    assert len(found) == 3 and found[1] == [] and found[2]["b"] == "" and list(found[2]) == ["k", "b"]


@pytest.mark.parametrize("document", [embeddings(ROW, 800), embeddings(BASE64, 1600), b'{"a": "' + b"lorem ipsum [1] " * 1_000_000 + b'"}'])
def test_no_step_is_long(document: bytes) -> None:
    at_most(0.06, lambda: longest_step(skimmed(document)))
