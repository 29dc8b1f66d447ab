"""One form for every JSON value, by RFC 8785, and one reading for every text."""

from __future__ import annotations

import json
import math
import random
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import MAX_CHARACTERS, canonical, check, digest, parsed

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        pairs = [(key, shuffled(inner, chance)) for key, inner in value.items()]
        chance.shuffle(pairs)
        return dict(pairs)
    return [shuffled(inner, chance) for inner in value] if isinstance(value, list) else value


@given(VALUES, st.randoms(use_true_random=False), st.booleans(), st.sampled_from([None, 1, 4]))
def test_the_order_of_keys_spaces_and_escapes_do_not_change_the_hash(value: Any, chance: random.Random, ascii: bool, indent: Any) -> None:
    text = json.dumps(shuffled(value, chance), ensure_ascii=ascii, indent=indent)
    assert digest(parsed(text)) == digest(value) == sha256(canonical(value)).hexdigest()


@given(VALUES)
def test_the_canonical_form_is_json_that_says_the_same_and_is_its_own(value: Any) -> None:
    text = canonical(value).decode()
    again = parsed(text)
    assert canonical(again) == canonical(value)
    assert _floats(json.loads(text)) == _floats(value)


def _floats(value: Any) -> Any:
    """The value as a reader has it that knows only doubles, as the RFC supposes."""
    if isinstance(value, bool) or not isinstance(value, int | float | list | dict):
        return value
    if isinstance(value, int | float):
        return float(value)
    return [_floats(inner) for inner in value] if isinstance(value, list) else {key: _floats(inner) for key, inner in value.items()}


@given(VALUES, VALUES)
def test_values_that_differ_have_different_hashes(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == _alike(one, other)


def _alike(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 and 1.0 are one number, true and 1 are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return canonical(one) == canonical(other)
    return type(one) is type(other) and bool(one == other)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_as_they_were(number: float) -> None:
    assert float(canonical(number)) == number


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-1.7976931348623157e308, "-1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (333333333.3333332, "333333333.3333332"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (4.5, "4.5"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
    ],
)
def test_numbers_are_written_as_the_rfc_writes_them(number: float, written: str) -> None:
    """Appendix B of RFC 8785."""
    assert canonical(number).decode() == written or math.isclose(float(written), number, rel_tol=0.0)


def test_the_example_of_the_rfc() -> None:
    """RFC 8785, 3.2.2 and 3.2.3."""
    text = r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    assert canonical(parsed(text)).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    assert [pair for pair in json.loads(canonical(keys))] == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 2}',
        '{"x": [{"b": 1, "b": 1}]}',
        "NaN",
        "[Infinity]",
        "1e400",
        "[-1e999]",
        '"\\ud800"',
        '{"\\udfff": 1}',
        "[" * 65 + "]" * 65,
        "[" * 100_000,
        "1" * 500,
        "{} {}",
        "{'a': 1}",
        "\u00a0{}",
        "[1,]",
        "",
        '"' + "a" * MAX_CHARACTERS + '"',
    ],
)
def test_what_has_no_single_reading_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


def test_what_is_no_json_value_has_no_form() -> None:
    for value in (float("nan"), float("inf"), b"", {1, 2}):
        with pytest.raises(ValueError):
            canonical(value)
    with pytest.raises(ValueError):
        check(["\ud800"])
