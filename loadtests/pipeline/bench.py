"""What the pipeline itself costs: requests through the real protocol class, phases and audit log, with an engine that answers at once.

No sockets: the client's transport and the engine's connection are replaced, so what is left is our own code. 32 requests are
under way at a time, as in the relay benchmark. Prints the smallest and the median microseconds a
request over many rounds, the smallest CPU time of all threads (the smallest is what a quiet machine shows), and with --phases the table of
a request's life.

usage: python -m loadtests.pipeline.bench [--rounds 300] [--warm 0] [--config FILE] [--durability write] [--slots 1024] [--leased]
       [--phases] [--profile FILE] [--state DIRECTORY] [--callgrind]
--state: of a gateway whose store was filled before, such as loadtests.store.requests does; its pepper is in GATEHOUSE_PEPPER, and a key of
it to ask with in BENCH_KEY, if that is not the configuration's.
It measures the compiled hot path where there is a build of these sources, and says which it was; GATEHOUSE_COMPILED=0 measures the sources.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.app.interpreter import GC_THRESHOLDS
from gateway.config.load import load
from gateway.core.messages import Message
from gateway.core.types import ResponseHead
from gateway.limits.lease_book import LeaseBook
from gateway.limits.lease_messages import LeaseCall, LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.shares import Shares
from gateway.pipeline import plane as plane_module
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.health import Health
from gateway.server.protocol import Connection, ListenerState
from gateway.telemetry.metrics import PHASES
from gateway.wire.table import is_inference
from loadtests.relay.targets import PHRASES
from policies.limits import LimitRules, estimate

KEY = "bench-key-0123456789abcdef0123456789abcdef"
CONFIG = """
version: 1
state_dir: {state}
engines: [{{name: up, runtime: external, url: "http://127.0.0.1:9", slots: {slots}}}]
models: [{{name: m1, pool: [up]}}]
identity: {{api_keys: {{static: [{{id: bench, key: {key}, tenant: bench, models: ["m*"]}}]}}}}
limits: [{{name: per-key, per: key, requests: {{rate: 1000000, per: 1s}}, tokens: {{rate: 1000000000, per: 1m}}, concurrent: 10000}}]
audit: {{durability: {durability}}}
"""
BODY = json.dumps(
    {
        "model": "m1",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Hello! Please tell me about the weather in the capital of France, and keep it short."},
        ],
        "max_tokens": 100,
        "temperature": 0.7,
    }
).encode()
REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    f"Authorization: Bearer {os.environ.get('BENCH_KEY', KEY)}\r\nContent-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1677652288,
        "model": "m1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello! How can I help you today?"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21},
    }
).encode()


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Transport:
    """The client's side: counts answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.last = b""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.answers += 1
        self.last = data

    def is_closing(self) -> bool:
        return False


class Call:
    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None: ...


class Engine:
    """Answers when told."""

    base_path = b""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]

    def send(self, head: bytes, body: bytes, receiver: Any, first_byte: float, idle: float) -> Call:
        self.waiting.append(receiver)
        return Call()

    async def aclose(self) -> None: ...

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for receiver in waiting:
            receiver.on_head(ResponseHead(200, self.head))
            receiver.on_body(ANSWER)
            receiver.on_end()


def lease(gateway: Gateway) -> None:
    """Limits as in a worker, with the control process's side in the same loop: what it costs is counted too, when it is asked."""
    loop = asyncio.get_running_loop()
    shares: Shares

    def to_worker(worker: str, message: Message) -> None:
        if isinstance(message, LeaseReply):
            loop.call_soon(shares.heard, message)

    def to_control(message: Message) -> None:
        assert isinstance(message, LeaseCall)
        loop.call_soon(book.heard, "bench", message)

    book = LeaseBook(to_worker, later=loop.call_later)
    shares = Shares(to_control, loop.call_soon, loop.call_later)
    for worker in ("bench", "other"):
        book.joined(worker)
    snapshot = gateway.plane.current()
    snapshot.limiter = LeasedLimiter(LimitRules(snapshot.spec.limits), shares, estimate=estimate)


async def quiet() -> None:
    """Waits until what a start leaves to threads, such as the text of the policies, is done."""
    spent = -1.0
    while time.process_time() - spent > 0.02:
        spent = time.process_time()
        await asyncio.sleep(0.5)


def instrumentation(switch: str) -> None:
    """Switches the counting of the callgrind on or off under which this process runs: with it, a start takes ten times as long."""
    command = ["vgdb", f"--pid={os.getpid()}", "instrumentation", switch]
    told = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while told.poll() is None:
        pass  # valgrind listens only while this process runs
    if told.returncode:
        raise RuntimeError(f"vgdb ended with {told.returncode}")


