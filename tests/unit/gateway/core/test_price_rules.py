"""What own engines cost by the time of their devices: exact sums, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import ConfigError
from gateway.core.price_rules import check_devices, device_price, device_rate
from gateway.core.prices import MAX_COST, SlotTime
from gateway.core.specs import EngineCostSpec, EngineSpec, ModelSpec
from gateway.core.types import Usage

HOUR = 3_600_000_000


@settings(max_examples=50, deadline=None)
@given(
    rate=st.decimals(min_value=0, max_value=100, places=4),
    devices=st.integers(1, 16),
    slots=st.integers(1, 64),
    cuts=st.lists(st.integers(1, HOUR - 1), max_size=30),
)
def test_requests_that_fill_an_hour_of_all_slots_cost_what_the_hour_does(rate: Decimal, devices: int, slots: int, cuts: list[int]) -> None:
    """However the hour of each slot is cut into requests, and wherever their first events come."""
    found = device_rate(EngineCostSpec(rate=float(rate), devices=devices))
    edges = [0, *sorted(set(cuts)), HOUR]
    lengths = [end - begin for begin, end in pairwise(edges)]
    costs = [found.cost(length // 3, length - length // 3, slots) for length in lengths] * slots
    whole = int(rate * devices * 1_000_000_000)
    assert whole <= sum(costs) < whole + len(costs), "each request is rounded up, by less than a nano-unit"


def test_reading_and_generating_may_have_rates_of_their_own() -> None:
    rate = device_rate(EngineCostSpec(rate=3.6, prefill=7.2, decode=1.8, currency="EUR"))
    assert (rate.currency, rate.cost(1_000_000, 0, 1), rate.cost(0, 1_000_000, 1)) == ("eur", 2_000_000, 500_000)
    assert rate.cost(10**18, 0, 1) == MAX_COST and rate.cost(0, 0, 5) == 0
    assert rate.version != device_rate(EngineCostSpec(rate=3.6)).version
    assert device_rate(EngineCostSpec(rate=1.0, slots=7)).shared_by == 7


def test_a_slot_costs_until_it_is_given_back_and_once() -> None:
    time = SlotTime(device_rate(EngineCostSpec(rate=1000.0, slots=3)), 8)
    assert (time.slots, time.cost) == (3, 0)
    time.answering()
    time.end()
    first = (time.prefill_us, time.decode_us, time.cost, time.version)
    assert time.cost == time.rate.cost(time.prefill_us, time.decode_us, 3)
    time.answering()
    time.end()
    assert (time.prefill_us, time.decode_us, time.cost, time.version) == first


def test_a_model_reserves_what_its_requests_cost_before() -> None:
    engines = [EngineSpec(name="a", runtime="external", url="http://x", slots=4, cost=EngineCostSpec(rate=3.6))]
    price = device_price(engines)
    assert price is not None and device_price([EngineSpec(name="b", runtime="external")]) is None
    assert price.bound(10, 10) == 10 * 250_000 + 1 and price.bound(0, 0) == 0
    usage = Usage(10, 10)
    assert price.cost(usage) == 0, "no device was held"
    usage.device = SlotTime(device_rate(EngineCostSpec(rate=3.6)), 4)
    usage.device.end()
    for _ in range(3000):
        assert price.cost(usage) == usage.device.cost
    assert price.bound(10, 10) <= max(1, usage.device.cost) + 2
    assert price.basis == "device_time" and price.version_of(usage) == usage.device.version


def test_one_model_has_one_currency() -> None:
    engines = [
        EngineSpec(name=name, runtime="external", cost=EngineCostSpec(rate=1.0, currency=currency))
        for name, currency in (("a", "eur"), ("b", "usd"))
    ]
    models = [ModelSpec(name="m", pool=("a",)), ModelSpec(name="n", pool=("a", "b"))]
    with pytest.raises(ConfigError, match="several currencies") as caught:
        check_devices(models, engines, lambda path, message: ConfigError(message, path=path))
    assert caught.value.path == "models[1].pool"
    check_devices(models[:1], engines, lambda path, message: ConfigError(message, path=path))
