"""A scripted engine for faults: speaks enough of the OpenAI API, misbehaves on demand, remembers what it received.

In a test: `async with FakeEngine(script="reset:at=mid; normal") as engine: ... engine.address`.
As a process that can be killed: `python -m tests.fakes.engine --port 0 --script "status:code=503*2; normal"`; prints `ready ADDRESS`.

How a request is answered is a Step. The first of these decides: the request header `x-fake`, a `model` of the form
`fake:STEP`, the script (one step a request, used up in order), the default step. A step is written `kind:key=value,...`, a
script as steps joined by `;`, `*N` repeats a step.

kinds: normal · status (code, retry_after) · hold (until `release`), hang, reset (RST), close (FIN), garbage (each `at` before, head,
mid or end) ·
half_event (ends inside an event) · short_length, long_length (a wrong content-length) · endless_header · dribble (a byte at a time) ·
surplus (bytes after the response) · huge_header · until_close (no length, ends with the connection) · interim (1xx first) ·
trailers. Any of them takes `delay` (seconds before the head), `chunks`, `interval` (seconds between chunks).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httptools

from tests.fakes.answers import ACTIONS, GARBAGE, Step, parse_script, parse_step, pieces

UNREAD_SECONDS = 10.0
"""For which a reset waits for its peer to read what came before."""


@dataclass
class Received:
    """One request as it arrived. Times are monotonic seconds; `cancelled`: the peer left before the answer was complete."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    time: float = field(default_factory=time.monotonic)
    step: Step = field(default_factory=Step)
    sent: int = 0
    done: float | None = None
    cancelled: float | None = None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


