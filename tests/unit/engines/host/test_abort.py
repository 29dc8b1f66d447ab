"""A replacement that an operator takes back: at whatever moment, everything is as it was before, and the change says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.host.replacement import Replacement
from gateway.core.errors import GatehouseError
from gateway.core.specs import EngineSpec, RolloutSpec, WarmupSpec
from tests.unit.engines.host.test_replacement import SLOW, changed, kinds, refused, started
from tests.unit.engines.host.test_supervisor import House, gone, house
from tests.waiting import reached

__all__ = ["house"]
REASON = "aborted by acme/root"
FOREVER = RolloutSpec(steps=(), stop_first=True)


def change(house: House, *specs: EngineSpec) -> asyncio.Future[None]:
    return asyncio.ensure_future(house.supervisor.apply(specs, wait=True))


async def aborted(house: House, *engines: str) -> None:
    async with asyncio.timeout(60):
        await house.supervisor.abort(engines or ["e"], REASON)


async def in_phase(house: House, phase: str, name: str = "e") -> None:
    await reached(lambda: (rollout := house.engine(name)["rollout"]) is not None and rollout["phase"] == phase)


async def nothing_is_under_way(house: House, *engines: str) -> None:
    with pytest.raises(GatehouseError) as caught:
        await house.supervisor.abort(engines or ["e"], REASON)
    assert (caught.value.status, caught.value.code) == (409, "no_rollout")


async def test_in_the_middle_of_the_shift_the_old_process_has_everything_again(house: House) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    old = house.engine()["pid"]
    await nothing_is_under_way(house)
    task = change(house, changed(spec, version="2"))
    (shift,) = await reached(lambda: house.observer.shifts)
    await reached(lambda: shift.shares == [0.1])
    house.observer.busy.add(shift.address)
    await aborted(house)
    error = await refused(task)
    assert (error.code, error.message) == ("rolled_back", f"engine 'e': rolled back: {REASON}")
    assert shift.ended and house.supervisor.specs() == {"e": spec}
    engine = house.engine()
    assert (engine["pid"], engine["version"], engine["state"], engine["rollout"]) == (old, "1", "ready", None)
    assert house.observer.heard == [("ready", "e")], "the routing heard of the old one only"
    (back,) = [detail for kind, _, detail in house.events if kind == "engine_rolled_back"]
    assert (back["version"], back["to_version"]) == ("2", "1") and REASON in back["reason"]
    new = house.starts()[1]["pid"]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not gone(new), "what it carries goes to its end"
    house.observer.busy.clear()
    await reached(lambda: gone(new))
    await nothing_is_under_way(house)


@pytest.mark.parametrize(("life", "phase"), [("load", "loading"), ("hold", "warming")])
async def test_before_any_traffic_nobody_waits_for_the_new_process(house: House, life: str, phase: str) -> None:
    spec = changed(house.spec("ready", life, gate=str(house.gate())), warmup=WarmupSpec(timeout=3600.0))
    await started(house, spec)
    task = change(house, changed(spec, version="2"))
    await in_phase(house, phase)
    await reached(lambda: phase == "loading" or (house.directory / "e.asked").exists())
    await aborted(house)
    assert (await refused(task)).message == f"engine 'e': rolled back: {REASON}"
    assert house.observer.shifts == [] and house.supervisor.specs() == {"e": spec}
    await reached(lambda: all(gone(start["pid"]) for start in house.starts()[1:]))
    assert kinds(house).count("engine_rolled_back") == 1


async def test_all_engines_of_a_change_go_back_and_no_other(house: House) -> None:
    one, two, other = (changed(house.spec("ready", name=name), rollout=SLOW) for name in ("one", "two", "other"))
    await started(house, one, two, other)
    task = asyncio.ensure_future(house.supervisor.reload(["one", "two"]))
    apart = asyncio.ensure_future(house.supervisor.reload(["other"]))
    await reached(lambda: len(house.observer.shifts) == 3 and all(shift.shares for shift in house.observer.shifts))
    await aborted(house, "two", "nobody")
    assert REASON in (await refused(task)).message
    assert sorted(target for kind, target, _ in house.events if kind == "engine_rolled_back") == ["one", "two"]
    assert {name: house.engine(name)["rollout"] is None for name in ("one", "two", "other")} == {"one": True, "two": True, "other": False}
    assert not apart.done()
    await nothing_is_under_way(house, "one", "two")
    await aborted(house, "other")
    await refused(apart)


async def test_one_that_is_ready_goes_back_while_another_one_loads(house: House) -> None:
    one = house.spec("ready", name="one")
    two = house.spec("ready", "load", name="two", gate=str(house.gate()))
    await started(house, one, two)
    task = change(house, changed(one, version="2"), changed(two, version="2"))
    await in_phase(house, "warming", "one")
    await in_phase(house, "loading", "two")
    await aborted(house, "one")
    assert REASON in (await refused(task)).message
    assert house.supervisor.specs() == {"one": one, "two": two}
    await reached(lambda: all(gone(start["pid"]) for name in ("one", "two") for start in house.starts(name)[1:]))


class TestStopFirst:
    """The old process has to be stopped for the new one: it is started again."""

    async def test_while_the_old_one_drains(self, house: House) -> None:
        spec = house.spec("ready", "short", "ready")
        await started(house, spec)
        old = house.starts()[0]
        house.observer.busy.add(f"unix:{old['socket']}")
        task = change(house, changed(spec, version="2", rollout=FOREVER))
        await in_phase(house, "replacing")
        waiting = [asyncio.ensure_future(aborted(house)) for _ in range(2)]
        await asyncio.sleep(0)
        house.observer.busy.clear()
        assert REASON in (await refused(task)).message
        await asyncio.gather(*waiting)
        assert (house.engine()["state"], house.engine()["version"], house.engine()["pid"]) == ("ready", "1", house.starts()[2]["pid"])
        assert len(house.starts()) == 3 and kinds(house).count("engine_rolled_back") == 1, "aborted twice, taken back once"

    async def test_while_the_new_one_loads(self, house: House) -> None:
        spec = house.spec("ready", "short", "load", "ready", gate=str(house.gate()))
        await started(house, spec)
        task = change(house, changed(spec, version="2", rollout=FOREVER))
        await reached(lambda: len(house.starts()) == 3)
        await aborted(house)
        assert REASON in (await refused(task)).message
        assert (house.engine()["state"], house.engine()["version"], house.engine()["pid"]) == ("ready", "1", house.starts()[3]["pid"])
        await reached(lambda: gone(house.starts()[2]["pid"]))

    async def test_one_that_is_in_force_already_is_emptied_and_not_cut_off(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has the engine's traffic, while another one of its change still loads."""
        one = house.spec("ready", "short", "ready", name="one")
        two = house.spec("ready", "short", "load", "ready", name="two", gate=str(house.gate()))
        await started(house, one, two)
        task = asyncio.ensure_future(house.supervisor.reload(["one", "two"], stop_first=True))
        await reached(lambda: len(house.starts("two")) == 3)
        assert house.engine("one")["rollout"]["phase"] == "in force"
        new = house.starts("one")[2]
        house.observer.busy.add(f"unix:{new['socket']}")
        waiting = asyncio.ensure_future(aborted(house, "two"))
        await reached(lambda: gone(house.starts("two")[2]["pid"]) and house.engine("one")["rollout"]["phase"] == "rolling back")
        assert not gone(new["pid"]) and house.engine("one")["state"] == "ready"
        house.observer.busy.clear()
        await refused(task)
        await waiting
        assert house.engine("one")["pid"] == house.starts("one")[3]["pid"]
        assert house.engine("two")["pid"] == house.starts("two")[3]["pid"]

    async def test_before_the_old_one_is_touched(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = house.spec("ready", "short")
        await started(house, spec)
        before = Replacement.stop_first

        async def late(one: Replacement) -> None:
            one.abort(REASON)
            await before(one)

        monkeypatch.setattr(Replacement, "stop_first", late)
        assert REASON in (await refused(change(house, changed(spec, version="2", rollout=FOREVER)))).message
        assert (house.engine()["pid"], house.engine()["state"]) == (house.starts()[0]["pid"], "ready")
        assert house.observer.heard == [("ready", "e")]


async def test_at_the_last_moment_it_is_taken_back_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are done, the next thing would be that it is in force."""
    spec = house.spec("ready")
    await started(house, spec)
    before = Replacement.check

    def late(one: Replacement) -> None:
        one.abort(REASON)
        before(one)

    monkeypatch.setattr(Replacement, "check", late)
    assert REASON in (await refused(change(house, changed(spec, version="2")))).message
    assert house.engine()["version"] == "1" and house.observer.shifts[0].ended


async def test_what_has_failed_by_itself_keeps_its_reason(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = changed(house.spec("ready"), rollout=SLOW)
    await started(house, spec)
    before = Replacement.give_up

    async def late(one: Replacement, reason: str) -> None:
        one.phase = "rolling back"
        one.abort(REASON)
        await before(one, reason)

    monkeypatch.setattr(Replacement, "give_up", late)
    task: Any = change(house, changed(spec, version="2"))
    (shift,) = await reached(lambda: house.observer.shifts)
    shift.fail(3)
    assert "3 of 3 requests" in (await refused(task)).message
