"""A moderation server on loopback, as OpenAI's: flags texts that hold a word. It can be told to answer otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class ModerationServer:
    """`asked`: the bodies of all questions. `bodies`: as they came. `heads`: their heads. `answer`: a whole response that
    is given instead; `hold`: it waits for this before it answers."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.answer: bytes | None = None
        self.hold: asyncio.Event | None = None
        self.came = asyncio.Event()
        self.busy = self.most = 0
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                body = await reader.readexactly(length)
                self.heads.append(head)
                self.bodies.append(body)
                self.asked.append(json.loads(body))
                self.busy += 1
                self.most = max(self.most, self.busy)
                self.came.set()
                if self.hold is not None:
                    await self.hold.wait()
                self.busy -= 1
                writer.write(self.answer if self.answer is not None else self._moderation(self.asked[-1]))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def _moderation(self, question: dict[str, Any]) -> bytes:
        results = [{"flagged": self.word in text, "categories": {}, "category_scores": {}} for text in question["input"]]
        return response(200, {"id": "modr-1", "model": "m", "results": results})


def response(status: int, document: object) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def moderation(word: str) -> AsyncIterator[ModerationServer]:
    """A server that listens until the end of the block."""
    fake = ModerationServer(word)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/moderations"
    try:
        yield fake
    finally:
        if fake.hold is not None:
            fake.hold.set()
        server.close()
