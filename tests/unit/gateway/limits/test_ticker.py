"""The time of limits: small numbers in each process, and the same moments for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import FakeClock
from gateway.limits.ticker import Ticker

YEAR = 365 * 86_400


def test_it_counts_picoseconds_from_the_start_of_the_process() -> None:
    clock = FakeClock(monotonic=3.0 * YEAR + 1.5, epoch=3.0 * YEAR)
    assert Ticker(clock).now() == Ticker(clock).now_in_nanos() == 1_500_000_000_000
    assert 0 <= Ticker().now() < 1 << 62


@given(
    st.integers(0, 10 * YEAR),
    st.integers(0, 10 * YEAR),
    st.floats(0, YEAR, allow_nan=False),
)
def test_processes_that_began_at_different_times_mean_the_same_moment(first: int, second: int, passed: float) -> None:
    now = max(first, second) + passed
    one, other = Ticker(FakeClock(now, epoch=float(first))), Ticker(FakeClock(now, epoch=float(second)))
    told = one.now_in_nanos()
    assert one.heard(one.told(told)) == told
    assert other.told(other.heard(one.told(told))) == one.told(told)
    assert (
        abs(other.heard(one.told(told)) - other.now()) <= 1_000_000
    )  # what a float of ten years cannot tell apart, and less than a microsecond
