"""Constant load with an exact account: requests and streams at a fixed rate, each followed to its end, in a process of its own.

    python -m tests.cluster.load PORT[,PORT] KEY [--rate 1000] [--streams 0.1] [--retries 0] [--model static] [--stream-model stream]

Open loop: a request is sent when it is due, whether or not earlier ones have been answered, and its latency counts from then. Several
ports are used in turns. Lines on standard input: `phase NAME` (what is due from now on belongs to it) and `stop`; then one line of JSON
says what became of every request. `Load` runs it beside a test or a driver.

A request fails with a reason: `refused` (no connection), `closed` (the connection ended before a byte of the answer), `cut` (after one),
`error event` (a stream said so), `status N CODE`, `late` (no end within 15 s). `--retries`: what failed before its answer began (refused,
closed, 502, 503, 504) is sent again, on a new connection, as the OpenAI clients do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import itertools
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
PAUSE = 0.05
"""Seconds before a request is sent again."""
REPEATED = ("refused", "closed", "status 502", "status 503", "status 504")
CODE = re.compile(rb'"code":\s*"(\w+)"')


@dataclass(slots=True)
class Request:
    """due, sent: monotonic seconds. took: seconds from when it was due to the end, or to a stream's first event; gap: a stream's longest.

    failures: one for each attempt that failed, with the reason, when it was sent and when it failed, and our end's port."""

    phase: str
    stream: bool
    due: float
    port: int
    late: float = 0.0
    took: float = 0.0
    gap: float = 0.0
    sent: float = 0.0
    done: bool = False
    failures: list[dict[str, Any]] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """A connection to one server: one request at a time."""

    def __init__(self, load: Traffic, server: int) -> None:
        self._load, self.server = load, server
        self._transport: Any = None
        self._request: Request | None = None
        self._buffer = b""
        self._last = 0.0
        self.port = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not say so
        self.port = transport.get_extra_info("sockname")[1]

    def send(self, request: Request, data: bytes) -> None:
        self._request, self._buffer = request, b""
        request.sent = time.monotonic()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        now = time.monotonic()
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        if request.stream and self._buffer.startswith(b"HTTP/1.1 200"):
            self._streamed(request, data, now)
            return
        at = self._buffer.lower().find(b"\r\ncontent-length:", 0, end)
        length = int(self._buffer[at + 17 : self._buffer.find(b"\r\n", at + 2)]) if at >= 0 else 0
        if len(self._buffer) >= end + 4 + length:
            status = self._buffer[9:12]
            if status == b"200":
                request.took = now - request.due
                self._over()
            else:
                code = CODE.search(self._buffer, end)
                self._over(f"status {status.decode()}" + (f" {code[1].decode()}" if code else ""))

    def _streamed(self, request: Request, data: bytes, now: float) -> None:
        if b"data: " in data:
            if request.took:
                request.gap = max(request.gap, now - self._last)
            else:
                request.took = now - request.due
            self._last = now
        if self._buffer.endswith(b"0\r\n\r\n"):
            if b'"error"' in self._buffer:
                self._over("error event")
            else:
                self._over("" if b"data: [DONE]" in self._buffer else "cut")

    def _over(self, reason: str = "") -> None:
        request, self._request = self._request, None
        assert request is not None
        lasting = b"\r\nconnection: close\r\n" not in self._buffer[: self._buffer.find(b"\r\n\r\n") + 2].lower()
        self._buffer = b""
        self._load.over(request, reason, self, lasting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._request is not None:
            self._over("cut" if self._buffer else "closed")

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


class Traffic:
    """Sends until it is stopped."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._rate, self._retries = given.rate, given.retries
        self._servers = itertools.cycle(given.ports)
        self._idle: dict[int, list[Connection]] = {port: [] for port in given.ports}
        self._all: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._data = {stream: request_bytes(given.key, given.stream_model if stream else given.model, stream) for stream in (False, True)}
        every = round(1 / given.streams) if given.streams else 0
        self._streamed = (every > 0 and number % every == 0 for number in itertools.count(1))
        self._open: dict[int, tuple[Request, Connection | None]] = {}
        self.requests: list[Request] = []
        self.phase = "all"
        self.running = True

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin, number, swept = time.monotonic(), 0, 0.0
        while self.running:
            due = begin + number / self._rate
            now = time.monotonic()
            if due > now:
                await asyncio.sleep(due - now)
                continue
            number += 1
            self._send(Request(self.phase, next(self._streamed), due, next(self._servers)), loop)
            if now - swept > 1.0:
                swept = now
                self._sweep(now)
        end = time.monotonic() + PATIENCE + 1
        while self._open and time.monotonic() < end:
            await asyncio.sleep(0.05)
            self._sweep(time.monotonic())
        for connection in self._all:
            connection.abort()
        await asyncio.sleep(0)

    def _send(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        request.late = time.monotonic() - request.due
        self.requests.append(request)
        idle = self._idle[request.port]
        while idle:
            connection = idle.pop()
            if not connection.closed:
                self._open[id(request)] = (request, connection)
                connection.send(request, self._data[request.stream])
                return
            self._all.discard(connection)
        self._connect(request)

    def _connect(self, request: Request) -> None:
        self._open[id(request)] = (request, None)
        request.sent = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._connected(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, request: Request) -> None:
        make = functools.partial(Connection, self, request.port)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", request.port)
        except OSError:
            self.over(request, "refused", None, False)
            return
        self._all.add(connection)
        if id(request) not in self._open:  # given up meanwhile
            self._idle[request.port].append(connection)
            return
        self._open[id(request)] = (request, connection)
        connection.send(request, self._data[request.stream])

    def over(self, request: Request, reason: str, connection: Connection | None, lasting: bool) -> None:
        """The end of an attempt; no reason: it was answered."""
        if connection is not None:
            if lasting and not connection.closed:
                self._idle[connection.server].append(connection)
            else:
                self._all.discard(connection)
                connection.abort()
        if self._open.pop(id(request), None) is None:
            return
        if not reason:
            request.done = True
            return
        port = connection.port if connection else 0
        request.failures.append({"reason": reason, "sent": request.sent, "failed": time.monotonic(), "port": port})
        if reason.startswith(REPEATED) and len(request.failures) <= self._retries:
            self._open[id(request)] = (request, None)
            asyncio.get_running_loop().call_later(PAUSE, self._connect, request)

    def _sweep(self, now: float) -> None:
        for request, connection in list(self._open.values()):
            if now - request.sent > PATIENCE and request.sent:
                self.over(request, "late", connection, False)


def request_bytes(key: str, model: str, stream: bool) -> bytes:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "Say something short, please."}], "stream": stream}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: load\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def quantile(values: list[float], share: float) -> float:
    """Milliseconds; 0 of nothing."""
    return round(values[min(len(values) - 1, int(len(values) * share))] * 1000, 2) if values else 0.0


def account(requests: list[Request]) -> dict[str, Any]:
    """What became of some requests. first: failures of first attempts, by reason; failed: those of requests that were given up."""
    took = sorted(r.took for r in requests if r.done and not r.stream and not r.failures)
    firsts = sorted(r.took for r in requests if r.done and r.stream and not r.failures)
    gaps = sorted(r.gap for r in requests if r.done and r.stream)
    return {
        "sent": len(requests),
        "streams": sum(r.stream for r in requests),
        "ok": sum(r.done for r in requests),
        "retried": sum(r.done and bool(r.failures) for r in requests),
        "failed": Counter(r.failures[-1]["reason"] if r.failures else "unknown" for r in requests if not r.done),
        "first": Counter(r.failures[0]["reason"] for r in requests if r.failures),
        "failures": [
            {"stream": r.stream, "ok": r.done, "due": r.due, **failure} for r in requests for failure in (r.failures if r.failures else ())
        ],
        "p50": quantile(took, 0.5),
        "p99": quantile(took, 0.99),
        "p999": quantile(took, 0.999),
        "max": quantile(took, 1.0),
        "first_p50": quantile(firsts, 0.5),
        "first_p99": quantile(firsts, 0.99),
        "gap_p99": quantile(gaps, 0.99),
        "sent_late_p99": quantile(sorted(r.late for r in requests), 0.99),
    }


class Load:
    """The process, as a context manager. `account` has one account for each phase when it is over, in `total` one for all."""

    def __init__(self, ports: list[int], key: str, **options: Any) -> None:
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self._command = [sys.executable, "-m", "tests.cluster.load", ",".join(map(str, ports)), key, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self.account: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def total(self) -> dict[str, Any]:
        """The account of all phases together."""
        found: dict[str, Any] = self.account[""]
        return found

    def phase(self, name: str) -> None:
        self._say(f"phase {name}")

    def _say(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Load:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the load did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            if exc[0] is None:
                self._say("stop")
                self.account = json.loads(self._process.stdout.readline())
        finally:
            self._process.kill()
            self._process.communicate()


async def obey(traffic: Traffic) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while (line := (await reader.readline()).decode().rstrip("\n")) and line != "stop":
        traffic.phase = line.removeprefix("phase ")
    traffic.running = False


async def run(given: argparse.Namespace) -> dict[str, Any]:
    traffic = Traffic(given)
    obeying = asyncio.create_task(obey(traffic))
    print("ready", flush=True)
    await traffic.run()
    obeying.cancel()
    phases = dict.fromkeys(request.phase for request in traffic.requests)
    return {"": account(traffic.requests), **{name: account([r for r in traffic.requests if r.phase == name]) for name in phases}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ports", type=lambda text: [int(port) for port in text.split(",")])
    arguments.add_argument("key")
    arguments.add_argument("--rate", type=float, default=1000)
    arguments.add_argument("--streams", type=float, default=0.1)
    arguments.add_argument("--retries", type=int, default=0)
    arguments.add_argument("--model", default="static")
    arguments.add_argument("--stream-model", default="stream")
    given = arguments.parse_args()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)  # whoever measures keeps everything that it has seen
    with contextlib.suppress(KeyboardInterrupt):
        print(json.dumps(uvloop.run(run(given))), flush=True)


if __name__ == "__main__":
    main()
