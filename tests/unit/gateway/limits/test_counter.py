"""What the store counts: blocks are charged when they are handed out, and nothing is ever handed out twice."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec, RollingSpec
from gateway.limits.counter import LIFE, Ask, Given, State, counted, expires, used
from gateway.limits.meter import Meter, meters_of

DAY = 86400.0
NOON = 1_800_014_400.0


def budget(amount: float = 100, **settings: Any) -> Meter:
    return meters_of(LimitSpec(name="b", budget=BudgetSpec(amount=amount, **settings)))[0]


def rate(per: float = 3600.0, amount: float = 60, burst: float | None = None) -> Meter:
    return meters_of(LimitSpec(name="r", requests=RateSpec(rate=amount, per=per, burst=burst)))[0]


class Row:
    """A counter as the database keeps it: as text."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.now = meter, NOON
        self.text: str | None = None

    def ask(self, holder: str = "a", **said: Any) -> Given:
        state: State | None = None if self.text is None else json.loads(self.text)
        after, given = counted(state, Ask("l", self.meter, (), holder, **said), self.now)
        self.text = json.dumps(after)
        assert expires(after, self.meter, self.now) > self.now
        return given

    def used(self) -> int:
        return used(None if self.text is None else json.loads(self.text), self.meter, self.now)


def test_a_budget_is_handed_out_once() -> None:
    row = Row(budget(100, window="day"))
    assert [row.ask(need=30, want=30).granted for _ in range(4)] == [30, 30, 30, 0]
    assert (row.ask(need=10, want=30).granted, row.used()) == (10, 100)
    refused = row.ask(need=1, want=1)
    assert (refused.granted, refused.left, refused.wait) == (0, 0, DAY / 2)


def test_what_comes_back_can_be_had_again_and_what_is_owed_is_charged() -> None:
    row = Row(budget(100, window="day"))
    window = row.ask(need=100, want=100).window
    assert row.ask(back=40, window=window).left == 40
    assert row.ask(owed=70, window=window).left == 0
    assert row.used() == 100
    row.now += DAY
    fresh = row.ask(need=100, want=100, back=5, window=window)
    assert (fresh.granted, fresh.window) == (100, window + 86400), "what is left of an earlier window is worth nothing"


def test_little_is_handed_out_in_advance_and_less_the_more_replicas_there_are() -> None:
    row = Row(budget(1000, window="day"))
    assert row.ask(need=8, want=8, ahead=10**6).granted == 8 + 992 // 8
    assert Row(budget(1000, window="day")).ask(need=8, want=8, ahead=10**6, replicas=4).granted == 8 + 992 // 32


def test_money_is_counted_in_billionths() -> None:
    row = Row(budget(2.5, unit="usd"))
    assert row.ask(need=2_500_000_000, want=2_500_000_000).granted == 2_500_000_000
    assert row.ask(need=1, want=1).granted == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 4000), st.integers(1, 60), st.integers(0, 60)), max_size=60))
def test_no_rolling_window_has_more_than_the_amount(steps: list[tuple[float, int, int]]) -> None:
    """Each unit may be used as late as its block is good for."""
    row = Row(budget(100, window=RollingSpec(rolling=3600.0)))
    kept: list[tuple[float, int]] = []
    for seconds, want, back in steps:
        row.now += seconds
        given = row.ask(need=want, want=want)
        back = min(back, given.granted)
        row.ask(back=back, window=given.window)
        kept.append((row.now, given.granted - back))
        if not given.granted:
            row.now += given.wait
            assert row.ask(need=want, want=want).granted == want, "waiting as long as it says is enough"
            kept.append((row.now, want))
        for late in (0.0, LIFE):
            for begin, _ in kept:
                assert sum(units for when, units in kept if begin <= when + late and when <= begin + 3600.0) <= 100


def test_a_rate_lasts_over_restarts_and_refills_with_time() -> None:
    row = Row(rate(per=DAY, amount=2))
    assert row.ask(need=1, want=1).granted == 1
    row.ask(held=0)
    assert row.ask("b", need=1, want=1).granted == 1
    row.ask("b", held=0)
    refused = row.ask("c", need=1, want=1)
    assert refused.granted == 0 and refused.wait == DAY / 2
    row.now += refused.wait
    assert row.ask("c", need=1, want=1).granted == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.sampled_from(["a", "b"]), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), max_size=50
    )
)
def test_a_rate_is_never_exceeded_whenever_its_blocks_are_used(steps: list[tuple[float, str, int, int, int]]) -> None:
    """Holders use their blocks late, all at once, or die with them."""
    row = Row(rate(per=60.0, amount=60, burst=30))
    hands = {"a": (0, 0.0), "b": (0, 0.0)}
    uses: list[tuple[float, int]] = []
    for seconds, holder, want, use, back in steps:
        row.now += seconds
        hand, until = hands[holder]
        if row.now >= until:
            hand = 0
        use = min(use, hand)
        uses.append((row.now, use))
        back = min(back, hand - use)
        given = row.ask(holder, need=1 if want else 0, want=want, back=back, held=hand - use - back)
        hands[holder] = (hand - use - back + given.granted, row.now + LIFE)
    for start, (begin, _) in enumerate(uses):
        total = 0
        for when, units in uses[start:]:
            total += units
            assert total <= 30 + Fraction(when - begin) + Fraction(1, 1000)


def test_a_clock_that_is_put_back_over_the_beginning_of_a_window_does_not_begin_it_again() -> None:
    row = Row(budget(100, window="day"))
    row.now += DAY / 2 + 600
    assert row.ask(need=100, want=100).granted == 100
    for _ in range(3):
        row.now -= 3600
        refused = row.ask(need=1, want=1)
        assert (refused.granted, refused.wait, row.used()) == (0, DAY + 3000, 100)
        row.now += 3600
        assert row.ask(need=1, want=1).granted == 0
    row.now -= 30 * DAY
    assert row.ask(need=1, want=1).granted == 1, "a clock that was wrong by more than a window refuses nobody until then"


def test_a_rate_does_not_wait_for_a_clock_that_is_put_back() -> None:
    row = Row(rate())
    assert row.ask("a", need=30, want=30).granted == 30
    row.now -= 30 * DAY
    assert row.used() == 30
    assert [row.ask("b", need=30, want=30).granted for _ in range(2)] == [30, 0]
    row.now += 600
    assert row.ask("b", need=10, want=10).granted == 10, "it refills from then on, and what was held has lapsed"


def test_a_rolling_window_does_not_wait_for_a_clock_that_is_put_back() -> None:
    row = Row(budget(100, window=RollingSpec(rolling=3600.0)))
    for _ in range(4):
        assert row.ask(need=25, want=25).granted == 25
        row.now += 600
    row.now -= 30 * DAY
    refused = row.ask(need=25, want=25)
    assert (refused.granted, row.used()) == (0, 100) and refused.wait <= 3600 + 60 + LIFE
    row.now += refused.wait
    assert row.ask(need=25, want=25).granted == 25


def test_a_changed_rate_keeps_what_is_used() -> None:
    row = Row(rate(per=3600.0, amount=60))
    row.ask(need=40, want=40)
    row.ask(held=0)
    row.meter = rate(per=3600.0, amount=100)
    assert row.ask().left == 60
    row.meter = rate(per=3600.0, amount=30)
    assert row.ask().left == 0
