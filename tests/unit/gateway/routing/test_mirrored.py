"""What a worker is told after it has put a configuration into force: of what has changed alone, and yet it comes to the same states."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import pytest

from gateway.core.slices import at_once
from gateway.core.specs import EngineSpec
from gateway.routing import mirror_messages as m
from gateway.routing.health import ProbeResult
from gateway.routing.registry import MANY, EndpointRegistry
from tests.unit.gateway.routing.fleet import FAILURE, REFUSED, sidecar
from tests.unit.gateway.routing.workers import House, Worker

FORCED: Final[tuple[Literal["open", "closed"] | None, ...]] = ("open", "closed", None)


def engine(name: str, host: str | None = None, slots: int = 4) -> EngineSpec:
    return EngineSpec(name=name, runtime="external", url=f"http://{host or name}:80", slots=slots)


def states(worker: Worker) -> list[m.FleetState]:
    """That the worker has been told so far."""
    return [message for message in worker.down.passed if isinstance(message, m.FleetState)]


def shown(process: House | Worker) -> dict[str, tuple[Any, ...]]:
    """What the processes must agree upon, by endpoint."""
    found = {}
    for one in process.registry.in_force():
        address = one.address if one.process == "ready" else None
        found[one.name] = (address, one.state, one.drained, one.breaker.forced, one.breaker.state == "closed", one.health.healthy)
    return found


async def test_a_worker_is_told_of_the_endpoints_that_a_configuration_has_changed_alone() -> None:
    house = House(1, 6)
    (worker,) = house.workers
    worker.down.passed.clear()
    worker.up.passed.clear()
    house.reload(tuple(engine("c", "elsewhere", 2) if one.name == "c" else one for one in house.engines))
    assert [state.only for state in states(worker)] == [["c"]]
    assert {given.engine for given in states(worker)[0].slots} == {"c"} and set(states(worker)[0].numbers) == {"c"}
    assert {use.engine for message in worker.up.passed if isinstance(message, m.SlotsUsed) for use in message.uses} == {"c"}
    assert house.slots("c") == [2]


async def test_what_has_not_changed_keeps_its_count_of_failures() -> None:
    house = House(1)
    house.workers[0].fail(4, FAILURE)
    house.reload((*house.engines, engine("b")))
    assert house.workers[0].endpoint().breaker.failures == 4


async def test_a_worker_that_skips_a_configuration_is_told_of_what_was_changed_and_changed_back() -> None:
    house = House(1)
    (worker,) = house.workers
    before = house.engines
    worker.fail(1, REFUSED)
    house.settle()
    assert house.states() == ["open", "open"]
    house.load((engine("a", "elsewhere"),))
    house.load(before)  # an endpoint of its own, which is closed
    worker.load(before)
    house.settle()
    assert house.states() == ["ready", "ready"]


async def test_a_worker_of_an_earlier_version_is_told_of_everything() -> None:
    house = House(1, 3)
    (worker,) = house.workers
    house.mirror.drain("b")
    worker.follower._tell = lambda message: worker.up.tell(m.RouterActivated() if isinstance(message, m.RouterActivated) else message)
    worker.down.passed.clear()
    house.reload((engine("a", "elsewhere"), *house.engines[1:]))
    (state,) = states(worker)
    assert "only" not in msgspec.to_builtins(state), "which it does not know: it would take the state for that of all"
    assert set(state.numbers) == {"a", "b", "c"} and [mark.endpoint for mark in state.marks] == ["b"]
    worker.follower._tell = worker.up.tell
    house.reload((*house.engines[:2], engine("c", "elsewhere")))
    assert states(worker)[-1].only == ["c"], "what it has been told of is not told again"


async def test_a_worker_hears_of_all_slots_that_it_was_given_when_it_began_to_serve() -> None:
    house = House(0)
    house.mirror.engine_ready("early", "unix:/early.sock", 4)  # before the configuration that has it is in force
    worker = house.start()
    house.settle()
    assert worker.follower._shares["early", "unix:/early.sock"] == 4


async def test_a_state_of_some_endpoints_does_not_replace_the_one_that_waits_for_the_first_configuration() -> None:
    house = House(1, 2)
    house.mirror.drain("b")
    late = house.start(load=False)
    house.mirror._send_state(late.name, ["a"])
    house.settle()
    late.load()
    assert late.endpoint("b").state == "draining", "from its first request on"


async def test_turns_are_repeated_for_the_endpoints_that_are_told_of() -> None:
    house = House(1, 2)
    (worker,) = house.workers
    for _ in range(2):
        worker.fail(1, REFUSED)
        house.settle()
    house.advance(40.0, 0.1)
    assert {worker.endpoint(name).turn for name in "ab"} == {True}
    worker.down.passed.clear()
    house.mirror._send_state(worker.name, ["b"])
    house.settle()
    assert [message.endpoint for message in worker.down.passed if isinstance(message, m.BreakerTurn)] == ["b"]
    assert {worker.endpoint(name).turn for name in "ab"} == {True}


# --- many


@pytest.fixture
async def large(monkeypatch: pytest.MonkeyPatch) -> tuple[House, list[Any]]:
    """One worker with more endpoints than are told of at once, which are about to be: the portions that have not been sent."""
    portions: list[Any] = []

    def spawn(registry: EndpointRegistry, steps: Any, name: str) -> None:
        portions.append(steps) if name == "state" else at_once(steps)

    monkeypatch.setattr(EndpointRegistry, "spawn", spawn)
    house = House(1, tuple(engine(f"e{number:03}") for number in range(2 * MANY + 1)))
    house.settle()
    return house, portions


async def test_a_state_in_portions_is_the_one_at_the_time_of_each(large: tuple[House, list[Any]]) -> None:
    house, (portions,) = large
    (worker,) = house.workers
    next(portions)
    house.settle()
    house.mirror.drain("e000")
    house.mirror.drain("e100")
    house.reload(tuple(engine(one.name, "elsewhere", 2) if one.name == "e100" else one for one in house.engines))
    assert [state.only for state in states(worker)[-1:]] == [["e100"]] and house.slots("e100") == [2]
    at_once(portions)
    house.settle()
    assert [len(state.only or ()) for state in states(worker)[1:]] == [MANY, 1, MANY, 1]
    assert shown(worker) == shown(house) and house.states("e000") == ["draining"] * 2
    assert {house.slots(one.name)[0] for one in house.engines} == {2, 4}


async def test_the_rest_of_a_state_is_not_for_another_worker_of_the_same_name(large: tuple[House, list[Any]]) -> None:
    house, (portions,) = large
    (worker,) = house.workers
    house.kill(worker)
    other = Worker(worker.name, house.clock, house.engines)
    house.mirror.join(other.name, other.down.tell)
    at_once(portions)
    assert len(other.down.waiting) == 1 and isinstance(other.down.take(), m.FleetState)


# --- whatever happens


@pytest.mark.parametrize("seed", range(20))
async def test_workers_that_skip_configurations_agree_with_the_control_process_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    names = "abcd"
    house = House(2, (engine("a"), engine("b"), sidecar(name="c"), sidecar(name="d")))
    versions = [house.engines]
    at = dict.fromkeys([worker.name for worker in house.live], 0)

    def configure() -> None:
        made = [engine(n, chance.choice(("", "elsewhere")) or n, chance.choice((2, 4))) for n in "ab"]
        made += [sidecar(name=n, slots=chance.choice((2, 4)), model=chance.choice(("m", "n"))) for n in "cd"]
        versions.append(tuple(one for one in made if one.name == "a" or chance.random() < 0.8))
        house.load(versions[-1])

    def follow(worker: Worker) -> None:
        if (now := at.get(worker.name, -1)) < len(versions) - 1:
            at[worker.name] = chance.randrange(now + 1, len(versions))
            worker.load(versions[at[worker.name]])

    def probe(name: str) -> None:
        result = ProbeResult(chance.random() < 0.4, "no answer")
        house.endpoint(name).probed(result, decisive=False)
        house.mirror._probed(house.endpoint(name), result, False)

    def serve(worker: Worker) -> None:
        if any(one.limit > one.in_flight for one in worker.registry.in_force()):
            worker.fail(1, chance.choice((REFUSED, FAILURE)))

    def happen(worker: Worker) -> None:
        name, process = chance.choice([one.name for one in house.engines]), house.mirror
        acts: tuple[Callable[[], None], ...] = (
            lambda: process.drain(name),
            lambda: process.resume(name),
            lambda: process.force(name, chance.choice(FORCED)),
            lambda: process.engine_ready("c", chance.choice(("unix:/1", "unix:/2")), 4),
            lambda: process.engine_ready("d", "unix:/3", 2),
            lambda: process.engine_down(chance.choice("cd"), "killed"),
            lambda: probe(name),
            lambda: serve(worker),
        )
        chance.choice(acts)()

    for _ in range(200):
        worker = chance.choice(house.live)
        match chance.choices(("configure", "follow", "happen"), (1, 2, 5)):
            case ["configure"]:
                configure()
            case ["follow"]:
                follow(worker)
            case _:
                happen(worker)
        if chance.random() < 0.03:
            house.kill(worker)
            at[house.start(load=False).name] = -1
        for _ in range(chance.randrange(4)):
            house.deliver()
        if chance.random() < 0.1:
            house.advance(chance.random(), 0.05)
    for worker in house.live:
        if at[worker.name] < len(versions) - 1:
            worker.load(versions[-1])
    house.settle()
    for name in names:
        if house.registry.find(name) is not None:
            house.mirror.force(name, None)
    house.settle()
    house.advance(3.0, 0.05)
    for worker in house.live:
        assert shown(worker) == shown(house)
