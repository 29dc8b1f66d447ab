"""What the audit log costs a request, in situ: a relay on one core with and without it, in turns.

The server (one process with its writer threads, pinned to one core) does what the pipeline does with the log: on a request it hashes the
body, hands in the intent, does other work (`--work` rounds of an empty loop), sends to its engine once the intent is durable, and hands in
the outcome when the answer came back. Clients and engine are one process on the other core: closed loop, `--connections` at once.

    python loadtests/audit/bench.py --seconds 10

The server changes its durability every tenth of a second, so that all of them meet the same noise of the machine. For each it prints
requests/s, the server's CPU microseconds a request, and what that is above `none`: the median over the rounds through all modes.
CPU time is what to compare; on a machine that does other things too, requests/s say little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place, where there is a build of these sources
from gateway.app.compiled import active
from gateway.audit.broker import AuditBroker
from gateway.audit.keyring import KeyRing
from gateway.audit.opening import CLOSED
from gateway.core.secret import Secret
from gateway.core.specs import AuditSpec
from gateway.core.specs.audit import EncryptionSpec, MasterSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.core.vault import DataKeyGiven

BODY = json.dumps({"model": "demo-chat", "messages": [{"role": "user", "content": "What is a circuit breaker? " * 8}]}).encode()
ANSWER = b"x" * 800
MODES = ("none", "async", "write", "fsync", "async+record", "write+record", "fsync+record")
SLICE = 0.1


def spin(rounds: int) -> None:
    """The rest of the pipeline: the same work for every request."""
    for _ in range(rounds):
        pass


class Shared:
    """What the connections of the server read: the broker in force, the engine's port, the work, the count of requests."""

    broker: AuditBroker | None = None
    engine_port = 0
    work = 0
    count = 0


class Engine(asyncio.Protocol):
    """The server's side of a connection to the engine."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.got = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got >= len(ANSWER):
            self.got = 0
            if not self.client.transport.is_closing():
                self.client.answered()


class Client(asyncio.Protocol):
    """The server's side of a client's connection: the life of a request as far as the audit log sees it."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.got = 0
        self.engine: Engine | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got < len(BODY):
            return
        self.got = 0
        if self.engine is None:
            self.task = asyncio.get_running_loop().create_task(self.connect())
        else:
            self.request()

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self.engine = await loop.create_connection(lambda: Engine(self), "127.0.0.1", self.shared.engine_port)
        self.request()

    def request(self) -> None:
        shared = self.shared
        shared.count += 1
        self.id = f"req-{shared.count:028d}"
        self.began = time.time()
        self.broker = shared.broker
        if self.broker is None:
            spin(shared.work)
            self.forward()
            return
        record = IntentRecord(
            time=self.began,
            request_id=self.id,
            tenant="payments",
            principal="ci",
            credential="api_key",
            peer="10.1.2.3",
            operation="chat",
            model="demo-chat",
            stream=False,
            bytes=len(BODY),
            body_hash=self.broker.hash_body(BODY),
            rule="key ci",
            config=1,
        )
        signal = self.broker.intent(record)
        spin(shared.work)
        signal.add_callback(self.forward)

    def forward(self) -> None:
        assert self.engine is not None
        self.engine.transport.write(BODY)

    def answered(self) -> None:
        self.transport.write(ANSWER)
        if self.broker is not None:
            record = OutcomeRecord(
                time=time.time(),
                request_id=self.id,
                outcome="ok",
                status=200,
                endpoint="chat-a",
                attempts=1,
                prompt_tokens=32,
                completion_tokens=88,
                bytes=len(ANSWER),
                body_hash=self.broker.hash_body(ANSWER),
                duration_ms=(time.time() - self.began) * 1000,
            )
            self.broker.outcome(record)


Slice = tuple[float, float, int, int, int]
"""Seconds, CPU seconds, requests, batches, records."""


async def given_key(tenant: str) -> DataKeyGiven:
    return DataKeyGiven(id=f"dk-{tenant}", tenant=tenant, version=1, key=Secret("ab" * 32), seconds=86400.0)


