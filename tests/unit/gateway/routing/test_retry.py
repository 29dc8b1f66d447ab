"""Retries: only what is safe, only so often, only within the budget."""

from __future__ import annotations

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import EngineError, EngineTimeout, Overloaded
from gateway.core.specs import RetrySpec
from gateway.routing.retry import MINIMUM, RetryBudget
from tests.unit.gateway.routing.fleet import FixedEntropy


def failure(safe: bool = True, refused: bool = False, kind: type[EngineError] = EngineError) -> EngineError:
    error = kind("failed")
    error.safe, error.refused = safe, refused
    return error


def budget(clock: FakeClock | None = None, **spec: float) -> RetryBudget:
    return RetryBudget(RetrySpec(**spec), clock or FakeClock(), FixedEntropy())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "attempts", "retried"),
    [
        (failure(), 1, True),
        (failure(), 2, True),
        (failure(), 3, False),
        (failure(refused=True), 3, False),
        (failure(safe=False), 1, False),
        (failure(kind=EngineTimeout), 1, True),
        (failure(safe=False, kind=EngineTimeout), 1, False),
        (Overloaded("full"), 1, False),
        (ValueError("ours"), 1, False),
    ],
)
def test_what_is_retried(error: Exception, attempts: int, retried: bool):
    assert (budget().promise(error, attempts, 100) is not None) == retried


def test_backoff_doubles_and_a_refusal_needs_none():
    retries = budget(backoff=0.1)
    assert [retries.promise(failure(), attempts, 100) for attempts in (1, 2)] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert retries.promise(failure(refused=True), 2, 100) == 0.0


def test_no_more_than_a_fifth_of_the_requests_in_flight():
    retries = budget()
    assert sum(retries.promise(failure(), 1, 100) is not None for _ in range(100)) == 20


def test_running_retries_count_until_they_end():
    retries = budget()
    for _ in range(20):
        retries.promise(failure(), 1, 100)
        retries.begin()
    assert retries.promise(failure(), 1, 100) is None
    retries.end()
    assert retries.promise(failure(), 1, 100) is not None


def test_a_small_pool_survives_the_death_of_an_engine():
    retries = budget()
    assert sum(retries.promise(failure(), 1, 8) is not None for _ in range(100)) == MINIMUM


def test_refusals_are_outside_of_the_budget():
    retries = budget()
    assert all(retries.promise(failure(refused=True), 1, 1) == 0.0 for _ in range(100))
    assert retries.promise(failure(), 1, 1) is not None


def test_a_retry_after_a_refusal_takes_nothing_from_the_others():
    retries = budget()
    for _ in range(100):
        retries.promise(failure(refused=True), 1, 1)
        assert not retries.begin()
    assert retries.running == 0
    assert retries.promise(failure(), 1, 1) is not None
    assert retries.begin() and retries.running == 1


def test_refusals_whose_retry_finds_no_endpoint_excuse_no_other_retry():
    retries = budget()
    for _ in range(MINIMUM):
        for _ in range(10):
            retries.promise(failure(refused=True), 1, 1)
        assert retries.promise(failure(), 1, 1) is not None
        assert retries.begin()
    assert retries.running == MINIMUM and retries.promise(failure(), 1, 1) is None


def test_promises_that_nobody_claims_expire():
    clock = FakeClock()
    retries = budget(clock)
    while retries.promise(failure(), 1, 1) is not None:
        pass
    clock.advance(1.2)
    assert retries.promise(failure(), 1, 1) is not None
