"""What the three fault measurements share: engines as processes, a gateway over them, and an open loop of requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httptools

from tests.e2e.harness import KEY, ROOT, Gatehouse, configuration, external

GRACE = 60.0
"""Seconds that the load waits for answers after its last request."""


class EngineProcess:
    """A scripted engine as a process of its own."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.fakes.engine", "--port", str(port), *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def engines(*arguments: tuple[str, ...]) -> Iterator[list[EngineProcess]]:
    made = [EngineProcess(*each) for each in arguments]
    try:
        yield made
    finally:
        for engine in made:
            engine.kill()


@contextmanager
def gateway(fleet: list[EngineProcess], *, engine: dict[str, Any], routing: dict[str, Any]) -> Iterator[Gatehouse]:
    """A gateway with the model m1 over engines a, b, c, ...; durability `write`, no guardrails."""
    names = "abcdefgh"[: len(fleet)]
    listed = [external(name, each.port, **engine) for name, each in zip(names, fleet, strict=True)]
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench") as folder:
        parts = {"engines": listed, "models": [{"name": "m1", "pool": list(names), "routing": routing}]}
        with Gatehouse(Path(folder), configuration(Path(folder) / "state", **parts)) as running:
            yield running


class Sample(NamedTuple):
    """One request: when it was due (seconds from the start), how long it took from then, and how it ended (0: no answer)."""

    due: float
    latency: float
    status: int
    endpoint: str
    key: str
    retry_after: float


class _Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.done: Callable[[int, dict[bytes, bytes]], None] | None = None
        self.open = False
        self._headers: dict[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.open = False
        self._parser = httptools.HttpResponseParser(self)
        self._finish(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._finish(0)

    def _finish(self, status: int) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(status, self._headers)


class OpenLoop:
    """Sends `rate` requests a second whatever becomes of them; each is a conversation of its own, of one of the callers in turn."""

    def __init__(self, gatehouse: Gatehouse, rate: float, seconds: float, keys: tuple[str, ...] = (KEY,)) -> None:
        self._port = int(gatehouse.url.rsplit(":", 1)[1])
        self._rate, self._seconds = rate, seconds
        self._keys = itertools.cycle(keys)
        self._idle: deque[_Connection] = deque()
        self.samples: list[Sample] = []
        self.started = 0.0
        self._under_way = 0

    async def run(self, events: list[tuple[float, Callable[[], Any]]] | None = None) -> list[Sample]:
        """events: (seconds from the start, what to do then in a thread)."""
        loop = asyncio.get_running_loop()
        self.started = time.monotonic()
        for at, action in events or []:
            loop.call_later(at, lambda action=action: loop.run_in_executor(None, action))
        for number in range(int(self._rate * self._seconds)):
            due = number / self._rate
            if (wait := self.started + due - time.monotonic()) > 0.001:
                await asyncio.sleep(wait)
            await self._send(number, due)
        end = time.monotonic() + GRACE
        while self._under_way and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for connection in self._idle:
            connection.transport.close()
        return self.samples

    async def _send(self, number: int, due: float) -> None:
        key = next(self._keys)
        connection = None
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                break
            connection = None
        if connection is None:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", self._port)
        body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 16}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        self._under_way += 1
        current = connection

        def done(status: int, headers: dict[bytes, bytes]) -> None:
            self._under_way -= 1
            latency = time.monotonic() - self.started - due
            endpoint = headers.get(b"x-gatehouse-endpoint", b"").decode()
            self.samples.append(Sample(due, latency, status, endpoint, key, float(headers.get(b"retry-after", b"0"))))
            if current.open:
                self._idle.append(current)

        connection.done = done
        connection.transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def resident(pid: int) -> float:
    """A process's resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def transitions(gatehouse: Gatehouse, endpoint: str) -> list[tuple[float, str, str]]:
    """(seconds since the epoch, state, reason) of an endpoint's changes, from the audit log."""
    records = [r for r in gatehouse.audit() if r.get("event") == "endpoint_changed" and r.get("target") == endpoint]
    return [(r["time"], r["detail"]["to"], r["detail"]["reason"]) for r in records]
