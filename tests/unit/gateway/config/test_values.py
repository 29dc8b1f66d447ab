"""Durations, sizes and numbers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("50ms", 0.05),
        ("1m", 60.0),
        ("2h", 7200.0),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        ("7", 7.0),
        ("1d", 86400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1 s", "1S", "-1s", "1s ", "1w", "٣s", "1e3s", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    assert values.duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("1KB", 1000), ("1.5KiB", 1536), ("12", 12), ("2 GiB", 2 << 30), ("9B", 9)]
)
def test_sizes(text: str, size: int) -> None:
    assert values.size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1mib", "1.5", "-1KiB", "1Mi", "٣KiB"])
def test_what_is_no_size(text: str) -> None:
    assert values.size(text) is None


@pytest.mark.parametrize("text", ["1_000", "0x10", "012", "1.", "٣", "1e", "", "+", "1e999", "9" * 400, ".inf", "NaN"])
def test_numbers_are_plain_and_finite(text: str) -> None:
    assert values.integer(text) is None
    value = values.number(text)
    assert value is None or text == "1."


@settings(deadline=None)
@given(st.integers(-(10**18), 10**18))
def test_integers_round_trip(value: int) -> None:
    assert values.integer(str(value)) == value
    assert values.untyped(str(value), plain=True) == value
    assert values.untyped(str(value), plain=False) == str(value)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (values.duration, values.size, values.integer, values.number, values.truth):
        read(text)
