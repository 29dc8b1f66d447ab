"""Copies that follow the hints: which are started and stopped, and what happens when one does not start."""

from __future__ import annotations

from typing import Any, cast

from engines.host.supervisor import Supervisor
from gateway.app.engines.scaling import BLOCKED_SECONDS, MANY, Scaling, _rules_of_pool
from gateway.config.expand import expanded, with_copies
from gateway.core.errors import EngineChangeFailed
from gateway.core.snapshot import ModelEntry
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSpec
from gateway.core.specs.fleet import ScaleSpec
from gateway.routing.endpoints import Endpoint
from tests.waiting import reached


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Place:
    """As much of an endpoint as is read."""

    def __init__(self, state: str) -> None:
        self.state, self.slots, self.load_seconds, self.details = state, 1, 1.0, dict[str, Any]()


class House:
    """Two pools over one engine with up to three copies, and a supervisor that does at once what it is told."""

    def __init__(self, **scale: Any) -> None:
        engine = EngineSpec(name="chat", runtime="llama.cpp", model="m", scale=ScaleSpec(**{"max": 3, "stabilization": 5.0, **scale}))
        models = (ModelSpec(name="a", pool=("chat",)), ModelSpec(name="b", pool=("chat",)))
        self.stated = with_copies(ConfigSpec(version=1, engines=(engine,), models=models))
        self.models = expanded(self.stated, {}).models
        self.queued = {"a": 0, "b": 0}
        self.places = {"chat": Place("ready"), "chat~2": Place("unloaded"), "chat~3": Place("unloaded")}
        self.fails, self.did = "", list[str]()
        self.clock = Clock()
        self.scaling = Scaling(
            lambda: self.stated,
            lambda: [cast(ModelEntry, _Entry(model)) for model in self.models],
            cast(Any, lambda: {name: (cast(Endpoint, place), self.queued["a"] and 1) for name, place in self.places.items()}),
            lambda entry: self.queued[entry.name],
            cast(Supervisor, self),
            self.clock,
        )

    async def looks(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1.0
            await self.scaling.look()
            await reached(lambda: not self.scaling._acting)

    # --- the supervisor

    def specs(self) -> dict[str, EngineSpec]:
        return {engine.name: engine for engine in self.stated.engines}

    def runs(self, engine: str) -> bool:
        return self.places[engine].state == "ready"

    async def load(self, engine: str) -> None:
        self.did.append(f"load {engine}")
        if self.fails:
            raise EngineChangeFailed(self.fails, engine=engine)
        self.places[engine].state = "ready"

    async def unload(self, engine: str, *, reason: str) -> None:
        self.did.append(f"unload {engine}")
        self.places[engine].state = "unloaded"


class _Entry:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.name = spec, spec.name


async def test_copies_come_with_the_queue_and_the_last_one_goes_first() -> None:
    house = House()
    house.queued["a"] = 9
    await house.looks(4)
    assert sorted(house.did) == ["load chat~2", "load chat~3"]
    assert house.scaling.view()["engines"][0]["desired"] == 3
    house.queued["a"] = 0
    await house.looks(8)
    assert house.did[2:] == ["unload chat~2", "unload chat~3"]
    await house.looks(20)
    assert len(house.did) == 4


async def test_the_least_is_there_from_the_start() -> None:
    house = House(min=2)
    await house.looks(1)
    assert house.did == ["load chat~2"]


async def test_no_copy_runs_while_the_engine_itself_is_not_loaded() -> None:
    house = House(min=2)
    await house.looks(1)
    house.places["chat"].state = "unloaded"
    await house.looks(1)
    assert house.did == ["load chat~2", "unload chat~2"]


async def test_a_copy_that_does_not_start_is_tried_again_ever_later_and_says_why() -> None:
    house = House(min=2, max=2)
    house.fails = "no room"
    await house.looks(1)
    await house.looks(int(BLOCKED_SECONDS) - 2)
    assert house.did == ["load chat~2"]
    assert house.scaling.view()["engines"][0]["blocked"] == "no room"
    await house.looks(3)
    assert len(house.did) == 2
    await house.looks(int(BLOCKED_SECONDS) + 5)
    assert len(house.did) == 2, "twice as long the second time"
    house.fails = ""
    await house.looks(int(BLOCKED_SECONDS))
    assert house.places["chat~2"].state == "ready"
    assert house.scaling.view()["engines"][0]["blocked"] == ""


async def test_load_that_flaps_starts_each_copy_once() -> None:
    house = House(stabilization=30.0)
    for _ in range(20):
        house.queued["a"] = 9
        await house.looks(3)
        house.queued["a"] = 0
        await house.looks(10)
    assert sorted(house.did) == ["load chat~2", "load chat~3"]


async def test_the_engine_answers_for_the_queues_of_all_its_pools() -> None:
    house = House()
    house.queued["a"], house.queued["b"] = 1, 1
    await house.looks(1)
    engine = house.scaling.view()["engines"][0]
    assert engine["waiting"] == 2
    assert [pool["waiting"] for pool in house.scaling.view()["pools"]] == [1, 1]


def test_a_pool_has_the_bounds_of_its_engines_together() -> None:
    one = EngineSpec(name="one", runtime="llama.cpp", scale=ScaleSpec(min=1, max=3))
    two = EngineSpec(name="two", runtime="llama.cpp", scale=ScaleSpec(min=2, max=4))
    both = _rules_of_pool(["one", "two"], {"one": one, "two": two})
    assert (both.min, both.max) == (3, 7)
    mixed = _rules_of_pool(["one", "other"], {"one": one})
    assert (mixed.min, mixed.max) == (2, MANY)


async def test_very_many_pools_are_judged_in_steps() -> None:
    house = House()
    house.models = tuple(ModelSpec(name=f"m{number}", pool=("chat",)) for number in range(2000))
    house.queued = {model.name: 0 for model in house.models} | {"a": 0}
    assert sum(1 for _ in house.scaling._judged(house.clock.now, house.stated)) > 2000
    assert len(house.scaling.pools) == 2000
