"""Replies belong to commands in order; what is given up stays so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.core.secret import Secret
from gateway.core.specs.redis import RedisSpec
from gateway.transport.redis.address import Target, target
from gateway.transport.redis.connection import Connection, Unreachable, connect
from gateway.transport.redis.resp import RedisError, command
from tests.waiting import reached


class Server:
    """Says what the test wants, when it wants it."""

    def __init__(self) -> None:
        self.heard = b""
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while data := await reader.read(65536):
            self.heard += data
        writer.close()

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@pytest.fixture
async def server(short_path: Path) -> AsyncIterator[tuple[Server, Target]]:
    made = Server()
    listening = await asyncio.start_unix_server(made.serve, short_path / "redis")
    yield made, target(RedisSpec(url=Secret(f"unix://{short_path}/redis")))
    listening.close()
    if made.writer is not None:
        made.writer.close()


async def opened(to: Target, on_lost: Callable[[Exception], None] = lambda _: None, on_push: Any = None) -> Connection:
    async with asyncio.timeout(60):
        return await connect(to, to.servers[0], to.login, on_lost, on_push)


async def test_replies_come_in_order_also_after_one_was_given_up(server: tuple[Server, Target]) -> None:
    there, to = server
    line = await opened(to)
    first, second, third = line.ask("GET", "a"), line.ask("GET", "b"), line.ask("GET", "c")
    await reached(lambda: there.heard.count(b"GET") == 3)
    first.cancel()
    there.say(b"$1\r\na\r\n$1\r\nb")
    there.say(b"\r\n-ERR c\r\n")
    assert await second == b"b"
    error = await third
    assert isinstance(error, RedisError) and line.behind == 0
    line.close()


async def test_what_was_not_asked_for_ends_the_connection(server: tuple[Server, Target]) -> None:
    there, to = server
    lost: list[Exception] = []
    line = await opened(to, lost.append)
    await reached(lambda: there.writer is not None)
    there.say(b"+hello\r\n")
    await reached(lambda: bool(lost))
    with pytest.raises(Unreachable, match="not asked"):
        raise lost[0]
    with pytest.raises(Unreachable):
        await line.ask("PING")


async def test_messages_of_channels_are_no_replies(server: tuple[Server, Target]) -> None:
    there, to = server
    pushed: list[Any] = []
    line = await opened(to, on_push=pushed.append)
    answer = line.ask("SUBSCRIBE", "c")
    await reached(lambda: b"SUBSCRIBE" in there.heard)
    there.say(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\ny\r\n+done\r\n")
    assert await answer == b"done"
    assert [one[2] for one in pushed] == [b"x", b"y"]
    line.close()


async def test_everybody_who_waits_is_told_of_the_end_once_and_in_order(server: tuple[Server, Target]) -> None:
    there, to = server
    told: list[Any] = []
    line = await opened(to, lambda error: told.append("lost"))
    for number in range(3):
        line.send(command("GET", str(number)), lambda reply, number=number: told.append((number, type(reply))))  # type: ignore[misc]
    await reached(lambda: there.heard.count(b"GET") == 3)
    assert there.writer is not None
    there.writer.close()
    await reached(lambda: len(told) == 4)
    line.close()
    assert told == [(0, Unreachable), (1, Unreachable), (2, Unreachable), "lost"]
    line.send(command("GET", "late"), told.append)
    assert isinstance(told[-1], Unreachable)


async def test_a_server_that_does_not_read_is_noticed(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{short_path}/deaf")
        deaf.listen()
        line = await opened(target(RedisSpec(url=Secret(f"unix://{short_path}/deaf"))))
        for _ in range(100):
            line.send(command("SET", "k", b"x" * 100_000), lambda _: None)
        assert line.clogged and line.behind == 100
        line.close()
        assert line.behind == 0
