"""An engine that costs little: static answers in the OpenAI format, JSON and event streams, and nothing remembered but counts.

    python -m tests.cluster.engine [--port 0] [--chunks 10] [--interval 0.02]

Prints `ready URL`. The model decides how a request is answered: `static` at once; `stream` at once or, with `"stream": true`, in `chunks`
events, one each `interval` seconds; `stream-N` in N of them; `slow-S` as JSON after S seconds. `GET /counts` says how many requests and
streams there were. One timer serves all streams. tests/fakes/engine.py is the one for faults.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
from collections import deque
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
MODEL = re.compile(rb'"model"\s*:\s*"(?:stream-(\d+)|slow-([\d.]+))?')
STREAM = re.compile(rb'"stream"\s*:\s*true')
USAGE = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}


def whole(document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(delta: dict[str, str] | None, finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    made: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "static", "choices": choices}
    return chunk(b"data: " + json.dumps({**made, **({"usage": usage} if usage else {})}, separators=(",", ":")).encode() + b"\n\n")


MESSAGE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello!"}}
ANSWER = whole({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "static", "choices": [MESSAGE], "usage": USAGE})
HEALTH = whole({"state": "ready", "slots": 4096, "in_use": 0, "queue": 0})
TOKEN = event({"content": " word"})
END = event({}, "stop") + event(None, None, USAGE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine:
    """Counts, and all streams in progress: what each connection still gets."""

    def __init__(self, chunks: int, interval: float) -> None:
        self.chunks, self.interval = chunks, interval
        self.requests = self.streamed = self.left_early = 0
        self.streams: dict[Connection, int] = {}

    def tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        for connection, left in list(self.streams.items()):
            if left > 0:
                connection.transport.write(TOKEN)
                self.streams[connection] = left - 1
            else:
                del self.streams[connection]
                connection.transport.write(END)
                connection.next()
        due = max(due + self.interval, loop.time())
        loop.call_at(due, self.tick, loop, due)

    def counts(self) -> bytes:
        return whole({"requests": self.requests, "streams": self.streamed, "left_early": self.left_early, "open": len(self.streams)})


class Connection(asyncio.Protocol):
    """HTTP/1.1 with bodies of a stated length, which is what a gateway sends: one request after the other, pipelined ones in turn."""

    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = b""
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._engine.streams.pop(self, None) is not None:
            self._engine.left_early += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 : head.find(b"\r\n", at + 2)]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._waiting.append((self._buffer[: end + 2], self._buffer[end + 4 : end + 4 + length]))
            self._buffer = self._buffer[end + 4 + length :]
            if not self._busy:
                self.next()

    def next(self) -> None:
        """The turn of the next request, if there is one."""
        self._busy = False
        while self._waiting and not self._busy:
            head, body = self._waiting.popleft()
            self._serve(head, body)

    def _serve(self, head: bytes, body: bytes) -> None:
        engine = self._engine
        if not head.startswith(b"POST"):
            self.transport.write(engine.counts() if head.startswith(b"GET /counts") else HEALTH)
            return
        engine.requests += 1
        model = MODEL.search(body)
        if STREAM.search(body):
            self._busy = True
            engine.streamed += 1
            engine.streams[self] = (int(model[1]) if model and model[1] else engine.chunks) - 1
            self.transport.write(HEAD + TOKEN)
        elif model and model[2]:
            self._busy = True
            asyncio.get_running_loop().call_later(float(model[2]), self._late)
        else:
            self.transport.write(ANSWER)

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(ANSWER)
            self.next()


async def serve(port: int, chunks: int, interval: float) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(chunks, interval)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    engine.tick(loop, loop.time())
    print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--chunks", type=int, default=10)
    arguments.add_argument("--interval", type=float, default=0.02)
    given = arguments.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(given.port, given.chunks, given.interval))


if __name__ == "__main__":
    main()
