"""Rates in whole ticks: exact, or a little less."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec, RollingSpec
from gateway.limits.meter import meters_of
from gateway.limits.redis.meters import MOST, ROOM, Ticks

AMOUNTS = st.one_of(st.integers(1, 10**12).map(float), st.floats(1e-6, 1e12))


def meter(spec: RateSpec) -> Ticks:
    (found,) = meters_of(LimitSpec(name="l", requests=spec))
    return Ticks(found)


@pytest.mark.parametrize(
    ("spec", "unit", "drain"),
    [
        (RateSpec(rate=100), 10_000, 1),
        (RateSpec(rate=7, per=3.0), 3_000_000, 7),
        (RateSpec(rate=5_000_000, per=86400.0), 17_280, 1),
        (RateSpec(rate=2, per=86400.0), 43_200_000_000, 1),
        (RateSpec(rate=1e12), 1, 1_000_000),
    ],
)
def test_usual_rates_are_exact(spec: RateSpec, unit: int, drain: int) -> None:
    found = meter(spec)
    assert (found.unit, found.drain) == (unit, drain)


@given(st.floats(1.0, 1e12), st.floats(0.001, 86400 * 31), AMOUNTS)
def test_no_rate_is_exceeded_and_all_numbers_are_small(rate: float, per: float, burst: float) -> None:
    found = meter(RateSpec(rate=rate, per=per, burst=burst))
    wanted = Fraction(str(rate)) / (Fraction(str(per)) * 1_000_000)
    speed = Fraction(found.drain, found.unit)
    assert wanted * Fraction(99, 100) <= speed <= wanted
    assert 1 <= found.unit <= ROOM and found.drain >= 1 and found.burst <= ROOM
    assert found.of(10**12) <= MOST and found.of(-5) == -found.of(5)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 3600))
def test_a_debt_is_shown_as_so_many_units(taken: int, rate: int, per: int) -> None:
    spec = RateSpec(rate=rate, per=float(per))
    found = meter(spec)
    taken = min(taken, rate)
    assert found.meter.level(found.shown(found.of(taken))) == rate - taken


def test_money_of_any_amount_fits_and_is_never_counted_too_little() -> None:
    (found,) = meters_of(LimitSpec(name="b", budget=BudgetSpec(amount=1e9, unit="usd")))
    ticks = Ticks(found)
    assert ticks.scale > 1 and ticks.burst <= 2 * ROOM
    assert ticks.shown(ticks.of(123_456_789_123)) >= 123_456_789_123
    assert ticks.of(found.burst) <= ticks.burst + 1


def test_windows() -> None:
    (day,) = meters_of(LimitSpec(name="b", budget=BudgetSpec(amount=5, window="day", timezone="Europe/Berlin")))
    ticks = Ticks(day)
    assert ticks.calendar and ticks.turn(1_767_225_600_000_000) == 1_767_308_400_000_000, "2026-01-01T00:00Z is in the day that ends 23:00Z"
    assert ticks.begin == 1_767_222_000_000_000
    (rolling,) = meters_of(LimitSpec(name="b", budget=BudgetSpec(amount=5, window=RollingSpec(rolling=3600.0))))
    ticks = Ticks(rolling)
    assert (ticks.drain, ticks.begin, ticks.end, ticks.calendar) == (-1, 60_000_000, 3_600_000_000, False)
