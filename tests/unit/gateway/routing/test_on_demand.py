"""Engines that are loaded when a request needs them: asked for once, waited for, refused with the reason, never lost between two states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.errors import EngineError
from gateway.core.specs import EngineSpec
from gateway.routing.router import PoolAttempt, Waiting
from tests.unit.gateway.routing.fleet import SUCCESS, Fleet


@pytest.fixture
async def made() -> Callable[..., Fleet]:
    """A model over so many sidecars, none of them loaded."""

    def make(count: int = 1, **model: Any) -> Fleet:
        fleet = Fleet(count, **model)
        fleet.asked = []  # type: ignore[attr-defined]
        fleet.registry._on_wanted = fleet.asked.append  # type: ignore[attr-defined]
        fleet.load(engines=tuple(EngineSpec(name=e.name, runtime="llama.cpp", model="m", slots=2) for e in fleet.engines))
        for engine in fleet.engines:
            fleet.registry.engine_unloaded(engine.name, "not loaded yet")
        return fleet

    return make


def asked(fleet: Fleet) -> list[str]:
    return fleet.asked  # type: ignore[attr-defined, no-any-return]


def refused(waiting: Waiting) -> EngineError:
    assert isinstance(waiting.error, EngineError)
    return waiting.error


async def test_the_first_request_asks_for_the_engine_once_and_all_wait(made: Callable[..., Fleet]) -> None:
    fleet = made()
    waiting = [fleet.wait() for _ in range(3)]
    assert asked(fleet) == ["a"]
    fleet.registry.engine_starting("a", awaited=True)
    waiting.append(fleet.wait())
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    fleet.scheduler.run()
    assert [w.done for w in waiting] == [True, True, False, False]
    assert asked(fleet) == ["a"]
    for served in waiting:
        assert served.value is not None
        served.value.close(SUCCESS)
        fleet.scheduler.run()


async def test_all_engines_of_the_pool_are_asked_for(made: Callable[..., Fleet]) -> None:
    fleet = made(3)
    fleet.wait()
    assert asked(fleet) == ["a", "b", "c"]


async def test_nothing_is_asked_for_while_another_serves(made: Callable[..., Fleet]) -> None:
    fleet = made(2)
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    assert [type(fleet.acquire()) for _ in range(3)] == [PoolAttempt, PoolAttempt, Waiting]
    assert asked(fleet) == []


async def test_a_model_whose_engine_loads_on_demand_is_ready(made: Callable[..., Fleet]) -> None:
    fleet = made()
    assert fleet.route.ready
    fleet.wait()
    assert fleet.route.ready
    fleet.registry.engine_unloaded("a", "no room", "insufficient_memory", 5.0)
    assert not fleet.route.ready
    fleet.clock.advance(5.0)
    assert fleet.route.ready


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [("insufficient_memory", 507, "insufficient_memory"), ("checksum_mismatch", 503, "no_healthy_endpoint")],
)
async def test_a_failed_load_answers_all_waiting_requests_and_is_not_repeated_for_each(
    made: Callable[..., Fleet], code: str, status: int, told: str
) -> None:
    fleet = made()
    waiting = [fleet.wait() for _ in range(3)]
    fleet.registry.engine_down("a", "reason", code)
    fleet.registry.engine_unloaded("a", "reason", code, 5.0)
    fleet.scheduler.run()
    assert {(refused(w).status, refused(w).code) for w in waiting} == {(status, told)}
    with pytest.raises(EngineError) as caught:
        fleet.acquire()
    assert (caught.value.status, caught.value.code) == (status, told)
    if status == 503:
        assert caught.value.retry_after == 5.0 and code in caught.value.message
    assert asked(fleet) == ["a"]
    fleet.clock.advance(5.0)
    fleet.wait()
    assert asked(fleet) == ["a", "a"]


async def test_one_of_two_fails_and_the_other_serves(made: Callable[..., Fleet]) -> None:
    fleet = made(2)
    waiting = fleet.wait()
    fleet.registry.engine_unloaded("a", "no room", "insufficient_memory", 5.0)
    fleet.scheduler.run()
    assert not waiting.done
    fleet.registry.engine_ready("b", "unix:/b.sock", 2)
    fleet.scheduler.run()
    assert waiting.value is not None and waiting.value.endpoint_name == "b"


async def test_a_request_that_waits_too_long_is_told_that_the_model_is_loading_and_for_how_long(made: Callable[..., Fleet]) -> None:
    fleet = made()
    waiting = fleet.wait(seconds=3.0)
    fleet.advance(3.1)
    error = refused(waiting)
    assert (error.status, error.code) == (503, "model_loading")
    assert error.retry_after == pytest.approx(3.1, abs=0.1), "as long again as it has taken so far"
    fleet.advance(5.0)
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    fleet.registry.engine_unloaded("a", "idle")
    again = fleet.wait(seconds=2.0)
    fleet.advance(2.1)
    assert refused(again).retry_after == pytest.approx(6.0, abs=0.2), "what is left of the time that the last load took"


async def test_a_request_that_comes_while_it_is_unloaded_is_served(made: Callable[..., Fleet]) -> None:
    fleet = made()
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    fleet.registry.engine_unloading("a")
    assert fleet.state("a") == "draining"
    waiting = fleet.wait()
    fleet.scheduler.run()
    assert asked(fleet) == [] and not waiting.done
    fleet.registry.engine_unloaded("a", "idle")
    fleet.scheduler.run()
    assert asked(fleet) == ["a"]
    fleet.registry.engine_ready("a", "unix:/a2.sock", 2)
    fleet.scheduler.run()
    assert waiting.value is not None


async def test_a_drained_endpoint_is_not_loaded(made: Callable[..., Fleet]) -> None:
    fleet = made()
    fleet.registry.drain("a")
    with pytest.raises(EngineError):
        fleet.acquire()
    assert asked(fleet) == []
    fleet.registry.resume("a")
    fleet.wait()
    assert asked(fleet) == ["a"]


async def test_a_reload_of_the_configuration_keeps_a_load_under_way(made: Callable[..., Fleet]) -> None:
    fleet = made()
    first = fleet.wait()
    fleet.load(models=(fleet.models[0].__class__(name="m", pool=("a",), aliases=("n",)),))
    second = fleet.wait()
    assert asked(fleet) == ["a"]
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    fleet.scheduler.run()
    assert first.done and second.done


async def test_how_long_an_engine_has_been_idle(made: Callable[..., Fleet]) -> None:
    fleet = made()
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    fleet.clock.advance(3.0)
    assert fleet.registry.idle_seconds("a") == 3.0
    one, two = fleet.attempt(), fleet.attempt()
    assert fleet.registry.idle_seconds("a") is None
    one.close(SUCCESS)
    fleet.clock.advance(1.0)
    assert fleet.registry.idle_seconds("a") is None
    two.close(SUCCESS)
    fleet.clock.advance(2.0)
    assert fleet.registry.idle_seconds("a") == 2.0
    assert fleet.registry.idle_seconds("nobody") is None
