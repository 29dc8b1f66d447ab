"""Sidecars of the store's engines: what is in force while a process starts, fails, or is wanted no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engines.host.reconciler import Reconciler, Wanted
from gateway.core.errors import ConfigError
from gateway.core.specs import EngineSpec

MISSING = "missing.gguf"


def engine(name: str, model: str = "a.gguf", **settings: Any) -> EngineSpec:
    return EngineSpec(name=name, runtime="llama.cpp", model=model, **settings)


class House:
    """Sidecars that start when the test says so, and everything that is told to the outside."""

    def __init__(self) -> None:
        self.running: dict[str, EngineSpec] = {}
        self.puts: list[EngineSpec] = []
        self.removed: list[str] = []
        self.gates: dict[str, asyncio.Future[None]] = {}
        self.down: list[str] = []
        self.reports: list[tuple[str, str, dict[str, Any], str]] = []
        self.changes = 0
        self.reconciler = Reconciler(self, self, self.find, self.changed, lambda *report: self.reports.append(report))  # type: ignore[arg-type]

    # what the reconciler asks for
    def specs(self) -> dict[str, EngineSpec]:
        return dict(self.running)

    async def put(self, spec: EngineSpec) -> None:
        self.puts.append(spec)
        self.gates[spec.name] = gate = asyncio.get_running_loop().create_future()
        await gate
        self.running[spec.name] = spec

    async def remove(self, engine: str) -> None:
        self.running.pop(engine, None)
        self.removed.append(engine)

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        self.down.append(engine)

    def find(self, model: str) -> str:
        if model == MISSING:
            raise ConfigError("there is no model", path="model")
        return f"/models/{model}"

    def changed(self) -> None:
        self.changes += 1

    # what a test does
    def store(self, own: frozenset[str] = frozenset(), **engines: tuple[int, EngineSpec]) -> dict[str, EngineSpec]:
        """One refresh with these engines in the store; what is in force then."""
        target = self.reconciler.plan({name: Wanted(*wanted) for name, wanted in engines.items()})
        self.reconciler.pursue(target, own)
        return target.specs()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)

    async def asked(self, count: int) -> None:
        await self.until(lambda: len(self.puts) == count)

    async def finish(self, name: str, error: str | None = None) -> None:
        """The process is ready, or fails."""
        before, gate = self.changes, self.gates[name]
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(ConfigError(error))
        await self.until(lambda: self.changes > before)


@pytest.fixture
async def house() -> Any:
    made = House()
    yield made
    await made.reconciler.aclose()


async def test_a_new_engine_is_in_force_at_once_and_starts_beside_everything_else(house: House) -> None:
    planned = house.store(a=(1, engine("a")), b=(4, engine("b")))
    assert {spec.model for spec in planned.values()} == {"/models/a.gguf"}
    await house.asked(2)
    await house.finish("b")
    assert (house.running.keys(), house.reconciler.revision("b"), house.reconciler.reason("a")) == ({"b"}, 4, "")
    await house.finish("a")
    await house.reconciler.settled()
    assert house.changes == 2 and not house.reports


async def test_a_changed_engine_stays_as_it_is_until_the_new_process_has_taken_over(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a")
    old, new = house.running["a"], engine("a", version="2")
    assert house.store(a=(2, new)) == {"a": old} and house.reconciler.revision("a") == 1
    await house.asked(2)
    await house.finish("a")
    assert house.store(a=(2, new))["a"].version == "2" and house.reconciler.revision("a") == 2
    assert len(house.puts) == 2


async def test_what_needs_no_other_process_is_in_force_at_once(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a")
    assert house.store(a=(2, engine("a", weight=2.0)))["a"].weight == 2.0
    assert house.reconciler.revision("a") == 2
    await house.asked(2)
    await house.finish("a")


async def test_what_fails_leaves_the_old_in_force_is_reported_once_and_not_tried_again(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a")
    old, wrong = house.running["a"], engine("a", version="2")
    house.store(a=(2, wrong))
    await house.asked(2)
    await house.finish("a", "it does not fit")
    for _ in range(3):
        assert house.store(a=(2, wrong)) == {"a": old}
    await house.reconciler.settled()
    assert len(house.puts) == 2
    assert (house.reconciler.revision("a"), house.reconciler.reason("a")) == (1, "it does not fit")
    assert house.reports == [("rollout_failed", "engines/a", {"revision": 2, "reason": "it does not fit", "kept": "1"}, "failed")]
    assert house.down == [], "the old process serves"
    house.store(a=(3, wrong))  # written again: tried again
    await house.asked(3)
    assert house.reconciler.reason("a") == ""
    await house.finish("a")


async def test_a_new_engine_that_fails_is_down_with_the_reason(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a", "no such architecture")
    assert (house.reconciler.revision("a"), house.reconciler.reason("a"), house.down) == (None, "no such architecture", ["a"])
    house.store(a=(1, engine("a")))
    await house.reconciler.settled()
    assert len(house.puts) == 1
    house.reconciler.retry()
    house.store(a=(1, engine("a")))
    await house.asked(2)
    await house.finish("a")
    assert house.reconciler.revision("a") == 1


async def test_a_model_that_is_not_here_keeps_what_runs(house: House) -> None:
    assert house.store(a=(1, engine("a", MISSING)))["a"].model == MISSING
    assert (house.reconciler.revision("a"), house.reconciler.reason("a"), house.down) == (None, "there is no model", ["a"])
    house.store(a=(2, engine("a")))
    await house.asked(1)
    await house.finish("a")
    running = house.running["a"]
    assert house.store(a=(3, engine("a", MISSING))) == {"a": running}
    assert (house.reconciler.revision("a"), house.reconciler.reason("a")) == (2, "there is no model")
    assert house.store(a=(4, engine("a"))) == {"a": running} and house.reconciler.reason("a") == ""
    await house.reconciler.settled()
    assert len(house.puts) == 1


async def test_a_change_during_a_change_is_followed(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    house.store(a=(2, engine("a", version="2")))
    await house.finish("a")
    await house.asked(2)
    await house.finish("a")
    await house.reconciler.settled()
    assert [spec.version for spec in house.puts] == ["1", "2"]


async def test_what_the_store_no_longer_has_ends(house: House) -> None:
    house.store(a=(1, engine("a")), b=(1, engine("b")))
    await house.asked(2)
    await house.finish("a")
    assert house.store() == {}
    await house.until(lambda: house.removed == ["a"])
    await house.finish("b")  # it was under way: it ends as soon as it can
    await house.reconciler.settled()
    assert house.removed == ["a", "b"] and not house.running


async def test_an_engine_of_the_file_is_not_ended_here(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a")
    house.store(own=frozenset({"a"}))  # the file has one of this name by now
    await house.reconciler.settled()
    assert house.removed == [] and "a" in house.running


async def test_a_plan_that_is_thrown_away_changes_nothing(house: House) -> None:
    house.store(a=(1, engine("a")))
    await house.asked(1)
    await house.finish("a")
    house.reconciler.plan({"a": Wanted(2, engine("a", MISSING)), "b": Wanted(1, engine("b"))})
    assert (house.reconciler.revision("a"), house.reconciler.reason("a"), house.reconciler.has("b")) == (1, "", False)
    assert (house.reports, len(house.puts)) == ([], 1)
