"""What operators see of a bucket in Redis, whatever is in its key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec, RollingSpec
from gateway.limits.bucket import Shape
from gateway.limits.redis.took import read_took
from gateway.limits.redis.view import seen

NOW = 1_800_000_000_000_000
RATED = Shape(LimitSpec(name="l", requests=RateSpec(rate=100, burst=50), concurrent=8))
DAILY = Shape(LimitSpec(name="b", budget=BudgetSpec(amount=1000, window="day")))
ROLLING = Shape(LimitSpec(name="r", budget=BudgetSpec(amount=1000, window=RollingSpec(rolling=3600.0))))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


def packed(*state: Any) -> bytes:
    return msgspec.msgpack.encode(state)


def test_a_rate_drains_and_slots_end() -> None:
    raw = packed(NOW, {"a": [3, NOW + 10_000_000], "b": [2, NOW + 1_000_000]}, NOW, 300_000, NOW, 10_000)
    found = seen(RATED, raw, NOW)
    assert (found.amounts[0].used, found.amounts[0].left, found.in_use) == (30, 20, 5)
    assert found.amounts[0].resets == pytest.approx(0.3)
    later = seen(RATED, raw, NOW + 2_000_000)
    assert (later.amounts[0].used, later.in_use) == (0, 3)
    assert seen(RATED, raw, NOW - 3_600_000_000).amounts[0].used == 30, "a clock that goes back refills nothing"


def test_a_rate_that_was_changed_keeps_its_part() -> None:
    assert seen(RATED, packed(NOW, {}, NOW, 30_000, NOW, 1_000), NOW).amounts[0].used == 30


def test_a_budget_of_another_window_is_whole() -> None:
    day = 86_400_000_000
    raw = packed(NOW, {}, NOW, 400, NOW - NOW % day, 1)
    found = seen(DAILY, raw, NOW).amounts[0]
    assert (found.used, found.left) == (400, 600) and 0 < (found.resets or 0) <= 86_400
    assert seen(DAILY, raw, NOW + day).amounts[0].used == 0


def test_a_rolling_window_counts_its_slices() -> None:
    width = 60_000_000
    raw = packed(NOW, {}, NOW, [NOW // width - 30, 100, NOW // width, 50], 0, 1)
    assert seen(ROLLING, raw, NOW).amounts[0].used == 150
    assert seen(ROLLING, raw, NOW + 40 * width).amounts[0].used == 50
    assert seen(ROLLING, raw, NOW + 70 * width).amounts[0].used == 0


@given(st.sampled_from([RATED, DAILY, ROLLING]), st.one_of(st.none(), st.binary(max_size=30), ANYTHING.map(msgspec.msgpack.encode)))
def test_nothing_in_a_key_is_an_error(shape: Shape, raw: bytes | None) -> None:
    found = seen(shape, raw, NOW)
    assert all(one.left >= 0 and one.used + one.left == meter.burst for one, meter in zip(found.amounts, shape.meters, strict=True))


def test_lists_within_lists_without_end_are_nothing() -> None:
    raw = b"\x91" * 100_000
    assert seen(RATED, raw, NOW).amounts[0].used == 0 and read_took(raw, DAILY.meters[0], NOW) is None


@given(st.lists(ANYTHING, max_size=9))
def test_nothing_in_a_state_is_an_error(state: list[Any]) -> None:
    for shape in (RATED, DAILY, ROLLING):
        assert seen(shape, packed(*state), NOW).in_use >= 0
