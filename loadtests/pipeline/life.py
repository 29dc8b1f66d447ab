"""What a configuration costs beside its requests: start, memory, a reload that changes nothing, a scrape, a listing of endpoints.

The gateway of `loadtests.pipeline.bench`, without sockets and probes, tuned as one that serves. `held` is the longest time for which the
event loop was late while the reload ran, of a task that wants a turn each millisecond; `scrape` is CPU, in a thread.

usage: python -m loadtests.pipeline.life CONFIG [--reloads 2]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app import interpreter
from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.config.load import load
from gateway.telemetry.scraping import exposed_aside
from gateway.wire import yamltree
from loadtests.pipeline.bench import KEY

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


class Lateness:
    """The longest time in milliseconds by which a task that wants a turn each millisecond was late."""

    async def __aenter__(self) -> Lateness:
        self.longest = 0.0
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, (time.monotonic() - begun) * 1e3 - 1.0)


async def measure(config: Path, state: str, reloads: int) -> dict[str, float]:
    environ = {"BENCH_KEY": KEY, "GATEHOUSE__STATE_DIR": state}
    before, begun, clock = resident(), time.process_time(), time.monotonic()
    gateway = Gateway(load(config, environ, OURS.schemas()), environ)
    gateway.fleet.start_probing = lambda: None  # type: ignore[method-assign]
    await gateway.start()
    interpreter.tune(gateway._owner)
    found = {"start_cpu_s": time.process_time() - begun, "start_s": time.monotonic() - clock}
    found["memory_mib"] = resident() - before
    held, spent, took = [], [], []
    for _ in range(reloads):
        begun, clock = time.process_time(), time.monotonic()
        async with Lateness() as late:
            await gateway.changes.reloader.reload()
            took.append(time.monotonic() - clock)
            await asyncio.sleep(0.5)  # what it leaves to be done in the background
        held.append(late.longest)
        spent.append(time.process_time() - begun)
    found |= {"reload_cpu_s": min(spent), "reload_s": min(took), "reload_held_ms": min(held)}
    gc.collect()
    found["memory_after_reloads_mib"] = resident() - before
    begun = time.process_time()
    async with Lateness() as late:
        text, _ = await exposed_aside(gateway.metrics.registry, "")
    found |= {"scrape_cpu_s": time.process_time() - begun, "scrape_held_ms": late.longest, "scrape_kib": len(text) / 1024}
    begun = time.process_time()
    msgspec.json.encode(gateway.fleet.traffic.endpoints())
    found["listing_cpu_ms"] = (time.process_time() - begun) * 1e3
    await gateway.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--reloads", type=int, default=2)
    arguments = parser.parse_args()
    yamltree.MAX_BYTES = yamltree.MAX_NODES = 2**28  # the store, which may hold so much, has no such bounds
    with tempfile.TemporaryDirectory() as state:
        print(msgspec.json.encode(uvloop.run(measure(arguments.config, state, arguments.reloads))).decode())


if __name__ == "__main__":
    main()