def broker_of(mode: str, state_dir: str) -> AuditBroker:
    """mode: a durability, or with `+record` behind it one with whole records encrypted."""
    durability, _, scope = mode.partition("+")
    encryption = EncryptionSpec(scope="record", master=MasterSpec(file="unused")) if scope else None
    broker = AuditBroker(AuditSpec(durability=durability, encryption=encryption), state_dir)  # type: ignore[arg-type]
    broker.encrypt(KeyRing(given_key, TaskOwner("keys")), CLOSED)
    return broker


def serve(pipe: Connection, modes: list[str], seconds: float, shared: Shared, core: int, state_dir: str) -> None:
    """The server process: tells its port, waits for the load, measures slices of all modes in turns, tells them."""
    os.sched_setaffinity(0, {core})

    async def run() -> None:
        loop = asyncio.get_running_loop()
        brokers: dict[str, AuditBroker | None] = {}
        for mode in modes:
            brokers[mode] = None if mode == "none" else broker_of(mode, f"{state_dir}/{mode}")
            if broker := brokers[mode]:
                await broker.start()
        server = await loop.create_server(lambda: Client(shared), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while not pipe.poll():
            await asyncio.sleep(0.02)
        slices: dict[str, list[Slice]] = {mode: [] for mode in modes}
        for _ in range(max(1, int(seconds / SLICE / len(modes)))):
            for mode in modes:
                shared.broker = broker = brokers[mode]
                await asyncio.sleep(SLICE / 5)
                before = reading(shared, broker)
                await asyncio.sleep(SLICE)
                after = reading(shared, broker)
                slices[mode].append(tuple(b - a for a, b in zip(before, after, strict=True)))  # type: ignore[arg-type]
        pipe.send(slices)
        os._exit(0)  # the clients are still at work

    uvloop.run(run())


def reading(shared: Shared, broker: AuditBroker | None) -> Slice:
    batches, records = (broker.batches, broker.records) if broker else (0, 0)
    return time.perf_counter(), time.process_time(), shared.count, batches, records


class Load(asyncio.Protocol):
    """A client in a closed loop."""

    def __init__(self) -> None:
        self.got = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(BODY)

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got >= len(ANSWER):
            self.got = 0
            self.transport.write(BODY)


class Echo(asyncio.Protocol):
    """The engine."""

    def __init__(self) -> None:
        self.got = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got >= len(BODY):
            self.got = 0
            self.transport.write(ANSWER)


async def measure(modes: list[str], options: argparse.Namespace) -> dict[str, list[Slice]]:
    """Starts engine, server and clients; the server's slices."""
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(Echo, "127.0.0.1", 0)
    shared = Shared()
    shared.engine_port, shared.work = engine.sockets[0].getsockname()[1], options.work
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(dir=options.dir) as state_dir:
        arguments = (theirs, modes, options.seconds, shared, options.core, state_dir)
        server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        server.start()
        port = await loop.run_in_executor(None, ours.recv)
        for _ in range(options.connections):
            await loop.create_connection(Load, "127.0.0.1", port)
        await asyncio.sleep(0.5)
        ours.send("begin")
        result: dict[str, list[Slice]] = await loop.run_in_executor(None, ours.recv)
        await loop.run_in_executor(None, server.join)
    engine.close()
    return result


def report(slices: dict[str, list[Slice]]) -> None:
    print(f"{'mode':8}{'requests/s':>12}{'cpu us/req':>12}{'above none':>12}{'records/batch':>15}")
    base = [cpu / max(1, requests) * 1e6 for _, cpu, requests, _, _ in slices["none"]]
    for mode, taken in slices.items():
        seconds, _, requests, batches, records = (sum(column) for column in zip(*taken, strict=True))
        costs = [cpu / max(1, requests) * 1e6 for _, cpu, requests, _, _ in taken]
        above = statistics.median(cost - none for cost, none in zip(costs, base, strict=True))
        per_batch = records / batches if batches else 0.0
        print(f"{mode:8}{requests / seconds:12.0f}{statistics.median(costs):12.1f}{above:12.1f}{per_batch:15.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--work", type=int, default=1000, help="rounds of an empty loop a request, about 15 ns each")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--modes", default=",".join(MODES), help="`none` must be among them")
    parser.add_argument("--dir", type=Path, default=None, help="where the log is written (a real disk for fsync)")
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {options.core} or {options.core})
    print("compiled" if active() else "sources")
    report(uvloop.run(measure(options.modes.split(","), options)))


if __name__ == "__main__":
    main()
