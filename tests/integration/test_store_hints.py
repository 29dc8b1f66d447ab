"""Changes of other replicas come by NOTIFY at once; however notifications are lost, it is noticed, and polling is enough."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.identity import keys
from gateway.store.feed import CHANGE, RESYNC, ChangePoller
from gateway.store.hints import CHANNEL, Hint
from gateway.store.postgres_hints import PostgresEar, PostgresHints
from gateway.store.store import Store
from tests.cluster.proxy import Network, Proxy
from tests.integration.postgres import USER, PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import reached

PEPPER = "p" * 32
NEVER = 3600.0


class Replica:
    """A store with its poller and its hints, wired as in gateway.app.replicas.replicas."""

    def __init__(self, url: str, directory: Path, interval: float, ping: float, deadline: float) -> None:
        self.store = Store(url, directory, keys, given_pepper=PEPPER, deadline=deadline)
        feed = LocalFeed()
        self.heard: list[str] = []
        self.hints: list[Hint] = []
        feed.subscribe(self._note)
        self.poller = ChangePoller(self.store, feed, interval)
        made = self.store.hints(f"{id(self):x}", self._hint, self._sure)
        assert made is not None
        self.ear: PostgresHints = made
        self.ear._ping = ping
        self.poller.unhinted = self.ear.verify

    def _note(self, change: Change) -> None:
        self.heard.append(change[2].name if change[1] == CHANGE else RESYNC)

    def _hint(self, hint: Hint) -> None:
        self.hints.append(hint)
        self.poller.hinted(hint.seq)

    def _sure(self) -> None:
        self.poller.relaxed = self.ear.sure
        self.poller.look()

    async def start(self) -> Replica:
        await self.store.start()
        await self.poller.start()
        self.store.subscribe(self.poller.written)
        self.ear.start()
        return self

    async def aclose(self) -> None:
        await self.ear.aclose()
        await self.poller.aclose()
        await self.store.aclose()


class World:
    """proxy: a way to the server over which a replica may be `proxied`."""

    def __init__(self, server: PostgresServer, directory: Path, proxy: Proxy) -> None:
        self.server, self.directory, self.proxy = server, directory, proxy
        self.url = f"{server.store()}&connect_timeout=60"
        self.opened: list[Replica] = []

    async def replica(self, *, interval: float = NEVER, ping: float = NEVER, proxied: bool = False, deadline: float = 60.0) -> Replica:
        made = Replica(self._through() if proxied else self.url, self.directory, interval, ping, deadline)
        self.opened.append(made)
        return await made.start()

    def _through(self) -> str:
        name = self.url.rsplit("/", 1)[1].partition("?")[0]
        return f"postgresql://{USER}@127.0.0.1:{self.proxy.port}/{name}?connect_timeout=60"

    async def sure(self, *replicas: Replica) -> None:
        await reached(lambda: all(replica.ear.sure for replica in replicas), what="notifications that arrive")


@pytest.fixture
async def world(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[World]:  # noqa: F811
    network = Network()
    made = World(postgres, tmp_path, network.proxy(str(postgres.directory / ".s.PGSQL.5432")))
    yield made
    for replica in made.opened:
        await replica.aclose()
    made.proxy.close()
    network.close()


async def test_a_change_of_another_replica_comes_without_polling(world: World) -> None:
    """Neither polls for an hour."""
    one, two = await world.replica(), await world.replica()
    await world.sure(one, two)
    for n in range(5):
        await one.store.create("models", f"m{n}", {}, actor="x")
        await reached(lambda n=n: two.heard == [f"m{k}" for k in range(n + 1)], what="the change")
    assert one.heard == two.heard and two.poller.relaxed


async def test_a_hint_from_replica_to_replica(world: World) -> None:
    one, two = await world.replica(), await world.replica()
    await world.sure(one, two)
    await one.ear.send(Hint(origin="one", endpoints=("ab", "cd")))
    await reached(lambda: Hint(origin="one", endpoints=("ab", "cd")) in two.hints)


async def test_a_restart_of_the_server_is_noticed_and_nothing_is_missed(world: World) -> None:
    one, two = await world.replica(), await world.replica()
    await world.sure(one, two)
    world.server.stop()
    await reached(lambda: not two.ear.sure, what="the loss")
    world.server.start()
    await one.store.create("models", "m", {}, actor="x")  # before the other one listens again, perhaps
    await reached(lambda: two.heard == ["m"], what="the change that was missed")
    await world.sure(one, two)


async def test_a_connection_that_ends_is_replaced(world: World) -> None:
    one, two = await world.replica(), await world.replica(proxied=True)
    await world.sure(one, two)
    for n in range(3):
        world.proxy.reset()
        await one.store.create("models", f"m{n}", {}, actor="x")
        await reached(lambda n=n: two.heard == [f"m{k}" for k in range(n + 1)], what="the change")
        await world.sure(two)


async def test_a_half_dead_connection_is_found_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The network swallows what the server sends: no error comes, ever. The silence is noticed, and polling goes on at full pace."""
    one = await world.replica()
    two = await world.replica(interval=0.05, ping=0.05, proxied=True)
    await world.sure(two)
    assert two.poller.relaxed
    caplog.clear()  # a machine that stood still may have raised doubts before
    world.proxy.partition()
    await reached(lambda: not two.ear.sure, what="the doubt")
    assert not two.poller.relaxed and "what it sent itself did not come back" in caplog.text
    assert len([r for r in caplog.records if "do not arrive" in r.message]) == 1
    await one.store.create("models", "m", {}, actor="x")
    caplog.set_level(logging.INFO)
    world.proxy.heal()
    await reached(lambda: two.heard == ["m"], what="the change that was missed")
    await world.sure(two)
    assert "arrive over postgresql again" in caplog.text


