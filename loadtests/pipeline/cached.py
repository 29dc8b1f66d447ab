"""What an answer from the cache costs: a hit against a request that is refused and one that an engine answers; a store of many answers.

Requests run through the real protocol class, phases and audit log, without sockets, as in loadtests.pipeline.bench. Prints the loop's CPU
time for each request (its thread's, so that other work on the machine counts little), smallest and median of the rounds. `store` fills a
store with answers of 1 KiB and prints what each takes of the process's memory, and the time of a look-up.

usage: python -m loadtests.pipeline.cached requests [--rounds 200] | store [--entries 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import resource
import statistics
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.caches.memory import AnswerStore, Bounds
from gateway.config.load import load
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.health import Health
from gateway.server.protocol import Connection, ListenerState
from gateway.wire.table import is_inference
from loadtests.pipeline.bench import BODY, CONFIG, KEY, Engine, Transport

CONNECTIONS = 32
COLD = BODY.replace(b'"temperature": 0.7', b'"temperature": 0')
POOL = "pool: [up]}]"


def request(body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n{lines}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


KINDS = {
    "refused": (request(COLD.replace(b'"m1"', b'"refused"')), b"HTTP/1.1 403"),
    "hit": (request(COLD), b"HTTP/1.1 200"),
    "hit, streamed": (request(COLD.replace(b'"temperature": 0', b'"temperature": 0, "stream": true')), b"HTTP/1.1 200"),
    "engine": (request(COLD, cache_control="no-store"), b"HTTP/1.1 200"),
}


async def round_of(connections: list[Connection], engine: Engine, data: bytes, transports: list[Transport]) -> int:
    """Nanoseconds of the loop's thread for one request on each connection."""
    ends = [transport.answers + 1 for transport in transports]
    begin = time.thread_time_ns()
    for connection in connections:
        connection.data_received(data)
    while any(transport.answers < end for transport, end in zip(transports, ends, strict=True)):
        engine.answer()
        await asyncio.sleep(0)
    return time.thread_time_ns() - begin


async def requests(state: str, rounds: int) -> None:
    engine, file = Engine(), Path(state) / "bench.yaml"
    text = CONFIG.format(state=state, key=KEY, durability="write", slots=1024)
    file.write_text(text.replace(POOL, "pool: [up], cache: {}}, {name: refused, pool: [up]}]"))
    made = Gateway(load(file, {}, OURS.schemas()), {})
    made.fleet.registry._client_factory = lambda spec, address: engine  # type: ignore[assignment,return-value]
    made.fleet.start_probing = lambda: None  # type: ignore[method-assign]
    await made.start()
    decide = made.plane.current().authorizer
    made.plane.current().authorizer = Visible(decide)
    listener = ListenerState(made.plane, AsgiApplication(DataApplication(made.plane, Health(made.plane))), is_inference)
    server_state: Any = type("State", (), {"connections": set(), "total_requests": 0})()
    connections = [Connection(listener, server_state) for _ in range(CONNECTIONS)]
    transports = [Transport() for _ in connections]
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)  # type: ignore[arg-type]
    gc.collect()
    gc.freeze()
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, (data, status) in KINDS.items():
            if kind == "hit, streamed":
                continue  # the engine of the bench has no events
            taken[kind].append(await round_of(connections, engine, data, transports) / 1000 / CONNECTIONS)
            assert transports[0].last.startswith(status), transports[0].last[:200]
    refused = min(taken["refused"])
    for kind, times in taken.items():
        if times:
            print(
                f"{kind:8s} smallest {min(times):6.1f} us  median {statistics.median(times):6.1f} us  {min(times) / refused:.2f} x refused"
            )
    print(made.caches.statistics()["m1"])
    await made.aclose()


class Visible:
    """The authoriser of the gateway, to which one model is known that nobody may use."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.decide = own.decide

    def may_see(self, principal: Any, model: str, version: str = "") -> bool:
        return model == "refused" or bool(self._own.may_see(principal, model, version))


def store(entries: int) -> None:
    """Keys as the cache has them, values of 1 KiB that do not compress, each an object of its own."""
    answers = AnswerStore(Bounds(entries=entries, bytes=1 << 40, compress_above=0), "lru", time.monotonic)
    gc.collect()
    before = resident()
    began = time.thread_time()
    for number in range(entries):
        answers.store(key(number), os.urandom(1024), tenant="acme", ttl=3600.0, epoch=0)
    spent = time.thread_time() - began
    each = (resident() - before) / entries
    counted = answers.statistics()
    memory = f"{each:.0f} bytes of memory each, {counted.bytes / entries:.0f} as counted"
    print(f"{entries:,} answers of 1 KiB: {memory}; {spent / entries * 1e6:.2f} us to store")
    wanted = [key(random.randrange(entries)) for _ in range(200_000)]
    began = time.thread_time()
    for one in wanted:
        assert answers.find(one) is not None
    print(f"a look-up: {(time.thread_time() - began) / len(wanted) * 1e6:.2f} us")
    began = time.thread_time()
    slices, more = 0, True
    answers.purge(tenant="acme")
    longest = time.thread_time() - began
    while more:
        at = time.thread_time()
        more = answers.sweep()
        slices, longest = slices + 1, max(longest, time.thread_time() - at)
    print(f"a purge of a tenant with all: {time.thread_time() - began:.2f} s in {slices} slices, the longest {longest * 1e3:.1f} ms")
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


def key(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=32).digest()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["requests", "store"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.what == "store":
        store(arguments.entries)
        return
    print("the hot path", "is compiled" if active() else "runs from its sources")
    with tempfile.TemporaryDirectory() as state:
        uvloop.run(requests(state, arguments.rounds))


if __name__ == "__main__":
    main()
