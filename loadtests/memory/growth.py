"""How much a gateway grows by each kind of operation: one kind at a time, many hundred times, in minutes instead of the hours of a soak.

    python -m loadtests.memory.growth [--only TEXT ...] [--rounds 8] [--times 1] [--workers N] [--types] [--output FILE]

Starts `gatehouse serve` before an engine of its own, with the soak's policies, and repeats each operation of loadtests.memory.operations in
rounds. After every round it waits until nothing is under way, and notes: memory (what the gateway's processes have written, anonymous,
/proc/PID/smaps_rollup), live blocks of Python's allocator after a collection, bytes in use of the C library's heap, descriptors, threads,
tasks. The first half of the rounds fills caches; growth that goes on in the second half is what a process pays for ever. Live blocks tell
objects that are held from a heap in pieces: memory that grows while they do not is fragmentation.

--only: operations whose names hold one of these texts. --times: so many times the operations of each round. --types: also which types of
objects have become more in the second half. --limit KIB: exit code 1 if an operation's live blocks grow in the second half and its memory
by more than this for 1,000.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests.memory import inside
from loadtests.memory.operations import OPERATIONS, Operation, Site, engine
from loadtests.soak import anonymous, configuration, is_sidecar
from tests.cluster.servers import RedisServer
from tests.e2e.harness import Gatehouse, total
from tests.pki import Authority

KEY, ADMIN = "growth-key-0123456789abcdef0123456789abcdef", "growth-admin-0123456789abcdef0123456789abcd"
REST = 2.0
"""Seconds of rest after each round: the youngest objects are collected every five, sweeps and flushes run every second."""


@dataclass(frozen=True, slots=True)
class State:
    """The gateway at one moment, all its processes together. memory, malloc: KiB."""

    memory: int
    blocks: int
    malloc: int
    free: int
    sqlite: int
    files: int
    threads: int
    tasks: int


def settings(kind: str, folder: Path, port: int, traces: int, authority: Authority | None, redis: RedisServer | None) -> dict[str, Any]:
    """The soak's configuration over an engine at this port, with what the kind of site adds."""
    found = configuration(folder / "state", KEY, ADMIN, redis)
    sidecar = found["engines"][0]
    found["engines"] = [
        {"name": "up", "runtime": "external", "url": f"http://127.0.0.1:{port}", "slots": 1024, "health": {"path": "/health"}}
    ]
    found["models"] = [{"name": "m1", "pool": ["up"]}]
    if kind == "sidecar":
        found["engines"].append({**sidecar, "slots": 2, "restart": {}} if "restart" in sidecar else {**sidecar, "slots": 2})
        found["models"].append({"name": "demo-chat", "pool": [sidecar["name"]]})
    elif kind == "segments":
        found["audit"] |= {"sinks": [{"type": "file", "segment_bytes": "64KiB"}], "checkpoint": {"every": "1s"}}
    elif kind == "traces":
        found["telemetry"]["traces"] = {"endpoint": f"http://127.0.0.1:{traces}", "ratio": 1.0}
    elif authority is not None:
        issued = authority.server()
        found["listen"]["tls"] = {"cert": str(issued.cert), "key": str(issued.key)}
    return found


