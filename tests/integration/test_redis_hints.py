"""Hints over a real Redis: they arrive, its loss is noticed, and it costs nobody more than a hint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.errors import StoreUnavailable
from gateway.core.secret import Secret
from gateway.core.specs.redis import RedisSpec
from gateway.store.hints import Hint
from gateway.store.redis_hints import RedisHints
from tests.cluster.servers import RedisServer
from tests.waiting import reached


class World:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.opened: list[RedisHints] = []
        self.heard: dict[str, list[Hint]] = {}

    def listener(self, name: str, *, url: str = "", ping: float = 3600.0, timeout: float = 30.0) -> RedisHints:
        heard = self.heard[name] = []
        spec = RedisSpec(url=Secret(url or f"unix://{self.server.socket}"), timeout=timeout)
        made = RedisHints(spec, name, heard.append, lambda: None, SystemEntropy(), ping=ping)
        made.start()
        self.opened.append(made)
        return made


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[World]:
    server = RedisServer(short_path)
    await asyncio.to_thread(server.start)
    made = World(server)
    yield made
    for listener in made.opened:
        await listener.aclose()
    await asyncio.to_thread(server.stop)


async def test_a_hint_arrives_at_all(world: World) -> None:
    one, two = world.listener("one"), world.listener("two")
    await reached(lambda: one.sure and two.sure)
    hint = Hint(origin="one", seq=7, endpoints=("ab",))
    await one.send(hint)
    await reached(lambda: world.heard == {"one": [hint], "two": [hint]})


async def test_a_restart_is_noticed_and_mended(world: World) -> None:
    one = world.listener("one")
    await reached(lambda: one.sure)
    await asyncio.to_thread(world.server.stop)
    await reached(lambda: not one.sure)
    with pytest.raises(StoreUnavailable):
        await one.send(Hint(seq=1))
    await asyncio.to_thread(world.server.start)
    await reached(lambda: one.sure)
    await one.send(Hint(seq=1))
    await reached(lambda: world.heard["one"] == [Hint(seq=1)])


async def test_a_frozen_redis_costs_a_hint_its_timeout_and_is_found_out(world: World) -> None:
    one = world.listener("one", ping=0.05, timeout=0.5)
    await reached(lambda: one.sure)
    world.server.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not take a hint"):
            await one.send(Hint(seq=1))
        assert time.monotonic() - began < 30
        await reached(lambda: not one.sure)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await one.send(Hint(seq=1))
    finally:
        world.server.thaw()
    await reached(lambda: one.sure)


async def test_a_password_is_sent_and_a_wrong_one_is_no_access(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert world.server.command("ACL", "SETUSER", "gw", "on", ">s3cret", "+@all", "&*") == b"+OK"
    assert world.server.command("ACL", "SETUSER", "default", "off") == b"+OK"
    right = world.listener("right", url=f"unix://gw:s3cret@{world.server.socket}")
    wrong = world.listener("wrong", url=f"unix://gw:hunter2@{world.server.socket}")
    await reached(lambda: right.sure)
    await reached(lambda: "WRONGPASS" in caplog.text)
    assert not wrong.sure and "hunter2" not in caplog.text


async def test_what_is_no_redis_is_said(world: World, caplog: pytest.LogCaptureFixture, short_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(answer, short_path / "smtp")
    listener = world.listener("one", url=f"unix://{short_path}/smtp")
    await reached(lambda: "do not arrive over redis" in caplog.text)
    assert not listener.sure
    await listener.aclose()
    server.close()
