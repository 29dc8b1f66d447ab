"""A share of an endpoint's traffic on a second process: exact shares, separate results, nothing lost when it ends either way."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.specs import EngineSpec
from gateway.routing.router import PoolAttempt
from gateway.routing.shift import Shift
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Client, Fleet

OLD, NEW = "unix:/old.sock", "unix:/new.sock"


@pytest.fixture
async def fleet() -> Fleet:
    """One sidecar `a` with room for 100 requests."""
    made = Fleet(1)
    made.load(engines=(EngineSpec(name="a", runtime="llama.cpp", model="m", slots=100),))
    made.registry.engine_ready("a", OLD, 100)
    return made


def begin(fleet: Fleet, share: float, *, slots: int = 100, max_failures: int = 2) -> Shift:
    shift = fleet.registry.shift("a", NEW, slots, max_failures)
    shift.move(share)
    return shift


def address(attempt: PoolAttempt) -> str:
    assert isinstance(attempt.client, Client)
    return attempt.client.address


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.1, 10), (0.3333, 33), (0.5, 50), (0.9, 90), (1.0, 100)])
async def test_of_a_hundred_attempts_exactly_the_share_goes_there(fleet: Fleet, share: float, expected: int) -> None:
    shift = begin(fleet, share)
    attempts = [fleet.attempt() for _ in range(100)]
    assert sum(address(a) == NEW for a in attempts) == shift.requests == shift.in_flight == expected
    assert fleet.in_flight() == 100
    for attempt in attempts:
        attempt.close(SUCCESS)
    assert (fleet.in_flight(), shift.in_flight) == (0, 0)


async def test_a_tiny_share_is_at_least_one_part(fleet: Fleet) -> None:
    shift = begin(fleet, 1e-9)
    for _ in range(10_000):
        fleet.attempt().close(SUCCESS)
    assert shift.requests == 1


async def test_a_share_is_spread_evenly(fleet: Fleet) -> None:
    begin(fleet, 0.25)
    assert [address(fleet.attempt()) == NEW for _ in range(12)] == [False, False, False, True] * 3


async def test_a_process_with_fewer_slots_gets_no_more_than_it_has(fleet: Fleet) -> None:
    shift = begin(fleet, 1.0, slots=3)
    assert [address(fleet.attempt()) for _ in range(5)] == [NEW] * 3 + [OLD] * 2
    assert shift.in_flight == 3


async def test_failures_of_the_second_process_count_there_and_end_the_shift(fleet: Fleet) -> None:
    shift = begin(fleet, 1.0, max_failures=2)
    for result in (FAILURE, NEUTRAL, REFUSED, SUCCESS):
        fleet.attempt().close(result)
    assert (shift.requests, shift.failures, shift.over.done) == (4, 2, False)
    assert fleet.state("a") == "ready", "the breaker is about the process in force"
    fleet.attempt().close(FAILURE)
    assert shift.over.done


async def test_failures_of_the_process_in_force_count_for_its_breaker(fleet: Fleet) -> None:
    shift = begin(fleet, 0.0)
    for _ in range(5):
        fleet.attempt().close(FAILURE)
    assert (fleet.state("a"), shift.failures) == ("open", 0)


async def test_the_probe_of_a_breaker_goes_to_the_process_that_it_is_about(fleet: Fleet) -> None:
    begin(fleet, 1.0)
    for _ in range(5):
        attempt = fleet.attempt()
        attempt.close(FAILURE)
    assert fleet.state("a") == "ready"
    fleet.registry._endpoints["a"].ended("refused", 0, fleet.registry._endpoints["a"].client)
    fleet.advance(1.2)
    assert fleet.state("a") == "half_open"
    probe = fleet.attempt()
    assert address(probe) == OLD
    probe.close(SUCCESS)
    assert fleet.state("a") == "ready"


async def test_a_shift_that_is_given_up_finishes_what_it_carries(fleet: Fleet) -> None:
    shift = begin(fleet, 1.0)
    carried = fleet.attempt()
    shift.end()
    assert address(fleet.attempt()) == OLD
    assert fleet.in_flight() == 1
    assert isinstance(shift.client, Client) and not shift.client.closed
    gone = fleet.registry._endpoints["a"].when_gone(NEW)
    assert not gone.done
    carried.close(FAILURE)
    assert gone.done
    await asyncio.sleep(0)  # the task that closes it runs
    assert shift.client.closed
    assert fleet.state("a") == "ready"
    shift.end()


async def test_the_old_process_finishes_what_it_carries_when_the_new_one_is_in_force(fleet: Fleet) -> None:
    shift = begin(fleet, 0.5)
    old, new = (fleet.attempt(), fleet.attempt())
    assert (address(old), address(new)) == (OLD, NEW)
    fleet.registry.engine_ready("a", NEW, 100)
    shift.end()
    assert [address(fleet.attempt()) for _ in range(3)] == [NEW] * 3
    assert fleet.in_flight() == 4
    gone = fleet.registry._endpoints["a"].when_gone(OLD)
    old.close(FAILURE)
    assert gone.done
    for _ in range(5):
        new.close(SUCCESS)
    assert fleet.in_flight() == 3
    assert not any(client.closed for client in fleet.clients if client.address == NEW)
    assert len([client for client in fleet.clients if client.address == NEW]) == 1, "the shift's client is the endpoint's now"


async def test_a_new_process_starts_with_a_clean_record(fleet: Fleet) -> None:
    begin(fleet, 0.0)
    late = [fleet.attempt() for _ in range(6)]
    for attempt in late[:5]:
        attempt.close(FAILURE)
    assert fleet.state("a") == "open"
    fleet.registry.engine_ready("a", NEW, 100)
    assert fleet.state("a") == "ready"
    late[5].close(REFUSED)
    assert fleet.state("a") == "ready", "what the old one still says counts no more"


async def test_the_old_process_may_restart_meanwhile(fleet: Fleet) -> None:
    shift = begin(fleet, 0.5)
    old, new = fleet.attempt(), fleet.attempt()
    fleet.registry.engine_down("a", "killed")
    fleet.registry.engine_ready("a", "unix:/third.sock", 100)
    assert fleet.in_flight() == 1, "the new one's"
    old.close(FAILURE)
    new.close(SUCCESS)
    assert (fleet.in_flight(), shift.in_flight) == (0, 0)


async def test_an_endpoint_that_is_removed_gives_its_shift_up(fleet: Fleet) -> None:
    shift = begin(fleet, 1.0)
    attempt = fleet.attempt()
    fleet.load(engines=(EngineSpec(name="a", runtime="external", url="http://a:80"),))
    attempt.close(SUCCESS)
    assert shift.in_flight == 1, "it is no longer counted there"
    assert not fleet.registry._leaving


async def test_shifting_an_engine_in_no_pool_does_nothing() -> None:
    fleet = Fleet(1)
    shift = fleet.registry.shift("unknown", NEW, 1, 0)
    shift.move(0.5)
    assert isinstance(shift.client, Client)
    shift.end()
    await asyncio.sleep(0)  # the task that closes it runs
    assert shift.client.closed
    await fleet.registry.drained("unknown", NEW)
