"""How long a revocation takes to be obeyed at another replica, with hints, without, and when the connection that hears them has died.

    python -m loadtests.store.hints [--trials 200] [--interval 0.5]

Two replicas of the store in one process on a real PostgreSQL, each with its own cache of keys, poller and hints, wired as in a gateway. The
time is from the return of the revocation to the moment when the other replica has forgotten the key. `half dead`: a proxy begins to swallow
what goes over the listening connection just before the revocation, and nothing else. Prints a Markdown table; exits with 1 when a p99 is
above a second.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.core.storage import KeySettings
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer
from gateway.identity import keys
from gateway.identity.stored import StoredKeys
from gateway.store.feed import CHANGE, ChangePoller
from gateway.store.hints import Hint
from gateway.store.postgres_hints import PostgresHints
from gateway.store.store import Store
from loadtests.store.keys import percentile, table_of
from tests.cluster.proxy import Network, Proxy
from tests.integration.postgres import USER, PostgresServer

PEPPER: Final = "a pepper for measuring, 32 characters"
PEER: Final = Peer("192.0.2.1")
LIMIT_MS: Final = 1000.0


class Replica:
    """listen: where the connection that hears hints goes; None: it has no hints."""

    def __init__(self, url: str, directory: Path, interval: float, listen: str | None) -> None:
        self.store, feed, self._tasks = Store(url, directory, keys, given_pepper=PEPPER), LocalFeed(), TaskOwner("replica")
        self.keys = StoredKeys(self.store.find_key, self._tasks)
        self.poller = ChangePoller(self.store, feed, interval)
        self.store.subscribe(self.poller.written)
        feed.subscribe(self._heard)
        self.ear: PostgresHints | None = None
        if listen is not None:
            self.other = Store(listen, directory, keys, given_pepper=PEPPER)
            self.ear = self.other.hints(f"{id(self):x}", self._hint, self._sure)
            assert self.ear is not None
            self.poller.unhinted = self.ear.verify

    def _heard(self, change: Change) -> None:
        if change[1] == CHANGE:
            self.keys.changed(change[2].name, change[2].action)
        else:
            self.keys.clear()

    def _hint(self, hint: Hint) -> None:
        self.poller.hinted(hint.seq)

    def _sure(self) -> None:
        assert self.ear is not None
        self.poller.relaxed = self.ear.sure
        self.poller.look()

    async def start(self) -> Replica:
        await self.store.start()
        await self.poller.start()
        if self.ear is not None:
            self.ear.start()
            await self.certain()
        return self

    async def certain(self) -> None:
        while self.ear is not None and not self.ear.sure:
            await asyncio.sleep(0.01)

    async def aclose(self) -> None:
        if self.ear is not None:
            await self.ear.aclose()
            await self.other.aclose()
        await self.poller.aclose()
        await self._tasks.aclose()
        await self.store.aclose()


async def trial(here: Replica, there: Replica, pause: float, way: Proxy | None) -> float:
    """Milliseconds from the revocation to its effect."""
    record, secret = await here.store.create_key("t", KeySettings(models=("*",)), actor="x")
    key, digest = secret.reveal(), keys.digest(secret.reveal())
    while there.poller.position < here.poller.position:  # the news that the key was made has it looked up again
        await asyncio.sleep(0.001)
    answer = there.keys.lookup(digest, key, PEER)
    if answer is not None and not hasattr(answer, "tenant"):
        await answer
    await asyncio.sleep(pause)
    assert there.keys.remembered(digest, PEER) is not None
    if way is not None:
        await asyncio.to_thread(way.partition)
    await here.store.revoke_key(record.id, actor="x")
    began = time.perf_counter()
    while there.keys.remembered(digest, PEER) is not None:
        await asyncio.sleep(0.0005)
    took = (time.perf_counter() - began) * 1000
    if way is not None:
        await asyncio.to_thread(way.heal)
        await there.certain()
    return took


async def measure(server: PostgresServer, interval: float, trials: int) -> list[dict[str, object]]:
    chance, rows = random.Random(1), []
    network = Network()
    for name, count in (("hints", trials), ("no hints", trials), ("half dead", max(1, trials // 10))):
        url = server.database()
        way = network.proxy(str(server.directory / ".s.PGSQL.5432"))
        listen = {
            "hints": url,
            "no hints": None,
            "half dead": f"postgresql://{USER}@127.0.0.1:{way.port}/{url.rsplit('/', 1)[1].partition('?')[0]}",
        }
        with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as directory:
            here = await Replica(url, Path(directory), interval, None).start()
            there = await Replica(url, Path(directory), interval, listen[name]).start()
            times = [await trial(here, there, chance.random() * interval, way if name == "half dead" else None) for _ in range(count)]
            await there.aclose()
            await here.aclose()
        way.close()
        rows.append(
            {
                "at the other replica": name,
                "trials": count,
                "p50, ms": percentile(times, 0.5),
                "p99, ms": percentile(times, 0.99),
                "max, ms": max(times),
            }
        )
    network.close()
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trials", type=int, default=200)
    arguments.add_argument("--interval", type=float, default=0.5)
    given = arguments.parse_args()
    server = PostgresServer().start()
    try:
        rows = asyncio.run(measure(server, given.interval, given.trials))
    finally:
        server.remove()
    print(table_of(rows))
    if any(float(str(row["p99, ms"])) > LIMIT_MS for row in rows if row["at the other replica"] != "half dead"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
