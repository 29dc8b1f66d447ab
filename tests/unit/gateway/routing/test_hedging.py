"""Second attempts at requests that take long: which endpoint gets one, and when none does."""

from __future__ import annotations

import pytest

from gateway.core.specs import RoutingSpec
from gateway.core.types import Principal
from gateway.routing.router import PoolAttempt
from tests.unit.gateway.routing.fleet import FAILURE, SUCCESS, Fleet, chat

CALLER = Principal("k", "t", "api_key")


def second(fleet: Fleet, endpoint: str, running: int = 0, budget: float = 0.05) -> PoolAttempt | None:
    return fleet.route.second(chat(), CALLER, None, endpoint, running, budget)


@pytest.mark.parametrize("policy", ["consistent_hash", "least_outstanding", "power_of_two", "round_robin", "weighted"])
def test_it_goes_to_another_endpoint_and_takes_a_slot_there(policy: str) -> None:
    fleet = Fleet(2, engine={"slots": 8}, routing=RoutingSpec(policy=policy))
    for _ in range(4):
        first = fleet.attempt()
        found = second(fleet, first.endpoint_name)
        assert found is not None and {found.endpoint_name, first.endpoint_name} == {"a", "b"}
        assert fleet.in_flight() == 2 and fleet.route.budget.running == 0, "the budget of retries has nothing to do with it"
        found.close(SUCCESS)
        first.close(SUCCESS)
    assert fleet.in_flight() == 0


def test_there_is_none_without_another_endpoint() -> None:
    fleet = Fleet(1, engine={"slots": 8})
    assert second(fleet, fleet.attempt().endpoint_name) is None
    assert fleet.in_flight() == 1


def test_the_budget_is_a_share_of_the_requests_under_way_and_one_at_least() -> None:
    fleet = Fleet(2, engine={"slots": 64})
    first = fleet.attempt()
    assert second(fleet, first.endpoint_name, 1) is None and second(fleet, first.endpoint_name, 0) is not None
    for number in range(40):
        fleet.attempt(str(number))
    assert second(fleet, first.endpoint_name, 2) is not None and second(fleet, first.endpoint_name, 3) is None


def test_a_loaded_pool_gives_none() -> None:
    fleet = Fleet(2, engine={"slots": 5})
    attempts = [fleet.attempt(str(number)) for number in range(8)]
    assert second(fleet, attempts[0].endpoint_name) is None
    attempts[-1].close(SUCCESS)
    assert second(fleet, attempts[0].endpoint_name) is not None


def test_a_pool_in_which_requests_wait_gives_none() -> None:
    fleet = Fleet(2, engine={"slots": 1})
    first, _ = fleet.attempt(), fleet.attempt()
    fleet.wait()
    assert second(fleet, first.endpoint_name) is None


def test_endpoints_that_are_tried_out_neither_get_one_nor_are_helped_by_one() -> None:
    fleet = Fleet(2, engine={"slots": 8})
    fleet.fail("a", 5)
    assert second(fleet, "b") is None, "a is out"
    fleet.advance(1.5)
    assert fleet.state("a") == "half_open"
    assert second(fleet, "b") is None, "and then tried out by a request that is a client's own"
    probe = fleet.attempt(tried=("b",))
    assert probe.endpoint_name == "a" and second(fleet, "a") is None
    probe.close(FAILURE)
