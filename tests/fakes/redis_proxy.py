"""A way to a real Redis on which answers are late, changed or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.core.tasks import TaskOwner
from gateway.transport.redis.resp import Parser, command

Twist = Callable[[list[bytes], bytes], bytes | None]
"""(the command, the answer of Redis) to what is said instead; None: nothing, from now on."""


def same(words: list[bytes], answer: bytes) -> bytes:
    return answer


class RedisProxy:
    """Commands go to Redis one after the other. asked: those that came. open: answers go back only while it is set. twist: see Twist."""

    def __init__(self, socket: str, path: Path) -> None:
        self._socket, self.path = socket, str(path)
        self._tasks = TaskOwner("proxy")
        self.asked: list[list[bytes]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.twist: Twist = same

    async def start(self) -> RedisProxy:
        self._server = await asyncio.start_unix_server(self._accepted, self.path)
        return self

    async def aclose(self) -> None:
        self._server.close()
        await self._tasks.aclose()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._serve(reader, writer), name="connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = Parser()
        back, there = await asyncio.open_unix_connection(self._socket)
        with suppress(OSError):
            try:
                while data := await reader.read(65536):
                    for words in parser.feed(data):
                        if not await self._carry(words, back, there, writer):
                            return
            finally:
                there.close()
                writer.close()

    async def _carry(
        self, words: list[bytes], back: asyncio.StreamReader, there: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> bool:
        self.asked.append(words)
        there.write(command(*words))
        parser, answer = Parser(), b""
        while True:
            part = await back.read(65536)
            answer += part
            if parser.feed(part) or not part:
                break
        await self.open.wait()
        found = self.twist(words, answer)
        if found is None:
            await asyncio.Event().wait()
            return False
        writer.write(found)
        return True
