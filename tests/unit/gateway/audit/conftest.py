"""What the audit tests share: records, waiting for signals, a disk that fails on command, logs made in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.crypto import Signer, load_signer
from gateway.audit.sinks.file import FileSink
from gateway.audit.writer import ChainWriter
from gateway.core.clock import Clock, FakeClock
from gateway.core.specs import AuditSpec
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord
from gateway.core.waiting import Signal
from tests.waiting import reached


def intent(request_id: str = "r1", tenant: str = "acme", **more: Any) -> IntentRecord:
    return IntentRecord(
        time=1000.0,
        request_id=request_id,
        tenant=tenant,
        principal="ci",
        credential="api_key",
        peer="10.0.0.1",
        operation="chat",
        model="demo-chat",
        stream=False,
        bytes=10,
        **more,
    )


def outcome(request_id: str = "r1", **more: Any) -> OutcomeRecord:
    return OutcomeRecord(time=1001.0, request_id=request_id, outcome="ok", status=200, **more)


def event(name: str = "config.applied", **more: Any) -> EventRecord:
    return EventRecord(1002.0, name, **more)


class Disk:
    """The system calls of a FileSink, failing or hanging on command. `short`: the most bytes that one write takes. `room`: the bytes that
    the file system has left; none, unless a test says so, so that the journal is not used."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.sync_error: int | None = None
        self.cut_error: int | None = None
        self.short: int | None = None
        self.after = 0
        self.released = threading.Event()
        self.released.set()
        self.writes = self.syncs = self.hanging = 0
        self.room = 0

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.writes += 1
        self.hanging += 1
        assert self.released.wait(150)
        self.hanging -= 1
        if self.error is not None:
            if self.after <= 0:
                raise OSError(self.error, os.strerror(self.error))
            written = os.pwrite(descriptor, data[: self.after], offset)
            self.after = 0
            return written
        return os.pwrite(descriptor, data[: self.short], offset)

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        os.fdatasync(descriptor)

    def ftruncate(self, descriptor: int, length: int) -> None:
        if self.cut_error is not None:
            raise OSError(self.cut_error, os.strerror(self.cut_error))
        os.ftruncate(descriptor, length)

    def free(self, descriptor: int) -> int:
        return self.room

    def fill(self, after: int = 0) -> None:
        """No space left: the next write takes `after` bytes, then all fail."""
        self.error, self.after = errno.ENOSPC, after


class Bench:
    """Makes brokers and writers in one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.directory = state_dir / "audit"
        self.disk = Disk()
        self.clock = FakeClock()
        self.signer: Signer = load_signer(str(state_dir))
        self.brokers: list[AuditBroker] = []

    def sink(self, *, writer: str = "0", segment_bytes: int = 1 << 20, sync: bool = False) -> FileSink:
        return FileSink(self.directory, writer, segment_bytes=segment_bytes, sync=sync, files=self.disk)

    def writer(self, **more: Any) -> ChainWriter:
        return ChainWriter(self.sink(**more), self.signer, self.clock)

    async def broker(self, *, tick: float = 0.01, segment_bytes: int = 1 << 20, clock: Clock | None = None, **settings: Any) -> AuditBroker:
        more = {name: settings.pop(name) for name in ("cpu", "steady") if name in settings}
        if clock is None:  # what a disk may take is tested with a clock of the test: a real one may be slow
            settings.setdefault("timeout", 60.0)
        spec = msgspec.convert(settings, AuditSpec)
        sink = self.sink(segment_bytes=segment_bytes, sync=spec.durability == "fsync")
        broker = AuditBroker(spec, str(self.state_dir), sink=sink, tick=tick, clock=clock, **more)
        self.brokers.append(broker)
        await broker.start()
        return broker

    async def ticked(self, broker: AuditBroker, seconds: float) -> None:
        """So many seconds pass while the broker runs: it ticks in between."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            await reached(lambda: broker._ticked == self.clock.monotonic())

    def lines(self, segment: int = 1, writer: str = "0") -> list[bytes]:
        return self.segment(segment, writer).read_bytes().splitlines(keepends=True)

    def segment(self, segment: int = 1, writer: str = "0") -> Path:
        return self.directory / f"audit-{writer}-{segment:08d}.jsonl"

    def records(self, segment: int = 1, writer: str = "0") -> list[dict[str, Any]]:
        """The whole lines so far: while the broker writes, a reader may see a part of the last one."""
        return [msgspec.json.decode(line) for line in self.lines(segment, writer) if line.endswith(b"\n")]

    def events(self, segment: int = 1) -> list[str]:
        return [record["event"] for record in self.records(segment) if record["kind"] == "event"]

    def log(self, batches: int = 4, **more: Any) -> None:
        """A closed log of `batches` batches of an intent and an outcome, each followed by a checkpoint."""
        writer = self.writer(**more)
        writer.open()
        for number in range(batches):
            self.clock.advance(1.0)
            writer.write([intent(f"r{number}"), outcome(f"r{number}")])
            writer.checkpoint()
        writer.close()


async def settled(signal: Signal[None], timeout: float = 60.0) -> None:
    """Waits for the signal; raises what it failed with."""
    ready = asyncio.Event()
    signal.add_callback(ready.set)
    await asyncio.wait_for(ready.wait(), timeout)
    if signal.error is not None:
        raise signal.error


class Make:
    """The helpers above, for tests that get them as a fixture."""

    intent = staticmethod(intent)
    outcome = staticmethod(outcome)
    event = staticmethod(event)
    settled: Callable[..., Awaitable[None]] = staticmethod(settled)
    until: Callable[..., Awaitable[Any]] = staticmethod(reached)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def log_bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.disk.released.set()
    for broker in bench.brokers:
        await broker.aclose(2.0)
