"""How long a reload holds the event loop, by the size of the configuration.

    python -m loadtests.reload.build [--models 1000] [--engines 200] [--rounds 5]

A whole Gateway in this process (uvloop, no traffic, no sidecars): M models with pools of four of N external engines in the file, one of
each in the store. A ticker on the same loop notes the longest time between two of its turns while each kind of change is put into
force. Prints a Markdown table, milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
import yaml

from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.app.interpreter import GC_THRESHOLDS
from gateway.config.load import load
from gateway.core.storage import KeySettings

KEY = "k" * 40
SETTLE_SECONDS = 30.0


class Ticker:
    """Notes the longest time between two turns of the loop since `reset`, and the most that the loop's thread worked in one (which does not
    count what other threads and processes took)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last, self._work = time.perf_counter(), time.thread_time()
        self.longest = self.busiest = 0.0
        self.turns = 0
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now, work = time.perf_counter(), time.thread_time()
        self.longest, self.busiest = max(self.longest, now - self._last), max(self.busiest, work - self._work)
        self.turns += 1
        self._last, self._work = now, work
        self._loop.call_soon(self._tick)

    def reset(self) -> None:
        self.longest, self.busiest, self.turns = 0.0, 0.0, 0


def config(directory: Path, models: int, engines: int) -> str:
    named = [
        {"name": f"e{n}", "runtime": "external", "url": f"http://127.0.0.1:9/{n}", "health": {"interval": "1h"}} for n in range(engines)
    ]
    pools = [[f"e{(n * 7 + step) % engines}" for step in range(min(4, engines))] for n in range(models)]
    return yaml.safe_dump(
        {
            "version": 1,
            "state_dir": str(directory / "state"),
            "engines": named,
            "models": [{"name": f"m{n}", "aliases": [f"m{n}-latest"], "pool": pool} for n, pool in enumerate(pools)],
            "identity": {"api_keys": {"static": [{"id": "k", "key": KEY, "tenant": "t", "models": ["*"]}]}},
            "audit": {"durability": "async"},
            "store": {"upstreams": ["127.0.0.0/8"]},
        }
    )


async def settled(gateway: Gateway, version: int) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while gateway.changes.version <= version:
        if time.monotonic() > end:
            raise SystemExit("the change was not put into force")
        await asyncio.sleep(0.001)


async def run(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as folder:
        directory = Path(folder)
        (directory / "state").mkdir()
        file = directory / "gatehouse.yaml"
        file.write_text(config(directory, given.models, given.engines))
        gateway = Gateway(load(file, {}, OURS.schemas()), {})
        await gateway.start()
        await gateway.start_engines()
        await measure(gateway, given.rounds)
        await gateway.aclose()


async def measure(gateway: Gateway, rounds: int) -> None:
    store, ticker = gateway.store_link.store, Ticker()
    settings: dict[str, Any] = {"runtime": "external", "url": "http://127.0.0.1:9", "health": {"interval": 3600.0}}
    await store.create("engines", "stored", settings, actor="bench")
    await store.create("models", "stored-model", {"pool": ["stored"]}, actor="bench")
    await store.create("limits", "stored-limit", {"requests": {"rate": 1.0}}, actor="bench")
    await asyncio.sleep(1.0)
    count = 0

    async def key() -> None:
        await store.create_key("t", KeySettings(models=("*",)), actor="bench")

    async def limit() -> None:
        await store.update("limits", "stored-limit", {"requests": {"rate": float(count)}}, actor="bench")

    async def model() -> None:
        await store.update("models", "stored-model", {"pool": ["stored", "e0", "e1", "e2"], "max_tokens": count}, actor="bench")

    async def engine() -> None:
        await store.update("engines", "stored", {**settings, "weight": count}, actor="bench")

    async def file() -> None:
        await gateway.changes.reloader.reload()

    acts: dict[str, Callable[[], Awaitable[None]]] = {
        "a key": key,
        "a limit": limit,
        "a model": model,
        "an engine": engine,
        "the file": file,
    }
    print("| change | work in one turn at most, ms | between two turns at most | until in force | turns meanwhile |\n|---|---|---|---|---|")
    for name, act in acts.items():
        worked, held, took, turns = 0.0, 0.0, 0.0, 0
        for _ in range(rounds):
            count += 1
            await asyncio.sleep(0.3)
            version, begin = gateway.changes.version, time.perf_counter()
            ticker.reset()
            await act()
            if name != "a key":
                await settled(gateway, version)
            await asyncio.sleep(0.05)
            worked, held = max(worked, ticker.busiest), max(held, ticker.longest)
            took, turns = max(took, time.perf_counter() - begin - 0.05), ticker.turns
        print(f"| {name} | {worked * 1000:.2f} | {held * 1000:.2f} | {took * 1000:.0f} | {turns} |")
    print(f"\n{gc.get_stats()[2]['collections']} full collections, thresholds {GC_THRESHOLDS}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", type=int, default=1000)
    arguments.add_argument("--engines", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    uvloop.run(run(arguments.parse_args()))


if __name__ == "__main__":
    main()
