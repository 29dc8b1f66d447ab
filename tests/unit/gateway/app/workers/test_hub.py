"""Changes are numbered for all workers, and who has them in force is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.app.workers.channel import Channel, FeedClosed
from gateway.app.workers.codec import FeedError
from gateway.app.workers.messages import Happened, KeyChanged, KeysMissed, Pulse
from tests.unit.gateway.app.workers.fakes import Farm
from tests.waiting import reached


@pytest.fixture
async def farm() -> AsyncIterator[Farm]:
    made = Farm()
    made.pool.start()
    await made.pool.ready()
    yield made
    await made.aclose()


async def test_a_change_is_in_force_once_every_worker_says_so(farm: Farm) -> None:
    slow = farm.fake("gw-1")
    slow.prompt = False
    number = farm.hub.change(KeyChanged("key-1", "revoked"))
    assert number == 1
    await reached(lambda: farm.hub.lagging(number) == ["gw-1"])
    assert not await farm.hub.in_force(number, 0.01)
    waiting = farm.tasks.spawn(farm.hub.in_force(number, 30.0), name="wait")
    await asyncio.sleep(0)
    farm.release.set()
    assert await waiting
    assert farm.fake("gw-2").heard == [KeyChanged("key-1", "revoked")]


async def test_nobody_waits_for_a_worker_that_has_died(farm: Farm) -> None:
    farm.fake("gw-1").prompt = False
    number = farm.hub.change(KeyChanged("key-1", "revoked"))
    waiting = farm.tasks.spawn(farm.hub.in_force(number, 30.0), name="wait")
    await reached(lambda: farm.hub.lagging(number) == ["gw-1"])
    farm.fake("gw-1").end(-9)
    assert await waiting


async def test_a_worker_that_joins_has_everything_up_to_its_state(farm: Farm) -> None:
    for _ in range(3):
        farm.hub.change(KeysMissed())
    farm.fake("gw-1").end(-9)
    await reached(lambda: len(farm.made) == 3 and farm.ids() == ["gw-1", "gw-2"])
    state = farm.fake("gw-1").state
    assert state is not None and state.number == 3
    number = farm.hub.change(KeysMissed())
    assert await farm.hub.in_force(number, 30.0)
    assert farm.hub.workers["gw-1"].acknowledged == 4


async def test_what_cannot_be_sent_takes_no_number(farm: Farm) -> None:
    with pytest.raises(FeedError):
        farm.hub.change(Happened({"a set": {1, 2}, "a large number": 1 << 70}))
    assert farm.hub.change(KeysMissed()) == 1
    assert await farm.hub.in_force(1, 30.0)


async def test_there_is_no_answer_from_a_worker_that_is_not_there(farm: Farm) -> None:
    with pytest.raises(FeedClosed):
        await farm.hub.ask("gw-9", Pulse(), 1.0)
    farm.hub.tell("gw-9", KeysMissed())


async def test_those_who_want_to_know_hear_of_new_workers_and_of_their_end(farm: Farm) -> None:
    joined: list[str] = []
    farm.hub.on_joined.append(joined.append)
    farm.fake("gw-2").end(-9)
    await reached(lambda: joined == ["gw-2"])
    assert farm.gone == ["gw-2"]


async def test_nobody_hears_that_a_worker_joins_whose_feed_ends_while_it_is_told_its_settings(farm: Farm) -> None:
    heard: list[str] = []

    async def introduce(channel: Channel) -> None:
        farm.hub.introduce = before
        farm.made[-1].channel.end("it has died")
        await reached(lambda: channel.ended is not None)

    before, farm.hub.introduce = farm.hub.introduce, introduce
    farm.hub.on_joined.append(lambda id: heard.append(f"joined {id}"))
    farm.hub.on_leaving.append(lambda id: heard.append(f"leaving {id}"))
    farm.fake("gw-1").end(-9)
    await reached(lambda: "joined gw-3" in heard)
    assert "joined gw-1" not in heard


async def test_nobody_hears_of_a_worker_that_ends_before_it_is_connected(farm: Farm) -> None:
    heard: list[str] = []
    farm.hub.on_joined.append(lambda id: heard.append(f"joined {id}"))
    farm.hub.on_gone.append(lambda id: heard.append(f"gone {id}"))
    farm.stillborn = 2
    farm.fake("gw-1").end(-9)
    await reached(lambda: len(farm.made) == 5 and farm.ids() == ["gw-1", "gw-2"])
    assert heard == ["gone gw-1", "gone gw-1", "gone gw-1", "joined gw-1"]
    assert sorted(farm.hub.workers) == ["gw-1", "gw-2"]
