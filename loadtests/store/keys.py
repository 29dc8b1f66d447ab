"""API keys of the store: time of a look-up and memory by the number of keys, and how long a revocation takes to be obeyed.

    python -m loadtests.store.keys [--backend sqlite|postgresql] [--keys 1,10000,1000000] [--trials 200]

Each number of keys is measured in a process of its own, so that memory is its own too. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gateway.core.feed import LocalFeed
from gateway.core.storage import KeySettings
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.identity import keys
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.stored import StoredKeys
from gateway.store.feed import CHANGE, ChangePoller
from gateway.store.store import Store
from gateway.store.tables import keys as table
from tests.integration.postgres import PostgresServer

PEPPER = "a pepper for measuring, 32 characters"
SAMPLE = 1000
BATCH = 20_000
PEER = Peer("192.0.2.1")
ANY = KeySettings(models=("*",))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def place(backend: str) -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as directory:
        if backend == "sqlite":
            yield "sqlite", Path(directory)
            return
        server = PostgresServer().start()
        try:
            yield server.database(), Path(directory)
        finally:
            server.remove()


def opened(url: str, directory: Path) -> Store:
    return Store(url, directory, keys, given_pepper=PEPPER, deadline=60.0)


async def fill(store: Store, count: int) -> list[str]:
    """`count` keys; those of a sample were really made, of the others only the hash matters. Returns the sample."""
    sample = [(await store.create_key("t", ANY, actor="bench"))[1].reveal() for _ in range(min(SAMPLE, count))]
    fixed = {"tenant": "t", "prefix": "gh_xxxxx", "models": ["*"], "operations": [], "cidrs": [], "limits": [], "roles": []}
    fixed |= {"priority": "standard", "description": "", "version": 1, "created": 0.0, "updated": 0.0, "actor": "bench"}
    left = count - len(sample)
    while left > 0:
        rows = [{**fixed, "id": f"key-{os.urandom(8).hex()}", "fingerprint": os.urandom(32)} for _ in range(min(BATCH, left))]

        def insert(connection: sa.Connection, rows: list[dict[str, Any]] = rows) -> None:
            connection.execute(sa.insert(table), rows)

        await store._database.run(insert, write=True, deadline=120.0)
        left -= len(rows)
    return sample


async def timed(calls: list[Awaitable[Any]]) -> list[float]:
    """Milliseconds of each, one after another."""
    times = []
    for call in calls:
        started = time.perf_counter()
        await call
        times.append((time.perf_counter() - started) * 1000)
    return times


def hit_us(cached: StoredKeys, sample: list[str]) -> float:
    """Microseconds of `authenticate` for a remembered key; the best of five rounds."""
    authenticator = ApiKeyAuthenticator([], cached)
    headers = [{b"authorization": b"Bearer " + key.encode(), b"host": b"x"} for key in sample]
    rounds = max(1, 20_000 // len(headers))
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(rounds):
            for one in headers:
                authenticator.authenticate(one, PEER)
        best = min(best, (time.perf_counter() - started) / (rounds * len(headers)))
    return best * 1e6


async def case(backend: str, count: int) -> dict[str, Any]:
    """Everything that is measured with one number of keys."""
    with place(backend) as (url, directory):
        filler = opened(url, directory)
        await filler.start()
        sample = await fill(filler, count)
        await filler.aclose()
        before = resident()
        store, tasks = opened(url, directory), TaskOwner("bench")
        await store.start()
        cached = StoredKeys(store.find_key, tasks)
        random.Random(1).shuffle(sample)
        known = [key for _ in range(SAMPLE // len(sample)) for key in sample]
        found = await timed([store.find_key(b"", key) for key in known])
        unknown = await timed([store.find_key(b"", keys.generate(store._entropy)) for _ in range(SAMPLE)])
        for key in sample:
            answer = cached.lookup(keys.digest(key), key, PEER)
            assert answer is not None and not isinstance(answer, Principal) and await answer is not None
        hit = hit_us(cached, sample)
        pages = await timed([store.list_keys(limit=100, cursor=None) for _ in range(100)])
        deep, cursor = [], None
        for _ in range(min(50, max(1, count // 100))):
            started = time.perf_counter()
            page = await store.list_keys(limit=100, cursor=cursor)
            deep.append((time.perf_counter() - started) * 1000)
            cursor = page.cursor
        result = {
            "keys": count,
            "find p50 ms": percentile(found, 0.5),
            "find p99 ms": percentile(found, 0.99),
            "unknown p50 ms": percentile(unknown, 0.5),
            "hit us": hit,
            "page of 100 p95 ms": percentile(pages + deep, 0.95),
            "memory MiB": (resident() - before) / 2**20,
        }
        await tasks.aclose()
        await store.aclose()
        return result


async def memory(count: int) -> dict[str, Any]:
    """What the cache itself costs when it is full, and what a hit costs then."""

    async def find(digest: bytes, key: str) -> Any:
        return made

    with place("sqlite") as (url, directory):
        store, tasks = opened(url, directory), TaskOwner("bench")
        await store.start()
        record, _ = await store.create_key("tenant-of-the-bench", ANY, actor="bench")
        await store.aclose()
        cached = StoredKeys(find, tasks)
        sample = [keys.generate(store._entropy) for _ in range(count)]
        encode = type(record)
        fields = {name: getattr(record, name) for name in encode.__struct_fields__}
        before = resident()
        for number, key in enumerate(sample):
            made = encode(**{**fields, "id": f"key-{number:016x}", "tenant": f"tenant-{number % 100}", "models": (f"demo-{number % 10}",)})
            answer = cached.lookup(keys.digest(key), key, PEER)
            assert not isinstance(answer, Principal) and answer is not None
            await answer
        after = resident()
        remembered = sample[-min(len(cached), 10_000) :]
        result = {"offered": count, "remembered": len(cached), "MiB": (after - before) / 2**20, "hit us": hit_us(cached, remembered)}
        await tasks.aclose()
        return result


class Replica:
    """A store with its cache and its feed, as a process has them."""

    def __init__(self, url: str, directory: Path, interval: float) -> None:
        self.store, self.tasks, feed = opened(url, directory), TaskOwner("bench"), LocalFeed()
        self.cached = StoredKeys(self.store.find_key, self.tasks)
        self.poller = ChangePoller(self.store, feed, interval)
        self.store.subscribe(self.poller.written)
        feed.subscribe(lambda change: self.cached.changed(change[2].name, change[2].action) if change[1] == CHANGE else self.cached.clear())

    async def start(self) -> None:
        await self.store.start()
        await self.poller.start()

    async def accepts(self, key: str) -> bool:
        answer = self.cached.lookup(keys.digest(key), key, PEER)
        return (answer if answer is None or isinstance(answer, Principal) else await answer) is not None

    async def aclose(self) -> None:
        await self.poller.aclose()
        await self.tasks.aclose()
        await self.store.aclose()


async def revocation(backend: str, trials: int, interval: float) -> dict[str, dict[str, float]]:
    """Milliseconds from the return of `revoke_key` until the key is refused: where it was revoked, and on another replica."""
    times: dict[str, list[float]] = {"the same process": [], "another replica": []}
    chance = random.Random(1)
    with place(backend) as (url, directory):
        here, there = Replica(url, directory, interval), Replica(url, directory, interval)
        await here.start()
        await there.start()
        for _ in range(trials):
            record, secret = await here.store.create_key("t", ANY, actor="bench")
            key = secret.reveal()
            assert await here.accepts(key) and await there.accepts(key)
            await asyncio.sleep(chance.random() * interval)  # any moment between two polls
            await here.store.revoke_key(record.id, actor="bench")
            started = time.perf_counter()
            for name, replica in (("the same process", here), ("another replica", there)):
                while await replica.accepts(key):
                    await asyncio.sleep(0.0005)
                times[name].append((time.perf_counter() - started) * 1000)
        await here.aclose()
        await there.aclose()
    return {name: {f"p{int(s * 100)}": percentile(t, s) for s in (0.5, 0.99)} | {"max": max(t)} for name, t in times.items()}


def table_of(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append(
            "| "
            + " | ".join(
                f"{row[name]:.3g}" if isinstance(row[name], float) else f"{row[name]:,}" if isinstance(row[name], int) else str(row[name])
                for name in head
            )
            + " |"
        )
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--backend", choices=["sqlite", "postgresql"], default="sqlite")
    arguments.add_argument("--keys", default="1,10000,1000000")
    arguments.add_argument("--trials", type=int, default=200)
    arguments.add_argument("--interval", type=float, default=0.5)
    arguments.add_argument("--case", help="one measurement, as JSON (what the others are made of)")
    given = arguments.parse_args()
    if given.case is not None:
        what, _, count = given.case.partition(":")
        print(json.dumps(asyncio.run(memory(int(count)) if what == "memory" else case(given.backend, int(count)))))
        return

    def one(name: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "loadtests.store.keys", "--backend", given.backend, "--case", name]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return result

    counts = [int(count) for count in given.keys.split(",")]
    print(f"{given.backend}\n\n{table_of([one(f'keys:{count}') for count in counts])}\n")
    print(f"the cache alone\n\n{table_of([one(f'memory:{count}') for count in (1, 10_000, 100_000)])}\n")
    latency = asyncio.run(revocation(given.backend, given.trials, given.interval))
    print(table_of([{"revocation to refusal, ms": name, **numbers} for name, numbers in latency.items()]))


if __name__ == "__main__":
    main()
