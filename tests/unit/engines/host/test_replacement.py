"""Replacing processes: nobody loses traffic, all of a change or none, and back again by itself; over processes that play a script."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.errors import EngineChangeFailed, GatehouseError
from gateway.core.specs import EngineSpec, LifecycleSpec, RolloutSpec, WarmupSpec
from tests.unit.engines.host.test_supervisor import House, gone, house
from tests.waiting import reached

__all__ = ["house"]
SLOW = RolloutSpec(steps=(0.1, 0.5), step_seconds=3600.0, max_failures=2)


def changed(spec: EngineSpec, **settings: Any) -> EngineSpec:
    return msgspec.structs.replace(spec, **settings)


def kinds(house: House) -> list[str]:
    return [kind for kind, _, _ in house.events]


async def refused(change: Awaitable[None]) -> EngineChangeFailed:
    with pytest.raises(EngineChangeFailed) as caught:
        await change
    return caught.value


async def started(house: House, *specs: EngineSpec) -> None:
    await house.supervisor.apply(specs, wait=True)
    house.events.clear()


async def test_traffic_moves_by_the_steps_after_a_warm_up(house: House) -> None:
    await started(house, house.spec("ready"))
    await house.supervisor.apply((changed(house.spec("ready"), version="2"),), wait=True)
    (shift,) = house.observer.shifts
    new = house.starts()[1]
    assert shift.shares == [0.1, 0.5] and shift.ended
    assert shift.address == f"unix:{new['socket']}" == house.observer.addresses[-1]
    assert (house.directory / "e.asked").read_text() == f"{new['pid']} /v1/completions\n", "the new process was warmed up, and it only"
    steps = [detail["share"] for kind, _, detail in house.events if kind == "engine_rollout"]
    assert steps == [0.1, 0.5]
    replaced = next(detail for kind, _, detail in house.events if kind == "engine_replaced")
    assert (replaced["version"], replaced["from_version"]) == ("2", "1")
    engine = house.engine()
    assert (engine["version"], engine["pid"], engine["rollout"]) == ("2", new["pid"], None)


async def test_operators_see_a_rollout_and_others_are_changed_meanwhile(house: House) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec, house.spec("ready", name="other"))
    task = asyncio.ensure_future(house.supervisor.apply((changed(spec, version="2"), house.spec("ready", name="other")), wait=True))
    await reached(lambda: house.observer.shifts and house.observer.shifts[0].shares)
    seen = house.engine()["rollout"]
    assert {k: seen[k] for k in ("phase", "version", "from_version", "share", "step", "steps")} == {
        "phase": "shifting", "version": "2", "from_version": "1", "share": 0.1, "step": 1, "steps": 2,
    }  # fmt: skip
    assert seen["since"] > 1_700_000_000
    assert house.engine()["version"] == "1", "what is in force"
    async with asyncio.timeout(60):
        await house.supervisor.reload(["other"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert house.observer.shifts[0].ended


async def test_the_models_of_a_change_that_is_under_way_are_in_use(house: House) -> None:
    spec = changed(house.spec("ready", model="old"), rollout=SLOW)
    await started(house, spec)
    gate = house.gate()
    wanted = (changed(spec, model="new"), house.spec("load", name="added", model="third", gate=str(gate)))
    task = asyncio.ensure_future(house.supervisor.apply(wanted, wait=True))
    await reached(lambda: house.supervisor.models() >= {("e", "old"), ("added", "third")})
    gate.touch()
    await reached(lambda: house.supervisor.models() == {("e", "old"), ("e", "new"), ("added", "third")})
    await reached(lambda: house.observer.shifts)
    house.observer.shifts[0].fail(3)
    await refused(task)
    await reached(lambda: house.supervisor.models() == {("e", "old")})


async def test_too_many_failures_roll_back(house: House) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    old = house.engine()["pid"]
    task = asyncio.ensure_future(house.supervisor.apply((changed(spec, version="2"),), wait=True))
    (shift,) = await reached(lambda: house.observer.shifts)
    shift.fail(2)
    await asyncio.sleep(0)
    assert not task.done()
    shift.fail(1)
    error = await refused(task)
    assert (error.code, error.status) == ("rolled_back", 502)
    assert error.message == "engine 'e': rolled back: 3 of 3 requests to its new process failed"
    assert shift.ended
    assert (house.engine()["pid"], house.engine()["version"], house.engine()["state"]) == (old, "1", "ready")
    assert house.supervisor.specs() == {"e": spec}
    assert house.observer.heard == [("ready", "e")], "the routing heard of the old one only"
    back = next(detail for kind, _, detail in house.events if kind == "engine_rolled_back")
    assert (back["version"], back["to_version"]) == ("2", "1") and "3 of 3" in back["reason"]
    await reached(lambda: gone(house.starts()[1]["pid"]))


async def test_a_new_process_that_dies_rolls_back_and_is_not_started_again(house: House) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    task = asyncio.ensure_future(house.supervisor.apply((changed(spec, version="2"),), wait=True))
    await reached(lambda: house.observer.shifts and house.observer.shifts[0].shares)
    os.kill(house.starts()[1]["pid"], signal.SIGKILL)
    error = await refused(task)
    assert "rolled back: its new process ended: the process ended with code -9" in error.message
    assert len(house.starts()) == 2
    assert house.observer.heard == [("ready", "e")]


async def test_the_new_process_takes_over_at_once_when_the_old_one_dies(house: House) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    task = asyncio.ensure_future(house.supervisor.apply((changed(spec, version="2"),), wait=True))
    await reached(lambda: house.observer.shifts and house.observer.shifts[0].shares)
    os.kill(house.starts()[0]["pid"], signal.SIGKILL)
    async with asyncio.timeout(60):
        await task
    assert (house.engine()["version"], house.engine()["pid"]) == ("2", house.starts()[1]["pid"])


@pytest.mark.parametrize(("life", "warmup"), [("mute", WarmupSpec()), ("hold", WarmupSpec(timeout=0.05))])
async def test_a_warm_up_that_fails_rolls_back_before_any_traffic(house: House, life: str, warmup: WarmupSpec) -> None:
    spec = changed(house.spec("ready", life), warmup=warmup)
    await started(house, spec)
    error = await refused(house.supervisor.apply((changed(spec, version="2"),), wait=True))
    assert error.code == "rolled_back"
    assert "did not pass the warm-up" in error.message
    assert ("/v1/completions answered 500" if life == "mute" else "no answer within 0.05 s") in error.message
    assert house.observer.shifts == []
    assert "engine_rolled_back" in kinds(house)


async def test_a_warm_up_can_be_switched_off(house: House) -> None:
    spec = changed(house.spec("ready", "mute"), warmup=WarmupSpec(enabled=False))
    await started(house, spec)
    await house.supervisor.reload(["e"])
    assert not (house.directory / "e.asked").exists()


async def test_several_engines_come_into_force_together_or_not_at_all(house: House) -> None:
    one, two = house.spec("ready", name="one"), house.spec("ready", "fail", name="two")
    await started(house, one, two)
    pids = {name: house.engine(name)["pid"] for name in ("one", "two")}
    error = await refused(house.supervisor.apply((changed(one, version="2"), changed(two, version="2")), wait=True))
    assert "engine 'two': the file is no model" in error.message
    assert house.observer.shifts == [], "all are ready and warm before one gets traffic"
    assert {name: house.engine(name)["pid"] for name in ("one", "two")} == pids
    assert house.supervisor.specs() == {"one": one, "two": two}
    await reached(lambda: gone(house.starts("one")[1]["pid"]))


async def test_one_that_fails_in_the_shift_takes_the_others_back(house: House) -> None:
    one = changed(house.spec("ready", name="one"), rollout=RolloutSpec(steps=(), step_seconds=0.0))
    two = changed(house.spec("ready", name="two"), rollout=SLOW)
    await started(house, one, two)
    task = asyncio.ensure_future(house.supervisor.reload(["one", "two"]))
    await reached(lambda: len(house.observer.shifts) == 2 and house.observer.shifts[1].shares)
    house.observer.shifts[1].fail(3)
    await refused(task)
    assert [shift.ended for shift in house.observer.shifts] == [True, True]
    assert house.observer.heard == [("ready", "one"), ("ready", "two")] or house.observer.heard == [("ready", "two"), ("ready", "one")]


async def test_a_fresh_engine_goes_again_when_a_replacement_fails(house: House) -> None:
    old = house.spec("ready", "fail", name="old")
    await started(house, old)
    await refused(house.supervisor.apply((changed(old, version="2"), house.spec("ready", name="fresh")), wait=True))
    assert {e["name"] for e in house.supervisor.engines()} == {"old"}


async def test_an_old_process_ends_when_what_it_carries_has_ended(house: House) -> None:
    await started(house, house.spec("ready"))
    old = house.starts()[0]
    house.observer.busy.add(f"unix:{old['socket']}")
    await house.supervisor.reload(["e"])
    assert house.observer.addresses[-1] == f"unix:{house.starts()[1]['socket']}"
    for _ in range(20):
        await asyncio.sleep(0)
    assert not gone(old["pid"])
    house.observer.busy.clear()
    await reached(lambda: gone(old["pid"]))


async def test_settings_that_need_no_process_change_in_place(house: House) -> None:
    spec = house.spec("ready")
    await started(house, spec)
    other = changed(spec, weight=3.0, rollout=SLOW, lifecycle=LifecycleSpec(pinned=True))
    await house.supervisor.apply((other,), wait=True)
    assert len(house.starts()) == 1
    assert house.supervisor.specs() == {"e": other}
    assert house.engine()["lifecycle"]["pinned"] is True


class TestMemory:
    """short: the sidecar says that it does not fit."""

    async def test_it_is_refused(self, house: House) -> None:
        spec = house.spec("ready", "short")
        await started(house, spec)
        pid = house.engine()["pid"]
        error = await refused(house.supervisor.reload(["e"]))
        assert (error.code, error.status) == ("insufficient_memory", 507)
        assert "no room" in error.message and "stop_first" in error.message
        assert (house.engine()["pid"], house.engine()["state"]) == (pid, "ready")

    @pytest.mark.parametrize("by_setting", [True, False])
    async def test_the_old_one_is_stopped_first_when_that_is_allowed(self, house: House, by_setting: bool) -> None:
        spec = changed(house.spec("ready", "short", "ready"), rollout=RolloutSpec(steps=(), stop_first=by_setting))
        await started(house, spec)
        old = house.engine()["pid"]
        if by_setting:
            await house.supervisor.apply((changed(spec, version="2"),), wait=True)
        else:
            await house.supervisor.reload(["e"], stop_first=True)
        assert gone(old)
        assert house.observer.heard == [("ready", "e"), ("unloading", "e"), ("ready", "e")]
        assert house.observer.awaited == ["e"], "requests wait meanwhile"
        assert (house.engine()["pid"], house.engine()["state"]) == (house.starts()[2]["pid"], "ready")
        assert next(detail for kind, _, detail in house.events if kind == "engine_replaced")["stopped_first"] is True

    async def test_stop_first_changes_nothing_where_both_fit(self, house: House) -> None:
        await started(house, house.spec("ready"))
        await house.supervisor.reload(["e"], stop_first=True)
        assert house.observer.heard == [("ready", "e"), ("ready", "e")]

    async def test_the_old_one_comes_back_when_the_new_one_does_not(self, house: House) -> None:
        spec = house.spec("ready", "short", "fail", "fail", "ready")
        await started(house, spec)
        error = await refused(house.supervisor.apply((changed(spec, version="2", rollout=RolloutSpec(stop_first=True)),), wait=True))
        assert "no model" in error.message
        assert house.supervisor.specs() == {"e": spec}
        assert (house.engine()["state"], house.engine()["version"]) == ("ready", "1"), "started again until it ran"
        assert len(house.starts()) == 5
        assert house.observer.heard[-1] == ("ready", "e")

    async def test_those_already_replaced_go_back_when_a_later_one_fails(self, house: House) -> None:
        one = changed(house.spec("ready", "short", "ready", "ready", name="one"), version="1")
        two = house.spec("ready", "short", "fail", "ready", name="two")
        await started(house, one, two)
        await refused(house.supervisor.reload(["one", "two"], stop_first=True))
        await reached(lambda: {e["state"] for e in house.supervisor.engines()} == {"ready"})
        assert house.engine("one")["pid"] == house.starts("one")[3]["pid"]
        assert house.engine("two")["pid"] == house.starts("two")[3]["pid"]

    async def test_a_pinned_engine_is_not_stopped_first_without_force(self, house: House) -> None:
        spec = changed(house.spec("ready", "short", "ready"), lifecycle=LifecycleSpec(pinned=True))
        await started(house, spec)
        with pytest.raises(GatehouseError) as caught:
            await house.supervisor.reload(["e"], stop_first=True)
        assert (caught.value.status, caught.value.code) == (409, "pinned")
        await house.supervisor.reload(["e"], stop_first=True, force=True)
        assert house.engine()["pid"] == house.starts()[2]["pid"]


class TestOneEngine:
    """`put` and `remove`, for those who change engines one by one."""

    async def test_it_is_started_amended_replaced_and_removed(self, house: House) -> None:
        spec = house.spec("ready")
        await house.supervisor.put(spec)
        await house.supervisor.put(changed(spec, weight=2.0))
        assert len(house.starts()) == 1
        await house.supervisor.put(changed(spec, version="2"))
        assert (len(house.starts()), house.engine()["version"]) == (2, "2")
        await house.supervisor.remove("e")
        await house.supervisor.remove("e")
        assert house.supervisor.engines() == []
        await reached(lambda: all(gone(start["pid"]) for start in house.starts()))

    async def test_one_that_fails_leaves_what_was(self, house: House) -> None:
        spec = house.spec("fail", "ready", "fail")
        await refused(house.supervisor.put(spec))
        assert house.supervisor.engines() == []
        await house.supervisor.put(spec)
        await refused(house.supervisor.put(changed(spec, version="2")))
        assert house.supervisor.specs() == {"e": spec}


async def test_close_in_the_middle_of_a_rollout_ends_everything(house: House, tmp_path: Path) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    task = asyncio.ensure_future(house.supervisor.apply((changed(spec, version="2"),), wait=True))
    await reached(lambda: house.observer.shifts)
    await house.supervisor.aclose(0.0)
    await asyncio.gather(task, return_exceptions=True)
    assert all(gone(start["pid"]) for start in house.starts())