async def one_round(connections: list[Connection], engine: Engine, slots: int) -> None:
    """A request on each connection, until all are answered."""
    for connection in connections:
        connection.data_received(REQUEST)
    left = len(connections)
    while left:
        while len(engine.waiting) < min(left, slots):
            await asyncio.sleep(0)
        left -= len(engine.waiting)
        engine.answer()


async def bench(state: str, arguments: argparse.Namespace) -> None:
    engine = Engine()
    environ = {"BENCH_ENGINE": "http://127.0.0.1:9", "BENCH_KEY": KEY, "BENCH_PHRASES": f"{state}/phrases.txt"}
    environ |= {name: os.environ[name] for name in ("GATEHOUSE_PEPPER",) if name in os.environ}
    if arguments.config:
        file = Path(arguments.config)
        (Path(state) / "phrases.txt").write_text(PHRASES["phrases.txt"])
        environ |= {"GATEHOUSE__STATE_DIR": state, "GATEHOUSE__AUDIT__DURABILITY": arguments.durability}
    else:
        file = Path(state) / "bench.yaml"
        file.write_text(CONFIG.format(state=state, key=KEY, durability=arguments.durability, slots=arguments.slots))
    gateway = Gateway(load(file, environ, OURS.schemas()), environ)
    gateway.fleet.registry._client_factory = lambda spec, address: engine  # type: ignore[assignment,return-value]
    gateway.fleet.start_probing = lambda: None  # type: ignore[method-assign]
    begin, cpu, before = time.perf_counter(), time.process_time(), resident()
    await gateway.start()
    started = f"start {time.perf_counter() - begin:.2f} s, {time.process_time() - cpu:.2f} s of CPU, {resident() - before:.0f} MiB resident"
    if arguments.state:
        await quiet()
    if arguments.leased:
        lease(gateway)
    if arguments.phases:
        plane_module.DataPlane.sampled = lambda self: True  # type: ignore[method-assign]
    listener = ListenerState(gateway.plane, AsgiApplication(DataApplication(gateway.plane, Health(gateway.plane))), is_inference)
    server_state = type("State", (), {"connections": set(), "total_requests": 0})()
    connections = [Connection(listener, server_state) for _ in range(32)]
    transports = [Transport() for _ in connections]
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)  # type: ignore[arg-type]
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as gateway.app.interpreter does, for a process that serves
    for _ in range(arguments.warm):
        await one_round(connections, engine, arguments.slots)
    if arguments.callgrind:
        instrumentation("on")
    profile = cProfile.Profile() if arguments.profile else None
    times, spent = [], []
    for _ in range(arguments.rounds):
        begin, cpu = time.perf_counter(), time.process_time()
        if profile:
            profile.enable()
        await one_round(connections, engine, arguments.slots)
        if profile:
            profile.disable()
        times.append((time.perf_counter() - begin) * 1e6 / 32)
        spent.append((time.process_time() - cpu) * 1e6 / 32)
    if arguments.callgrind:
        instrumentation("off")
    answers = arguments.warm + arguments.rounds
    assert all(t.answers == answers and t.last.startswith(b"HTTP/1.1 200") for t in transports), transports[0].last
    print(started)
    print(f"microseconds a request: smallest {min(times):.1f}  median {statistics.median(times):.1f}  CPU {min(spent):.1f}")
    if arguments.phases:
        for phase in PHASES:
            histogram = gateway.metrics.phases[phase]
            count = sum(histogram.counts)
            if count:
                print(f"  {phase:14s} mean {histogram.sum / count:6.2f} us")
    if profile:
        profile.dump_stats(arguments.profile)
    await gateway.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=0, help="rounds before those that are measured")
    parser.add_argument("--callgrind", action="store_true", help="only what runs in the measured rounds is counted (instructions.py)")
    parser.add_argument("--durability", default="write")
    parser.add_argument("--slots", type=int, default=1024, help="fewer than 32: the others wait in the queue")
    parser.add_argument("--config", help="a configuration with a model m1, such as loadtests/relay/everything.yaml")
    parser.add_argument("--leased", action="store_true", help="limits as in one of several workers")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--profile")
    parser.add_argument("--state")
    arguments = parser.parse_args()
    print("the hot path", "is compiled" if active() else "runs from its sources")
    with tempfile.TemporaryDirectory() as state:
        uvloop.run(bench(arguments.state or state, arguments))


if __name__ == "__main__":
    main()
