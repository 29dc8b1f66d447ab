"""Durations and sizes as people write them: what is written reads as the same."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.units import duration, size, written, written_size


def test_a_size_is_told_in_the_largest_unit_that_fits() -> None:
    told = {0: "0B", 1: "1B", 1024: "1KiB", 1025: "1025B", 256 << 20: "256MiB", 3 << 30: "3GiB", 1 << 50: "1048576GiB"}
    assert {count: written_size(count) for count in told} == told


@given(st.integers(0, 10**14))
def test_a_size_that_is_told_can_be_given(count: int) -> None:
    assert size(written_size(count)) == count


@given(st.integers(0, 10**14))
def test_a_duration_that_is_told_can_be_given(microseconds: int) -> None:
    assert duration(written(microseconds / 1_000_000)) == microseconds / 1_000_000
