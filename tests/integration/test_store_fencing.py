"""A process that holds a lease is paused (SIGSTOP) until another one has taken over. When it goes on, nothing of what it writes counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.storage import Lease
from gateway.identity import keys
from gateway.store.store import Store
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture

PEPPER = "p" * 32
HOLDER = """
import asyncio, sys
from pathlib import Path
from gateway.identity import keys
from gateway.store.store import Store

async def main():
    store = Store(sys.argv[1], Path(sys.argv[2]), keys, given_pepper=sys.argv[3], deadline=60.0)
    await store.start()
    lease = await store.take_lease("prune", "paused", float(sys.argv[4]))
    print("holds", lease.fence, flush=True)
    sys.stdin.readline()  # the test pauses the process here
    for write in (store.prune(lease), store.renew_lease(lease, 60.0), store.finish_lease(lease, done=True)):
        try:
            await write
            print("written", flush=True)
        except Exception as error:
            print("refused", type(error).__name__, flush=True)
    await store.aclose()

asyncio.run(main())
"""
HOLD = 1.0


@pytest.fixture
async def store(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Store]:  # noqa: F811
    made = Store(f"{postgres.store()}&connect_timeout=60", tmp_path, keys, given_pepper=PEPPER, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def test_a_paused_holder_writes_nothing_when_it_comes_back(store: Store, tmp_path: Path) -> None:
    url = store._database.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    arguments = [sys.executable, "-c", HOLDER, url, str(tmp_path), PEPPER, str(HOLD)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "holds 1\n"
        os.kill(process.pid, signal.SIGSTOP)
        await store.begin_idempotent("k", "actor", "route", "f", ttl=-1.0)  # over already: pruning would delete it
        taken: Lease | None = None
        async with asyncio.timeout(60):
            while taken is None:  # until the lease has expired by the database's clock
                taken = await store.take_lease("prune", "other", 60.0, period=600.0)
                await asyncio.sleep(0.02)
        process.stdin.write("go on\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(process.stdout.read) == "refused LeaseLost\n" * 3
        assert taken.fence == 2
        await store.prune(taken)
        await store.finish_lease(taken, done=True)
        assert (await store.leases()).leases[0].fence == 2
        assert await store.begin_idempotent("k", "actor", "route", "f") is None
    finally:
        process.kill()
        process.communicate()
