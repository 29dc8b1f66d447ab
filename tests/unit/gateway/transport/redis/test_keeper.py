"""What is said of a master while nobody listens is not missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.secret import Secret
from gateway.core.specs.redis import RedisSpec
from gateway.transport.redis import keeper as module
from gateway.transport.redis.address import target
from gateway.transport.redis.connection import Connection
from gateway.transport.redis.keeper import Keeper
from gateway.transport.redis.resp import Parser
from tests.waiting import SECONDS, reached


class Scripted:
    """A server that says what `answer` gives for a command. Its connections stay open."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser()
        self.writers.append(writer)
        while data := await reader.read(4096):
            for words in parser.feed(data):
                self.asked.append(words)
                writer.write(await self.answer(words))

    async def answer(self, words: list[bytes]) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None:
        for writer in self.writers:
            writer.close()
        if self._server is not None:
            self._server.close()


class Master(Scripted):
    async def answer(self, words: list[bytes]) -> bytes:
        return b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n" if words[0] == b"ROLE" else b"+OK\r\n"


class SlowSentinel(Scripted):
    """Its answer to SUBSCRIBE waits until the test has had its failover, of which it says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.master = 0
        self.subscribed = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def answer(self, words: list[bytes]) -> bytes:
        if words[0] == b"SUBSCRIBE":
            self.subscribed.set()
            await self.may_answer.wait()
            return b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
        port = b"%d" % self.master
        return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is late where this process stands still."""
    monkeypatch.setattr(module, "PATIENCE", SECONDS)


@pytest.fixture
async def servers() -> AsyncIterator[list[Scripted]]:
    made: list[Scripted] = [SlowSentinel(), Master(), Master()]
    yield made
    for one in made:
        await one.aclose()


async def test_a_failover_before_anybody_listened_is_seen(servers: list[Scripted]) -> None:
    sentinel, *masters = servers
    assert isinstance(sentinel, SlowSentinel)
    place = await sentinel.start()
    first, second = [await one.start() for one in masters]
    sentinel.master = first
    up: list[Connection] = []
    down: list[str] = []
    spec = RedisSpec(url=Secret(f"redis+sentinel://127.0.0.1:{place}/main"))
    keeper = Keeper(target(spec), up.append, lambda error: down.append(str(error)), SystemEntropy())
    keeper.start()
    try:
        await reached(lambda: bool(up))
        await sentinel.subscribed.wait()
        assert keeper.address is not None and keeper.address.port == first
        sentinel.master = second  # the first one froze: it closes nothing, and nobody heard of it
        sentinel.may_answer.set()
        await reached(lambda: len(up) == 2, what="the connection to the new master")
        assert keeper.address.port == second and down == ["another server is the master now"]
        asked = sum(words[0] == b"SENTINEL" for words in sentinel.asked)
        await reached(lambda: up[-1].open)
        assert asked >= 3, "to connect, after the subscription, and to connect again"
    finally:
        await keeper.aclose()


async def test_a_master_that_stays_keeps_its_connection(servers: list[Scripted]) -> None:
    sentinel, master, _ = servers
    assert isinstance(sentinel, SlowSentinel)
    place, sentinel.master = await sentinel.start(), await master.start()
    sentinel.may_answer.set()
    up: list[Any] = []
    keeper = Keeper(target(RedisSpec(url=Secret(f"redis+sentinel://127.0.0.1:{place}/main"))), up.append, up.append, SystemEntropy())
    keeper.start()
    try:
        await reached(lambda: sum(words[0] == b"SENTINEL" for words in sentinel.asked) >= 2, what="the question after the subscription")
        await reached(lambda: bool(up))
        assert len(up) == 1 and up[0].open
    finally:
        await keeper.aclose()
