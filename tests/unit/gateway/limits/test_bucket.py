"""The arithmetic of buckets: exact, never generous."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.specs import LimitSpec, RateSpec
from gateway.limits.bucket import SECOND, Bucket, Rate, Shape

rates = st.builds(
    RateSpec,
    rate=st.integers(1, 10**7).map(float) | st.sampled_from([0.1, 0.25, 1.5, 33.3]),
    per=st.sampled_from([0.001, 1.0, 60.0, 3600.0, 86400.0]),
    burst=st.integers(1, 10**7).map(float),
)


def bucket(**limits: object) -> Bucket:
    return Bucket(Shape(LimitSpec(name="a", **limits)))  # type: ignore[arg-type]


@settings(deadline=None)
@given(rates)
def test_a_unit_is_rounded_up_by_less_than_a_picosecond(spec: RateSpec) -> None:
    exact = Fraction(str(spec.per)) / Fraction(str(spec.rate)) * SECOND
    assert exact <= Rate(spec, b"tokens").unit_ps < exact + 1


@settings(deadline=None)
@given(rates, st.integers(0, 10**7))
def test_the_level_falls_by_what_is_taken(spec: RateSpec, units: int) -> None:
    rate = Rate(spec, b"tokens")
    units = min(units, rate.burst)
    assert rate.level(0) == rate.level(-5) == rate.burst
    assert rate.level(units * rate.unit_ps) == rate.burst - units
    assert rate.level(rate.burst_ps + 1) == 0


@settings(deadline=None)
@given(
    rates,
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**6)), max_size=60),
)
def test_never_more_than_burst_and_rate_times_time(spec: RateSpec, steps: list[tuple[int, int]]) -> None:
    """Between any two admissions, by exact arithmetic."""
    state = bucket(tokens=spec)
    rate = state.shape.tokens
    assert rate is not None and spec.burst is not None
    now = 10**18
    admitted: list[tuple[int, int]] = []
    for step, units in steps:
        now += step
        cost = units * rate.unit_ps
        if cost <= rate.burst_ps and state.admits(now, cost):
            state.take(now, cost)
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
    rate = state.shape.tokens
    assert rate is not None
    assert state.admits(now, rate.burst * rate.unit_ps)
    state.take(now, rate.burst * rate.unit_ps)
    assert not state.admits(now, rate.unit_ps)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 100)), min_size=1, max_size=20), st.integers(0, 10 * SECOND))
def test_what_is_given_back_leaves_no_trace(before: list[tuple[int, int]], later: int) -> None:
    """Requests, tokens and concurrency are as if the exchange had not been."""
    used, twin = (bucket(requests=RateSpec(rate=10), tokens=RateSpec(rate=100, burst=5000), concurrent=99) for _ in range(2))
    now = SECOND
    for step, units in before:
        now += step
        for state in (used, twin):
            state.take(now, units * SECOND // 100)
    used.take(now, 777)
    used.give_back(now, 777)
    now += later
    for cost in (0, 1, SECOND, 40 * SECOND):
        assert used.admits(now, cost) == twin.admits(now, cost)
    assert (used.in_use, max(used.tokens_full, now), max(used.requests_full, now)) == (
        twin.in_use,
        max(twin.tokens_full, now),
        max(twin.requests_full, now),
    )


def test_time_has_refilled_what_was_reserved_long_ago() -> None:
    """A refund after the bucket was full again would hand the same tokens out twice."""
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    state.take(0, SECOND)
    state.take(SECOND, SECOND)
    state.correct(0, SECOND, SECOND, 0)
    assert not state.admits(SECOND, 1)


def test_more_than_reserved_makes_a_debt() -> None:
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    rate = state.shape.tokens
    assert rate is not None
    state.take(0, 1 * rate.unit_ps)
    state.correct(0, 0, 1 * rate.unit_ps, 30 * rate.unit_ps)
    assert rate.level(state.tokens_full) == 0
    assert not state.admits(2 * SECOND, rate.unit_ps)
    assert not state.admits(3 * SECOND - 1, 10 * rate.unit_ps)
    assert state.admits(3 * SECOND, 10 * rate.unit_ps)


def test_a_debt_of_a_bucket_that_was_full_begins_now_and_is_not_refunded_by_older_ones() -> None:
    state = bucket(tokens=RateSpec(rate=10, burst=10))
    rate = state.shape.tokens
    assert rate is not None
    state.take(0, 5 * rate.unit_ps)
    state.take(0, 5 * rate.unit_ps)
    state.correct(0, 2 * SECOND, 5 * rate.unit_ps, 15 * rate.unit_ps)
    state.correct(0, 2 * SECOND, 5 * rate.unit_ps, 0)
    assert not state.admits(2 * SECOND, rate.unit_ps)
    assert state.admits(3 * SECOND, 10 * rate.unit_ps)


def test_an_idle_bucket_is_full_and_unused() -> None:
    state = bucket(requests=RateSpec(rate=1), concurrent=2)
    assert state.idle(0)
    state.take(0, 0)
    assert not state.idle(0) and not state.idle(5 * SECOND)
    state.correct(0, 0, 0, 0)
    assert not state.idle(SECOND - 1) and state.idle(SECOND)
