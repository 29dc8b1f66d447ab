"""Engines that the first request loads and silence unloads; over processes that play a script."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest

from engines.host import supervisor as supervisor_module
from gateway.core.errors import EngineChangeFailed, GatehouseError
from gateway.core.specs import EngineSpec, LifecycleSpec
from tests.unit.engines.host.test_supervisor import House, gone, house
from tests.waiting import reached

__all__ = ["house"]


def lazy(house: House, *lives: str, name: str = "e", **lifecycle: Any) -> EngineSpec:
    return msgspec.structs.replace(house.spec(*lives, name=name), lifecycle=LifecycleSpec(**{"load": "lazy", **lifecycle}))


async def unload_idle(house: House) -> None:
    async with asyncio.timeout(60):
        await house.supervisor.unload_idle()


@pytest.fixture(autouse=True)
def no_clockwork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests look for idle engines themselves."""
    monkeypatch.setattr(supervisor_module, "IDLE_SECONDS", 3600.0)


async def test_a_lazy_engine_is_not_started(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready"),), wait=True)
    assert house.starts() == []
    assert house.observer.heard == [("unloaded", "e", "")]
    shown = house.engine()
    assert (shown["state"], shown["version"], shown["reason"]) == ("stopped", "1", "not loaded yet")
    assert shown["lifecycle"] == {"load": "lazy", "idle_ttl": 0.0, "pinned": False}


async def test_it_is_loaded_once_when_it_is_wanted(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready"),), wait=True)
    for _ in range(3):
        house.supervisor.wanted("e")
    await reached(lambda: ("ready", "e") in house.observer.heard)
    await house.supervisor.load("e")
    assert len(house.starts()) == 1
    assert house.observer.awaited == ["e"]
    assert [kind for kind, _, _ in house.events].count("engine_wanted") == 3


async def test_a_load_that_fails_is_told_and_rests_longer_each_time(house: House) -> None:
    await house.supervisor.apply((lazy(house, "fail", "short", "ready"),), wait=True)
    for code, pause in (("engine_failed", 5.0), ("insufficient_memory", 10.0)):
        with pytest.raises(EngineChangeFailed):
            await house.supervisor.load("e")
        assert house.observer.heard[-1] == ("unloaded", "e", code)
        assert house.observer.pauses[-1] == pause
    assert "no room" in house.engine()["reason"]
    house.supervisor.wanted("e")
    await reached(lambda: house.observer.heard[-1] == ("ready", "e"))
    assert house.engine()["reason"] is None
    os.kill(house.engine()["pid"], signal.SIGKILL)
    await reached(lambda: house.observer.heard[-3:] == [("ready", "e"), ("down", "e"), ("ready", "e")])


async def test_nobody_is_left_waiting_when_a_wanted_load_fails(house: House) -> None:
    await house.supervisor.apply((lazy(house, "fail"),), wait=True)
    house.supervisor.wanted("e")
    await reached(lambda: house.observer.heard[-1] == ("unloaded", "e", "engine_failed"))


async def test_silence_unloads_and_the_next_request_loads(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready", idle_ttl=60.0),), wait=True)
    await house.supervisor.load("e")
    pid = house.engine()["pid"]
    for idle in (None, 59.9):
        house.observer.idle = {} if idle is None else {"e": idle}
        await unload_idle(house)
        assert house.engine()["state"] == "ready"
    house.observer.idle = {"e": 60.0}
    await unload_idle(house)
    assert gone(pid)
    assert house.observer.heard[-2:] == [("unloading", "e"), ("unloaded", "e", "")]
    assert next(d for kind, _, d in house.events if kind == "engine_unloaded")["reason"] == "idle for 60 s"
    await unload_idle(house)
    house.supervisor.wanted("e")
    await reached(lambda: house.engine()["state"] == "ready")


async def test_an_eager_engine_can_be_unloaded_when_idle_too(house: House) -> None:
    spec = msgspec.structs.replace(house.spec("ready"), lifecycle=LifecycleSpec(idle_ttl=1.0))
    await house.supervisor.apply((spec,), wait=True)
    house.observer.idle = {"e": 2.0}
    await unload_idle(house)
    assert house.observer.heard[-1] == ("unloaded", "e", "")


@pytest.mark.parametrize("lifecycle", [{"pinned": True, "idle_ttl": 1.0}, {"idle_ttl": 0.0}])
async def test_what_is_pinned_or_has_no_ttl_stays(house: House, lifecycle: dict[str, Any]) -> None:
    await house.supervisor.apply((lazy(house, "ready", **lifecycle),), wait=True)
    await house.supervisor.load("e")
    house.observer.idle = {"e": 1e9}
    await unload_idle(house)
    assert house.engine()["state"] == "ready"


async def test_a_request_that_comes_before_the_unload_keeps_it(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready", idle_ttl=1.0),), wait=True)
    await house.supervisor.load("e")
    house.observer.idle = {"e": 2.0}
    async with house.supervisor._changing(["e"]):
        look = asyncio.ensure_future(house.supervisor.unload_idle())
        await asyncio.sleep(0)
        house.observer.idle = {}
    await look
    assert house.engine()["state"] == "ready"


async def test_an_operator_unloads_a_pinned_engine_with_force_only(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready", load="eager", pinned=True),), wait=True)
    with pytest.raises(GatehouseError) as caught:
        await house.supervisor.unload("e")
    assert (caught.value.status, caught.value.code) == (409, "pinned")
    assert house.engine()["state"] == "ready"
    await house.supervisor.unload("e", force=True)
    assert house.observer.heard[-2:] == [("draining", "e"), ("down", "e")], "it stays away until it is loaded"


async def test_the_settings_of_an_unloaded_engine_change_without_a_process(house: House) -> None:
    await house.supervisor.apply((lazy(house, "fail"),), wait=True)
    with pytest.raises(EngineChangeFailed):
        await house.supervisor.load("e")
    other = msgspec.structs.replace(lazy(house, "fail", "ready"), version="2")
    await house.supervisor.apply((other,), wait=True)
    assert len(house.starts()) == 1
    assert house.observer.heard[-1] == ("unloaded", "e", "") and house.observer.pauses[-1] == 0.0, "it may be asked for at once"
    assert house.engine()["version"] == "2"
    await house.supervisor.reload(["e"])
    assert house.engine()["state"] == "ready"


async def test_an_engine_that_becomes_eager_is_loaded_by_the_change(house: House) -> None:
    await house.supervisor.apply((lazy(house, "fail", "ready"),), wait=True)
    eager = lazy(house, "fail", "ready", load="eager")
    with pytest.raises(EngineChangeFailed):
        await house.supervisor.apply((eager,), wait=True)
    assert house.observer.heard[-1] == ("unloaded", "e", ""), "it is lazy as before"
    await house.supervisor.apply((eager,), wait=True)
    assert house.engine()["state"] == "ready"


async def test_a_lazy_engine_that_was_never_loaded_is_removed(house: House) -> None:
    await house.supervisor.apply((lazy(house, "ready"),), wait=True)
    await house.supervisor.apply((), wait=True)
    assert house.supervisor.engines() == []


class TestRoom:
    """An engine that does not fit makes others go that are there on demand."""

    async def full(self, house: House, **others: EngineSpec) -> None:
        """These run; `e` will not fit at first."""
        await house.supervisor.apply((lazy(house, "short", "ready"), *others.values()), wait=True)
        for name in others:
            await house.supervisor.load(name)

    async def test_the_longest_idle_goes(self, house: House) -> None:
        await self.full(house, a=lazy(house, "ready", name="a"), b=lazy(house, "ready", name="b"))
        house.observer.idle = {"a": 20.0, "b": 30.0}
        await house.supervisor.load("e")
        assert (house.engine("a")["state"], house.engine("b")["state"], house.engine()["state"]) == ("ready", "stopped", "ready")
        assert ("unloaded", "b", "") in house.observer.heard

    async def test_nobody_goes_who_is_pinned_eager_or_was_needed_lately(self, house: House) -> None:
        pinned = lazy(house, "ready", name="pinned", pinned=True)
        await self.full(house, pinned=pinned, eager=house.spec("ready", name="eager"), lately=lazy(house, "ready", name="lately"))
        house.observer.idle = {"pinned": 1e9, "eager": 1e9, "lately": 9.9}
        with pytest.raises(EngineChangeFailed) as caught:
            await house.supervisor.load("e")
        assert caught.value.code == "insufficient_memory"
        assert all(house.engine(name)["state"] == "ready" for name in ("pinned", "eager", "lately"))