class FakeEngine:
    """The engine: a listener on TCP, TLS or a Unix socket, inside the running loop.

    slots, service: how many requests are served at once and how long each takes (seconds); `queue` more wait, others get 503.
    accept: False leaves connections in the kernel's queue of length `backlog` until `start_accepting` is called.
    """

    def __init__(
        self,
        script: str | list[Step] = "",
        *,
        default: Step | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        unix: str | None = None,
        tls: ssl.SSLContext | None = None,
        slots: int = 0,
        service: float = 0.0,
        queue: int = 0,
        accept: bool = True,
        accept_delay: float = 0.0,
        backlog: int = 512,
        whole: bool = False,
    ) -> None:
        self.script: deque[Step] = deque(parse_script(script) if isinstance(script, str) else script)
        self.default = default or Step()
        self.requests: list[Received] = []
        self.connections = 0
        self.open = 0
        self.busy = self.most_busy = self.queued = self.refused = 0
        self.model = "fake"
        self.state = "ready"
        self._host, self._port, self._unix, self._tls = host, port, unix, tls
        self._slots, self._service, self._queue = slots, service, queue
        self._accept, self._accept_delay, self._backlog = accept, accept_delay, backlog
        self.whole = whole
        """Every answer that is to arrive leaves in one write, so that a kill falls before it or after it."""
        self.holding = 0
        """Requests that wait at the step `hold`."""
        self._gate = asyncio.Event()
        self._free: asyncio.Semaphore | None = asyncio.Semaphore(slots) if slots else None
        self._socket: socket.socket | None = None
        self._acceptor: asyncio.Task[None] | None = None
        self._live: set[_Connection] = set()
        self._watchers: list[asyncio.Future[None]] = []

    # --- life

    async def start(self) -> FakeEngine:
        unix = self._unix is not None
        # The protocol is named, because asyncio switches Nagle's algorithm off only where it sees TCP.
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM, 0 if unix else socket.IPPROTO_TCP)
        self._socket = sock
        if self._unix is None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self._port))
            self._port = sock.getsockname()[1]
        else:
            sock.bind(self._unix)
        sock.listen(self._backlog)
        sock.setblocking(False)
        if self._accept:
            self.start_accepting()
        return self

    def start_accepting(self) -> None:
        self._acceptor = asyncio.get_running_loop().create_task(self._accept_all())

    async def stop(self) -> None:
        """Stops listening and closes every connection; the address is refused from then on."""
        if self._acceptor is not None:
            self._acceptor.cancel()
            await asyncio.gather(self._acceptor, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._unix is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._unix)
        self.close_connections()
        await self.until(lambda: not self._live)

    async def __aenter__(self) -> FakeEngine:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        if self._unix is not None:
            return f"unix:{self._unix}"
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    def release(self) -> None:
        """Lets those go on that are held now."""
        gate, self._gate = self._gate, asyncio.Event()
        gate.set()

    async def held(self) -> None:
        gate = self._gate
        self.holding += 1
        self.changed()
        try:
            await gate.wait()
        finally:
            self.holding -= 1

    def close_connections(self, *, reset: bool = False) -> None:
        """Closes every open connection, idle ones included; `reset` sends RST instead of FIN."""
        for connection in list(self._live):
            connection.abort(reset)

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        while True:
            if self._accept_delay:
                await asyncio.sleep(self._accept_delay)
            await self._asked_for(loop)
            with contextlib.suppress(OSError):  # the peer left before or inside the handshake
                sock, _ = self._socket.accept()  # not loop.sock_accept: cancelled as one comes, it would leave that one open
                sock.setblocking(False)
                await loop.connect_accepted_socket(lambda: _Connection(self), sock, ssl=self._tls)

    async def _asked_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until somebody wants to connect."""
        asked = asyncio.Event()
        loop.add_reader(self._socket, asked.set)
        try:
            await asked.wait()
        finally:
            loop.remove_reader(self._socket)

    # --- what tests ask

    @property
    def cancelled(self) -> list[Received]:
        return [r for r in self.requests if r.cancelled is not None]

    async def until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Waits until something that this engine records makes `condition` true; AssertionError after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not condition():
            future: asyncio.Future[None] = loop.create_future()
            self._watchers.append(future)
            await asyncio.wait([future], timeout=max(0.0, deadline - loop.time()))
            if not future.done():
                raise AssertionError(f"the engine did not get there within {timeout} s")

    def changed(self) -> None:
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    # --- what connections ask

    def joined(self, connection: _Connection) -> int:
        self.connections += 1
        self._live.add(connection)
        self.open = len(self._live)
        self.changed()
        return self.connections

    def left(self, connection: _Connection) -> None:
        self._live.discard(connection)
        self.open = len(self._live)
        self.changed()

    def step_for(self, request: Received) -> Step:
        if (header := request.header("x-fake")) is not None:
            return parse_step(header)
        if request.method == "GET":
            return Step()
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            model = str(request.json().get("model", ""))
            if model.startswith("fake:"):
                return parse_step(model.removeprefix("fake:"))
        return self.script.popleft() if self.script else self.default

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[bool]:
        """Holds one of the slots while the answer is made; False when slots and queue are full."""
        if self._free is None:
            yield True
            return
        if self._free.locked() and self.queued >= self._queue:
            self.refused += 1
            yield False
            return
        self.queued += 1
        try:
            await self._free.acquire()
        finally:
            self.queued -= 1
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await asyncio.sleep(self._service)
            yield True
        finally:
            self.busy -= 1
            self._free.release()

    def health(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "device": "cpu",
            "model": self.model,
            "slots": self._slots or 8,
            "in_use": self.busy,
            "queue": self.queued,
        }


class _Connection(asyncio.Protocol):
    """One client: requests one after the other, each answered by a task."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Received] = deque()
        self._task: asyncio.Task[None] | None = None
        self._current: Received | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._number = self._engine.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._current is not None and self._current.done is None:
            self._current.cancelled = time.monotonic()
        if self._task is not None:
            self._task.cancel()
        self._engine.left(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""
        self._headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        request = Received(method, self._path.decode("latin-1"), self._headers, self._body, self._number)
        request.step = self._engine.step_for(request)
        self._engine.requests.append(request)
        self._engine.changed()
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        while self._waiting:
            request = self._current = self._waiting.popleft()
            if request.method == "GET":  # a full engine still says how it is
                await self._answer(request, request.step)
            else:
                async with self._engine.slot() as served:
                    await self._answer(request, request.step if served else Step("status", code=503, retry_after="1"))
            request.done = time.monotonic()
            self._engine.changed()
        self._task = None

    async def _answer(self, request: Received, step: Step) -> None:
        if step.delay:
            await asyncio.sleep(step.delay)
        parts = pieces(request.method, request.path, request.body, step, self._engine.health())
        middle = 1 + (len(parts) - 1) // 2
        where = {"before": 0, "head": 1, "mid": middle, "end": len(parts)}[step.at] if step.kind in ACTIONS else -1
        if self._engine.whole and where < 0:
            parts = [b"".join(parts)]
        for index, piece in enumerate(parts):
            if index == where:
                await self._misbehave(request, step)
            if index > 1 and step.interval:
                await asyncio.sleep(step.interval)
            elif index:
                await asyncio.sleep(0)
            self._transport.write(piece)
            request.sent += len(piece)
            self._engine.changed()
        if step.kind == "endless_header":
            await self._write_header_forever(request)
        if where == len(parts):
            await self._misbehave(request, step)
        elif step.kind in ("half_event", "until_close", "long_length"):
            self._transport.close()

    async def _misbehave(self, request: Received, step: Step) -> None:
        if step.kind == "hold":
            return await self._engine.held()
        if step.kind in ("reset", "close"):
            request.done = time.monotonic()  # the peer does not leave: we do
            if request.sent:
                await asyncio.sleep(step.linger)
                if step.linger and step.kind == "reset":
                    await self._read_by_peer()
        if step.kind == "garbage":
            self._transport.write(GARBAGE)
        elif step.kind in ("reset", "close"):
            self.abort(step.kind == "reset")
        await asyncio.get_running_loop().create_future()  # until the connection is lost and this task cancelled

    async def _read_by_peer(self) -> None:
        """Until the other end has read what was sent, or does not for a while: an RST discards what lies in its kernel."""
        sock = self._transport.get_extra_info("socket")
        end = time.monotonic() + UNREAD_SECONDS
        while sock is not None and unread(sock) and time.monotonic() < end:
            await asyncio.sleep(0.002)

    async def _write_header_forever(self, request: Received) -> None:
        while not self._transport.is_closing():
            line = b"x-more-%d: %s\r\n" % (request.sent, b"y" * 1000)
            self._transport.write(line)
            request.sent += len(line)
            await asyncio.sleep(0)

    def abort(self, reset: bool) -> None:
        """Closes now: with RST, or after what was written, with FIN."""
        if not reset:
            self._transport.close()
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def unread(sock: Any) -> bool:
    """Whether bytes lie in the kernel that the other end of a connection over IPv4 on this machine has not read."""
    if sock.family != socket.AF_INET:
        return False
    with contextlib.suppress(OSError):  # it has left
        ends = [
            f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
            for host, port in (sock.getpeername(), sock.getsockname())
        ]
        with open("/proc/net/tcp", encoding="ascii") as connections:
            for line in connections:
                fields = line.split()
                if fields[1:3] == ends:
                    return int(fields[4].partition(":")[2], 16) > 0
    return False


async def _run(arguments: argparse.Namespace) -> None:
    engine = FakeEngine(
        arguments.script,
        default=replace(Step(), chunks=arguments.chunks, interval=arguments.interval),
        host=arguments.host,
        port=arguments.port,
        unix=arguments.unix,
        slots=arguments.slots,
        service=arguments.service,
        queue=arguments.queue,
        accept_delay=arguments.accept_delay,
        whole=arguments.whole,
    )
    async with engine:
        print(f"ready {engine.address}", flush=True)
        await asyncio.get_running_loop().create_future()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakes.engine", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--unix")
    parser.add_argument("--script", default="")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--interval", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--service", type=float, default=0.0)
    parser.add_argument("--queue", type=int, default=0)
    parser.add_argument("--accept-delay", type=float, default=0.0)
    parser.add_argument("--whole", action="store_true")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
