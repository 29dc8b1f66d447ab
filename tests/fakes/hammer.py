"""Many connections that ask as fast as they are answered, to see what a limit lets through."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

REFUSED_PAUSE = 0.002
"""Seconds between a refusal and the next try on a connection, so that the client does not take the machine from the gateway."""


@dataclass
class Hammered:
    """What came of it. Times are monotonic seconds. end: after it nothing was asked; `ended`: the last answer. tokens: that the answers say
    were used. lost: requests whose connection broke before an answer."""

    began: float
    end: float
    ended: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    admitted: list[tuple[float, float]] = field(default_factory=list)
    tokens: int = 0
    lost: int = 0

    def most(self, rate: float, burst: float) -> float:
        """What a limit allows from the first request to the last answer."""
        return burst + rate * (self.ended - self.began)

    def least(self, rate: float, burst: float) -> float:
        """What it allows from the first answer that was admitted to the last request."""
        return burst + rate * (self.end - min(answered for _, answered in self.admitted))


def request_bytes(url: str, key: str, max_tokens: int = 8) -> bytes:
    body = json.dumps({"model": "m1", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hello!"}]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (urlsplit(url).netloc.encode(), key.encode(), len(body), body)
    )


async def hammer(
    url: str, request: bytes, connections: int, seconds: float, *, stop: asyncio.Event | None = None, pause: float = REFUSED_PAUSE
) -> Hammered:
    """So many connections for so long. A connection that breaks is opened again."""
    parts = urlsplit(url)
    began = time.monotonic()
    end = began + seconds
    found = Hammered(began, end)

    async def one() -> None:
        while time.monotonic() < end and not (stop and stop.is_set()):
            try:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            try:
                await _ask_on(reader, writer)
            except (OSError, EOFError, ValueError):
                found.lost += 1
            finally:
                writer.close()

    async def _ask_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while time.monotonic() < end:
            sent = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            status = int(head[9:12])
            found.statuses[status] += 1
            if status == 200:
                found.admitted.append((sent, time.monotonic()))
                found.tokens += json.loads(body)["usage"]["total_tokens"]
            else:
                await asyncio.sleep(pause)

    await asyncio.gather(*(one() for _ in range(connections)))
    found.ended = time.monotonic()
    return found