async def test_a_frozen_server_is_found_out(world: World) -> None:
    one, two = await world.replica(interval=0.05, ping=0.05), await world.replica()
    await world.sure(one)
    one.store._database.deadline = 3.0
    await two.store.create("models", "m", {}, actor="x")
    await reached(lambda: one.heard == ["m"], what="a poll that began with this deadline")
    world.server.freeze()
    try:
        await reached(lambda: not one.ear.sure and not one.store.available, what="the doubt")
    finally:
        world.server.thaw()
    await world.sure(one)
    await reached(lambda: one.store.available, what="the store")


async def test_a_change_that_polling_found_first_raises_doubts(world: World) -> None:
    """The listening connection alone is dead: the first change that polling finds has it verified at once, not only at the next ping."""
    one, two = await world.replica(), await world.replica(interval=0.02)
    await world.sure(two)
    ear = two.ear._ear
    assert isinstance(ear, PostgresEar)
    ear._loop.remove_reader(ear._descriptor)  # deaf from now on
    await one.store.create("models", "m", {}, actor="x")
    await reached(lambda: two.heard == ["m"], what="the change, by polling")
    await reached(lambda: two.ear._ear is not ear, what="another connection")
    await world.sure(two)


async def test_a_flood_of_notifications_costs_few_polls(world: World) -> None:
    """Whoever may write to the database can send anything: it makes replicas look, at a bounded pace, and breaks nothing."""
    two = await world.replica(interval=0.2)
    await world.sure(two)
    polls = 0
    asked = two.store.changes_since

    async def counted(seq: int, limit: int = 1000):  # type: ignore[no-untyped-def]
        nonlocal polls
        polls += 1
        return await asked(seq, limit)

    two.poller._store.changes_since = counted  # type: ignore[method-assign]
    began = time.monotonic()
    garbage = ["", "x", "{", "[]", '{"c": "x"}', '{"c": -1}', "a" * 7000, '{"e": ["' + "f" * 500 + '"]}', '{"o": "me", "c": 99999999}']
    for payload in garbage:
        await two.store.notify(payload)
    flood = "SELECT count(pg_notify(%s, '{\"c\": ' || (1000 + n) || '}')) FROM generate_series(1, 20000) AS n"
    await asyncio.to_thread(world.server.execute, flood.replace("%s", f"'{CHANNEL}'"), world.url)
    await reached(lambda: len(two.hints) >= 20_000, what="the flood")
    seconds = time.monotonic() - began
    assert polls <= 20 + seconds * 10, (polls, seconds)
    await two.store.create("models", "m", {}, actor="x")
    await reached(lambda: two.heard == ["m"], what="a change after the flood")
    assert two.ear.sure


async def test_a_database_without_a_server_is_tried_at_a_growing_pause(world: World) -> None:
    two = await world.replica(proxied=True)
    await world.sure(two)
    world.proxy.drop()
    await reached(lambda: not two.ear.sure, what="the loss")
    world.proxy.heal()
    await world.sure(two)
    assert world.proxy.accepted < 60