class Gateway:
    """One gateway and what it is made of."""

    def __init__(self, gatehouse: Gatehouse, sockets: Path) -> None:
        self.gatehouse, self.sockets = gatehouse, sockets
        self.types: Counter[str] = Counter()

    def processes(self) -> list[int]:
        assert self.gatehouse.process is not None
        found = [self.gatehouse.process.pid, *(pid for pid in self.gatehouse.engines() if not is_sidecar(pid))]
        return [pid for pid in found if (self.sockets / f"{pid}.sock").exists()]

    async def settled(self, seconds: float = 90.0) -> None:
        """Waits until nothing is under way, and rests."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(REST / 4)
            scrape = await asyncio.to_thread(self.gatehouse.metrics)
            if total(scrape, "gatehouse_in_flight") == 0 and total(scrape, "gatehouse_connections") == 0:
                break
        await asyncio.sleep(REST)

    async def state(self) -> State:
        await self.settled()
        processes = self.processes()
        told = [await asyncio.to_thread(inside.ask, self.sockets, pid) for pid in processes]
        self.types = sum((Counter(each["types"]) for each in told), Counter())
        return State(
            memory=sum(map(anonymous, processes)) // 1024,
            blocks=sum(each["blocks"] for each in told),
            malloc=sum(each["malloc"] + each["mapped"] for each in told) // 1024,
            free=sum(each["free"] for each in told) // 1024,
            sqlite=sum(each["sqlite"] for each in told) // 1024,
            files=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes),
            threads=sum(len(os.listdir(f"/proc/{pid}/task")) for pid in processes),
            tasks=sum(each["tasks"] for each in told),
        )


def figures(operation: Operation, count: int, states: list[State], types: Counter[str]) -> dict[str, Any]:
    """What the rounds say. states: one before the first round and one after each; the first round is the warm-up."""
    first, middle, last = states[1], states[(len(states)) // 2], states[-1]
    halves = ((len(states)) // 2 - 1) * count, (len(states) - 1 - len(states) // 2) * count

    def growth(name: str, half: int) -> float:
        begin, end = ((first, middle), (middle, last))[half]
        return round((getattr(end, name) - getattr(begin, name)) * 1000 / max(1, halves[half]), 1)

    return {
        "operation": operation.name,
        "site": operation.site,
        "count": count * (len(states) - 1),
        "kib_first": growth("memory", 0),
        "kib_second": growth("memory", 1),
        "blocks_second": growth("blocks", 1),
        "malloc_kib_second": growth("malloc", 1),
        "sqlite_kib_second": growth("sqlite", 1),
        **{name: getattr(last, name) - getattr(first, name) for name in ("files", "threads", "tasks")},
        "types": {name: more for name, more in types.most_common(25) if more > 0},
        "states": [asdict(each) for each in states],
    }


async def repeat(gateway: Gateway, site: Site, operation: Operation, options: argparse.Namespace) -> dict[str, Any]:
    count = int(operation.count * options.times)
    states = [await gateway.state()]
    before: Counter[str] = Counter()
    for number in range(options.rounds):
        await operation.work(site, count)
        states.append(await gateway.state())
        if number + 1 == (options.rounds + 1) // 2:
            before = Counter(gateway.types)
    gateway.types.subtract(before)
    return figures(operation, count, states, gateway.types)


async def on_site(kind: str, operations: list[Operation], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All operations of one kind of site, on one gateway."""
    found = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-")))
        servers = [await asyncio.start_server(engine, "127.0.0.1", 0) for _ in range(2)]
        for server in servers:
            stack.callback(server.close)
        redis = RedisServer(folder) if kind == "redis" else None
        if redis is not None:
            stack.callback(redis.stop)
            redis.start()
        authority = Authority(folder / "ca") if kind == "tls" else None
        ports = [int(server.sockets[0].getsockname()[1]) for server in servers]
        environment = inside.prepare(folder / "inside")
        arguments = ["--workers", str(options.workers)] if options.workers else []
        gatehouse = Gatehouse(folder, settings(kind, folder, ports[0], ports[1], authority, redis), environment, arguments)
        stack.callback(gatehouse.stop)
        await asyncio.to_thread(gatehouse.start, 400)
        site = Site(gatehouse, KEY, ADMIN, authority.context() if authority else None)
        async with site.admin() as client:
            (await client.post("/admin/v1/tenants", json={"name": "acme"})).raise_for_status()
        for operation in operations:
            row = await repeat(Gateway(gatehouse, folder / "inside"), site, operation, options)
            show(row, types=options.types)
            found.append(row)
    return found


def show(row: dict[str, Any], *, types: bool) -> None:
    print(
        f"{row['operation']:34} {row['count']:7} {row['kib_first']:10} {row['kib_second']:10} {row['blocks_second']:10} "
        f"{row['malloc_kib_second']:10} {row['sqlite_kib_second']:10} {row['files']:6} {row['threads']:7} {row['tasks']:5}",
        flush=True,
    )
    for name, more in row["types"].items() if types else ():
        print(f"    {more:8} {name}")


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    chosen = [each for each in OPERATIONS if not options.only or any(text in each.name for text in options.only)]
    names = ("operation", "times", "KiB/1000 1", "KiB/1000 2", "blocks 2", "malloc 2", "sqlite 2", "files", "threads", "tasks")
    print("{:34} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>7} {:>5}".format(*names), flush=True)
    found = []
    for kind in dict.fromkeys(each.site for each in chosen):
        found += await on_site(kind, [each for each in chosen if each.site == kind], options)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--limit", type=float, default=0.0)
    parser.add_argument("--output")
    options = parser.parse_args()
    rows = asyncio.run(run(options))
    if options.output:
        Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [row["operation"] for row in rows if options.limit and row["kib_second"] > options.limit and row["blocks_second"] > 0]
    for name in wrong:
        print(f"NOT REACHED: {name} grows", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
