"""The arithmetic of buckets: exact, never generous."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.specs import LimitSpec, RateSpec
from gateway.limits.bucket import SECOND, Bucket, Shape
from gateway.limits.meter import Meter, meters_of

rates = st.builds(
    RateSpec,
    rate=st.integers(1, 10**7).map(float) | st.sampled_from([0.1, 0.25, 1.5, 33.3]),
    per=st.sampled_from([0.001, 1.0, 60.0, 3600.0, 86400.0]),
    burst=st.integers(1, 10**7).map(float),
)


def bucket(**limits: object) -> Bucket:
    return Bucket(Shape(LimitSpec(name="a", **limits)))  # type: ignore[arg-type]


def meter(spec: RateSpec) -> Meter:
    return meters_of(LimitSpec(name="a", tokens=spec))[0]


@settings(deadline=None)
@given(rates)
def test_a_unit_is_rounded_up_by_less_than_a_picosecond(spec: RateSpec) -> None:
    exact = Fraction(str(spec.per)) / Fraction(str(spec.rate)) * SECOND
    assert exact <= meter(spec).unit < exact + 1


@settings(deadline=None)
@given(rates, st.integers(0, 10**7))
def test_the_level_falls_by_what_is_taken(spec: RateSpec, units: int) -> None:
    rate = meter(spec)
    units = min(units, rate.burst)
    assert rate.level(0) == rate.level(-5) == rate.burst
    assert rate.level(units * rate.unit) == rate.burst - units
    assert rate.level(rate.burst_ps + 1) == 0


@settings(deadline=None)
@given(
    rates,
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**6)), max_size=60),
)
def test_never_more_than_burst_and_rate_times_time(spec: RateSpec, steps: list[tuple[int, int]]) -> None:
    """Between any two admissions, by exact arithmetic."""
    state = bucket(tokens=spec)
    rate = state.shape.meters[0]
    assert spec.burst is not None
    now = 10**18
    admitted: list[tuple[int, int]] = []
    for step, units in steps:
        now += step
        if units <= rate.burst and state.admits(now, [units]):
            state.take(now, [units])
            admitted.append((now, units))
    per_picosecond = Fraction(str(spec.rate)) / Fraction(str(spec.per)) / SECOND
    for first in range(len(admitted)):
        total = 0
        for when, units in admitted[first:]:
            total += units
            assert total <= Fraction(str(spec.burst)) + per_picosecond * (when - admitted[first][0])


@settings(deadline=None)
@given(rates, st.integers(0, 10**9))
def test_a_full_bucket_gives_its_burst_at_once_and_no_more(spec: RateSpec, now: int) -> None:
    state = bucket(tokens=spec)
    rate = state.shape.meters[0]
    assert state.admits(now, [rate.burst])
    state.take(now, [rate.burst])
    assert not state.admits(now, [1])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 100)), min_size=1, max_size=20), st.integers(0, 10 * SECOND))
def test_what_is_given_back_leaves_no_trace(before: list[tuple[int, int]], later: int) -> None:
    """Requests, tokens and concurrency are as if the exchange had not been."""
    used, twin = (bucket(requests=RateSpec(rate=10), tokens=RateSpec(rate=100, burst=5000), concurrent=99) for _ in range(2))
    now = SECOND
    for step, units in before:
        now += step
        for state in (used, twin):
            state.take(now, [1, units])
    used.take(now, [1, 777])
    used.give_back(now, [1, 777])
    now += later
    for cost in (0, 1, 100, 4000):
        assert used.admits(now, [1, cost]) == twin.admits(now, [1, cost])
    assert used.in_use == twin.in_use
    assert [max(full, now) for full in used.full] == [max(full, now) for full in twin.full]


def test_time_has_refilled_what_was_reserved_long_ago() -> None:
    """A refund after the bucket was full again would hand the same tokens out twice."""
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    state.take(0, [10])
    state.take(SECOND, [10])
    state.correct(0, SECOND, [10], [0])
    assert not state.admits(SECOND, [1])


def test_more_than_reserved_makes_a_debt() -> None:
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    rate = state.shape.meters[0]
    state.take(0, [1])
    state.correct(0, 0, [1], [30])
    assert rate.level(state.full[0]) == 0
    assert not state.admits(2 * SECOND, [1])
    assert not state.admits(3 * SECOND - 1, [10])
    assert state.admits(3 * SECOND, [10])


def test_a_debt_of_a_bucket_that_was_full_begins_now_and_is_not_refunded_by_older_ones() -> None:
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    state.take(0, [5])
    state.take(0, [5])
    state.correct(0, 2 * SECOND, [5], [15])
    state.correct(0, 2 * SECOND, [5], [0])
    assert not state.admits(2 * SECOND, [1])
    assert state.admits(3 * SECOND, [10])


def test_an_idle_bucket_is_full_and_unused() -> None:
    state = bucket(requests=RateSpec(rate=1), concurrent=2)
    assert state.idle(0)
    state.take(0, [1])
    assert not state.idle(0) and not state.idle(5 * SECOND)
    state.correct(0, 0, [1], [1])
    assert not state.idle(SECOND - 1) and state.idle(SECOND)
