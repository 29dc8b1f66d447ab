"""A Snapshot's plug-ins: open for as long as something refers to the Snapshot, closed exactly once afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from gateway.app.configuration.ownership import Owned, PluginOwner
from gateway.core.errors import ConfigError
from tests.waiting import reached


class Plugin:
    """Notes what happens to it."""

    def __init__(self, name: str, happened: list[str], fails: bool = False) -> None:
        self.name, self.happened, self.fails = name, happened, fails

    async def start(self) -> None:
        self.happened.append(f"{self.name} started")
        if self.fails:
            raise OSError("no way there")

    async def aclose(self) -> None:
        self.happened.append(f"{self.name} closed")


class Snapshot:
    """Owns what a gateway's Snapshot owns."""

    def __init__(self, owned: Owned) -> None:
        self.owned = owned


@pytest.fixture
async def owner() -> AsyncIterator[PluginOwner]:
    made = PluginOwner()
    yield made
    await made.aclose()


async def snapshot(owner: PluginOwner, *plugins: Plugin) -> Snapshot:
    return Snapshot(await owner.own([(f"plugins.{plugin.name}", plugin) for plugin in plugins]))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_plug_in_is_closed_when_the_last_request_of_its_snapshot_ends(owner: PluginOwner) -> None:
    happened: list[str] = []
    in_force = await snapshot(owner, Plugin("a", happened))
    request = in_force  # pins it
    in_force = await snapshot(owner, Plugin("b", happened))
    await turns()
    assert happened == ["a started", "b started"]
    del request
    await reached(lambda: happened[2:] == ["a closed"])
    assert len(owner) == 1 and in_force.owned


async def test_what_is_unchanged_stays_open(owner: PluginOwner) -> None:
    happened: list[str] = []
    kept, left = Plugin("kept", happened), Plugin("left", happened)
    in_force = await snapshot(owner, kept, left)
    in_force = await snapshot(owner, kept)
    await reached(lambda: "left closed" in happened)
    assert happened == ["kept started", "left started", "left closed"]
    del in_force
    await reached(lambda: "kept closed" in happened)


async def test_a_start_that_fails_closes_what_was_started_and_nothing_else(owner: PluginOwner) -> None:
    happened: list[str] = []
    shared = Plugin("shared", happened)
    in_force = await snapshot(owner, shared)
    with pytest.raises(ConfigError, match="no way there") as caught:
        await snapshot(owner, shared, Plugin("new", happened), Plugin("bad", happened, fails=True))
    assert caught.value.path == "plugins.bad"
    assert happened[0] == "shared started" and "new closed" in happened and "shared closed" not in happened
    assert len(owner) == 1 and in_force.owned


async def test_a_release_counts_once(owner: PluginOwner) -> None:
    happened: list[str] = []
    plugin = Plugin("a", happened)
    first, second = await snapshot(owner, plugin), await snapshot(owner, plugin)
    first.owned.release()
    first.owned.release()
    del first
    await turns()
    assert happened == ["a started"] and second.owned


async def test_the_last_reference_may_be_dropped_in_a_thread(owner: PluginOwner) -> None:
    happened: list[str] = []
    held = [await snapshot(owner, Plugin("a", happened))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    await reached(lambda: happened == ["a started", "a closed"])


async def test_the_end_closes_what_something_still_refers_to(owner: PluginOwner) -> None:
    happened: list[str] = []
    in_force = await snapshot(owner, Plugin("a", happened))
    await owner.aclose()
    assert happened == ["a started", "a closed"] and len(owner) == 0
    in_force.owned.release()
    await turns()
    assert happened == ["a started", "a closed"]
