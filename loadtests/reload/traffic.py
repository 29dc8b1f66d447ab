"""An open loop of plain requests and streams at a fixed rate: every one is followed to its end, and what it became is kept."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from loadtests.relay.load import http_request

GRACE = 15.0
"""Seconds to wait for answers after the last request."""


@dataclass
class Seen:
    """One request: `plain`, or a stream. due: when it was to be sent (monotonic). late: seconds by which it was sent later than that, by
    the fault of whoever sends. took: seconds from when it was due to the whole answer, or to a stream's first chunk."""

    due: float
    kind: str
    late: float = 0.0
    took: float = 0.0
    status: int = 0
    whole: bool = False
    longest_gap: float = 0.0


class Answer(asyncio.Protocol):
    """A keep-alive connection: one request at a time."""

    def __init__(self, free: Callable[[Answer], None]) -> None:
        self._free = free
        self._buffer = b""
        self._seen: Seen | None = None
        self._last = 0.0
        self.transport: asyncio.Transport | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not say so

    def send(self, seen: Seen, request: bytes) -> None:
        assert self.transport is not None
        self._seen, self._buffer, self._last = seen, b"", time.monotonic()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        seen, now = self._seen, time.monotonic()
        if seen is None:
            return
        self._buffer += data
        if not seen.status and b"\r\n\r\n" in self._buffer:
            seen.status = int(self._buffer[9:12])
        if seen.kind != "plain":
            if b"data: " in data:
                if not seen.took:
                    seen.took = now - seen.due
                else:
                    seen.longest_gap = max(seen.longest_gap, now - self._last)
                self._last = now
            if self._buffer.endswith(b"0\r\n\r\n") and b"data: [DONE]" in self._buffer:
                seen.whole = self._buffer.count(b"data: {") >= 1 and b'"error"' not in self._buffer
                self._done()
            elif seen.status not in (0, 200):
                self._plain(seen, now)
            return
        self._plain(seen, now)

    def _plain(self, seen: Seen, now: float) -> None:
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if len(body) >= length:
            seen.took = now - seen.due
            seen.whole = seen.status == 200
            self._done()

    def _done(self) -> None:
        self._seen = None
        self._free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._seen = None


class Traffic:
    """Sends `rate` requests a second until `stop`. requests: (kind, bytes) in turns."""

    def __init__(self, port: int, rate: int, requests: Sequence[tuple[str, bytes]]) -> None:
        self._port, self._rate, self._requests = port, rate, itertools.cycle(requests)
        self._idle: list[Answer] = []
        self._all: list[Answer] = []
        self.seen: list[Seen] = []
        self._running = True

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while self._running:
                due = begin + number / self._rate
                number += 1
                if (early := due - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                kind, request = next(self._requests)
                seen = Seen(due, kind, max(0.0, time.monotonic() - due))
                self.seen.append(seen)
                while self._idle and self._idle[-1].closed:
                    self._idle.pop()
                if self._idle:
                    self._idle.pop().send(seen, request)
                else:
                    group.create_task(self._connect(loop, seen, request))
        end = time.monotonic() + GRACE
        while any(not one.whole and one.status in (0, 200) for one in self.seen[-10_000:]) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for answer in self._all:
            if answer.transport is not None:
                answer.transport.abort()
        await asyncio.sleep(0)

    async def _connect(self, loop: asyncio.AbstractEventLoop, seen: Seen, request: bytes) -> None:
        try:
            _, answer = await loop.create_connection(lambda: Answer(self._idle.append), "127.0.0.1", self._port)
        except OSError:
            return  # it stays without a status: a failed request
        self._all.append(answer)
        answer.send(seen, request)

    def stop(self) -> None:
        self._running = False


def request_of(key: str, model: str, stream: bool) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "Say something short, please."}], "stream": stream, "max_tokens": 25}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return http_request(headers, json.dumps(body).encode())
