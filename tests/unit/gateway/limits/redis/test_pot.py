"""What a process may do by itself while Redis is away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import LimitSpec, RateSpec
from gateway.limits.bucket import Shape
from gateway.limits.redis.pot import Pot, Terms


def pot(**amounts: object) -> Pot:
    shape = Shape(LimitSpec(name="l", **amounts))  # type: ignore[arg-type]
    return Pot(Terms(shape, 0), shape, (), b"")


def admitted(one: Pot, now: int, parts: int, most: int, outage: int = 1) -> int:
    count = 0
    costs = [meter.unit for meter in one.terms.meters]
    while count < most and one.fits(now, outage, parts, costs):
        one.take_own(parts, costs)
        count += 1
    return count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400_000)), max_size=40), st.integers(0, 50))
def test_parts_together_admit_what_the_limit_allows_and_redis_goes_on_from_there(steps: list[tuple[int, int]], used: int) -> None:
    """Four processes, each with a part; at the end Redis knows of everything that has not drained away."""
    pots = [pot(requests=RateSpec(rate=100, burst=50)) for _ in range(4)]
    meter = pots[0].terms.meters[0]
    for one in pots:
        one.heard(0, 0, 0, [used * meter.unit])
        one.advance(0, 1)
    now = total = 0
    for index, elapsed in steps:
        now += elapsed
        total += admitted(pots[index], now, 4, 1000)
        assert total <= 50 - used + now * 100 // 1_000_000 + 4, "a part is one request at least"
    left_of_before = max(0, used * meter.unit - now * meter.drain)
    told = sum(one.carried(now, 1, 4)[0] for one in pots)
    assert told <= total * meter.unit + 4
    assert left_of_before + told >= (total + used) * meter.unit - now * meter.drain - 4


def test_an_unused_part_lets_everything_pass_that_the_limit_does() -> None:
    one = pot(tokens=RateSpec(rate=1, burst=100))
    meter = one.terms.meters[0]
    cost = [90 * meter.unit]
    assert one.fits(0, 1, 8, cost)
    assert one.take_own(8, cost) == [100 * meter.unit // 8], "its whole part"
    assert not one.fits(0, 1, 8, [meter.unit])
    one.correct_own(0, 1, 8, [90 * meter.unit - 100 * meter.unit // 8])
    assert one.carried(0, 1, 8) == [90 * meter.unit]


def test_slots_are_divided_and_everybody_has_one() -> None:
    one = pot(concurrent=8)
    assert one.fits(0, 1, 4, [])
    one.in_use = 2
    assert not one.fits(0, 1, 4, []) and one.crowded()
    one.in_use = 0
    assert one.fits(0, 1, 100, [])


def test_another_outage_begins_with_what_was_heard_last() -> None:
    one = pot(requests=RateSpec(rate=1, burst=10))
    unit = one.terms.meters[0].unit
    assert admitted(one, 0, 1, 100) == 10
    one.heard(0, 0, 0, [4 * unit])
    assert admitted(one, 0, 1, 100, outage=2) == 6
    one.heard(0, 0, 0, [4 * unit])
    assert admitted(one, 3_000_000, 1, 100, outage=3) == 9
