"""What the upstream transport costs: CPU microseconds per request and per chunk of a stream, beside a bare protocol.

An engine in a process of its own (on the last core) answers as fast as it can; this process (on the first) does nothing but
relay: a receiver that sends the next request when one ends, or counts the chunks of a stream. `bare` is the floor: an asyncio
protocol that writes the same bytes and looks at nothing but the length of what comes back. The difference is the transport's
own work (pool, parser, limits, receiver calls); the floor is the event loop and the kernel. `tight loop` is the same work with no
socket and warm caches: the figure to compare when the code changes.

usage: python loadtests/transport/bench.py [--requests 40000] [--connections 32] [--streams 64] [--seconds 4] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
import uvloop

from gateway.core.types import ResponseHead
from gateway.transport.http1 import Connection
from gateway.transport.pool import EndpointClient

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\naccept: */*\r\nx-request-id: 0123456789abcdef\r\n"
    b"x-gatehouse-priority: standard\r\nx-gatehouse-deadline-ms: 600000\r\n"
)
BODY = json.dumps(
    {"model": "m1", "messages": [{"role": "user", "content": "Tell me about the weather in the capital of France."}]}
).encode()
ANSWER = json.dumps(
    {"id": "chatcmpl-123", "object": "chat.completion", "model": "m1", "usage": {}, "choices": [{"text": "x" * 180}]}
).encode()
JSON = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.24.0\r\nDate: Fri, 20 Nov 2026 17:00:00 GMT\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: keep-alive\r\n\r\n%b" % (len(ANSWER), ANSWER)
)
EVENT = (
    b'data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"m1",'
    b'"choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null}]}\n\n'
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
INTERVAL = 0.01


# --- the engine


class Engine(asyncio.Protocol):
    """Answers every request at once; a request whose path is /stream gets a chunk each INTERVAL until it leaves."""

    streams: set[Engine]

    def __init__(self, streams: set[Engine]) -> None:
        self.streams = streams
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.discard(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_message_complete(self) -> None:
        if self.url == b"/stream":
            self.transport.write(STREAM)
            self.streams.add(self)
        else:
            self.transport.write(JSON)


async def engine() -> None:
    loop = asyncio.get_running_loop()
    streams: set[Engine] = set()
    server = await loop.create_server(lambda: Engine(streams), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    due = loop.time()
    while True:
        due += INTERVAL
        await asyncio.sleep(max(0.0, due - loop.time()))
        for each in list(streams):
            each.transport.write(CHUNK)


# --- requests


class Lap:
    """Counts requests down for all connections together; each begins with one."""

    def __init__(self, requests: int, connections: int) -> None:
        self.left = requests
        self.unsent = requests - connections
        self.bytes = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.over.set_result(None)
        self.unsent -= 1
        return self.unsent >= 0


class Requester:
    """A receiver that sends its next request when the answer ends."""

    def __init__(self, client: EndpointClient, lap: Lap) -> None:
        self.client, self.lap = client, lap

    def send(self) -> None:
        self.client.send(HEAD, BODY, self, 60.0, 60.0)

    def on_head(self, head: ResponseHead) -> None:
        assert head.status == 200

    def on_body(self, data: bytes) -> None:
        self.lap.bytes += len(data)

    def on_end(self) -> None:
        if self.lap.next():
            self.send()

    def on_failed(self, error: Exception) -> None:
        raise SystemExit(f"failed: {error!r}")


class BareRequester(asyncio.Protocol):
    def __init__(self, lap: Lap) -> None:
        self.lap = lap
        self.request = HEAD + b"host: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.lap.bytes += len(data) - len(JSON) + len(ANSWER)
        if self.lap.next():
            self.transport.write(self.request)


async def requests(port: int, count: int, connections: int, bare: bool) -> float:
    """CPU microseconds per request."""
    loop = asyncio.get_running_loop()
    client = EndpointClient(f"http://127.0.0.1:{port}")
    transports: list[tuple[Any, Any]] = []
    for total in (connections, count):  # the first lap opens the connections
        lap = Lap(total, connections)
        if bare:
            if not transports:
                transports = [await loop.create_connection(partial(BareRequester, lap), "127.0.0.1", port) for _ in range(connections)]
            for _, protocol in transports:
                protocol.lap = lap
            begun = time.process_time()
            for transport, protocol in transports:
                transport.write(protocol.request)
        else:
            begun = time.process_time()
            for _ in range(connections):
                Requester(client, lap).send()
        await lap.over
        spent = time.process_time() - begun
    if not bare:
        assert client.opened == connections and client.failed == 0
    assert lap.bytes == count * len(ANSWER)
    for transport, _ in transports:
        transport.abort()
    await client.aclose()
    return spent / count * 1e6


# --- streams


class Counter:
    """A receiver that counts the reads of its stream."""

    def __init__(self) -> None:
        self.reads = self.bytes = 0

    def on_head(self, head: ResponseHead) -> None:
        assert head.status == 200

    def on_body(self, data: bytes) -> None:
        self.reads += 1
        self.bytes += len(data)

    def on_end(self) -> None: ...

    def on_failed(self, error: Exception) -> None:
        raise SystemExit(f"failed: {error!r}")


class BareCounter(asyncio.Protocol):
    def __init__(self) -> None:
        self.reads = self.bytes = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"POST /stream HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.bytes += len(data) - len(CHUNK) + len(EVENT)


async def streams(port: int, count: int, seconds: float, bare: bool) -> float:
    """CPU microseconds per chunk, with `count` streams that get a chunk each INTERVAL."""
    loop = asyncio.get_running_loop()
    client = EndpointClient(f"http://127.0.0.1:{port}")
    counters: list[Any] = []
    calls: list[Any] = []
    for _ in range(count):
        if bare:
            counters.append((await loop.create_connection(BareCounter, "127.0.0.1", port))[1])
        else:
            counters.append(Counter())
            calls.append(client.send(b"POST /stream HTTP/1.1\r\n", b"", counters[-1], 60.0, 60.0))
    while not all(counter.reads for counter in counters):
        await asyncio.sleep(0.01)
    before, begun = sum(c.bytes for c in counters), time.process_time()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(0.1)
        client.tick(loop.time())
    spent, chunks = time.process_time() - begun, float(sum(c.bytes for c in counters) - before) / len(EVENT)
    for call in calls:
        call.cancel()
    for counter in counters if bare else ():
        counter.transport.abort()
    await client.aclose()
    return spent / chunks * 1e6


# --- without a socket


class NoSocket:
    """A transport that swallows what is written."""

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None: ...

    def abort(self) -> None: ...


class Silent(Counter):
    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None: ...


def tight(laps: int = 400, per_lap: int = 200) -> dict[str, float]:
    """Microseconds of the quickest lap: sending, a whole request, a chunk, and a sweep over 1,000 calls in flight."""
    client, receiver = EndpointClient("http://127.0.0.1:1"), Silent()

    def connect() -> Connection:
        connection = Connection(client, 0)
        connection.connection_made(cast(asyncio.Transport, NoSocket()))
        client._connections.add(connection)
        return connection

    def quickest(action: Callable[[], object], count: int) -> float:
        times = []
        for _ in range(laps):
            begun = time.perf_counter()
            for _ in range(count):
                action()
            times.append((time.perf_counter() - begun) / count)
        return min(times) * 1e6

    connection = connect()
    client.release(connection)

    def send() -> None:
        client.send(HEAD, BODY, receiver, 60.0, 60.0)
        connection.call = None
        client.release(connection)

    def request() -> None:
        client.send(HEAD, BODY, receiver, 60.0, 60.0)
        connection.data_received(JSON)

    found = {"send": quickest(send, per_lap), "request": quickest(request, per_lap)}
    client.send(HEAD, BODY, receiver, 60.0, 60.0)
    connection.data_received(STREAM)
    found["chunk"] = quickest(lambda: connection.data_received(CHUNK), per_lap)
    for _ in range(999):
        client.release(connect())
        client.send(HEAD, BODY, receiver, 60.0, 60.0)
    found["sweep of 1,000 calls"] = quickest(lambda: client.tick(time.monotonic()), 10)
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if arguments.engine else cores[0]})
    if arguments.engine:
        uvloop.run(engine())
    process = subprocess.Popen([sys.executable, __file__, "--engine"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found: dict[str, list[float]] = {"request, bare": [], "request": [], "chunk, bare": [], "chunk": []}
        for _ in range(arguments.rounds):
            for bare in (True, False):
                name = ", bare" if bare else ""
                found["request" + name].append(uvloop.run(requests(port, arguments.requests, arguments.connections, bare)))
                found["chunk" + name].append(uvloop.run(streams(port, arguments.streams, arguments.seconds, bare)))
    finally:
        process.kill()
        process.wait()
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    loops = tight()
    if arguments.json:
        print(json.dumps({**medians, **{f"tight loop, {name}": value for name, value in loops.items()}}))
        return
    for what in ("request", "chunk"):
        whole, floor = medians[what], medians[what + ", bare"]
        print(f"{what:8} {whole:6.2f} us CPU   bare protocol {floor:6.2f}   the transport's own work {whole - floor:6.2f}")
    print("tight loop " + "   ".join(f"{name} {value:.2f} us" for name, value in loops.items()))


if __name__ == "__main__":
    main()
