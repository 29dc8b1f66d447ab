"""How long the admin API takes for pages of a long list: GET /keys over HTTP, against a real `gatehouse serve`.

    python -m loadtests.store.listing [--keys 100000] [--pages 300]

Prints a Markdown table, milliseconds: pages of 100 one after the other by their cursors, pages filtered by tenant and by state.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from loadtests.store.keys import PEPPER, fill, opened, percentile, table_of
from tests.e2e.harness import Gatehouse, configuration, external

ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"


async def made(directory: Path, count: int) -> None:
    store = opened("sqlite", directory)
    await store.start()
    await fill(store, count)
    await store.aclose()


def pages(client: httpx.Client, count: int, **params: Any) -> list[float]:
    times, cursor = [], None
    for _ in range(count):
        begin = time.perf_counter()
        answer = client.get("/keys", params={**params, "source": "store", "limit": 100, **({"cursor": cursor} if cursor else {})})
        times.append((time.perf_counter() - begin) * 1000)
        answer.raise_for_status()
        assert len(answer.json()["items"]) == 100
        cursor = answer.json()["cursor"]
    return times


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--keys", type=int, default=100_000)
    arguments.add_argument("--pages", type=int, default=300)
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as folder:
        state = Path(folder) / "state"
        state.mkdir()
        asyncio.run(made(state, given.keys))
        config = configuration(state, engines=[external("fake", 9)], models=[{"name": "m1", "pool": ["fake"]}])
        root = {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": ["*"], "roles": ["admin"]}
        config["identity"]["api_keys"]["static"].append(root)
        with Gatehouse(Path(folder), config, {"GATEHOUSE_PEPPER": PEPPER}) as gatehouse:
            headers = {"authorization": f"Bearer {ROOT_KEY}"}
            with httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=30) as client:
                pages(client, 10)
                for name, params in (("all", {}), ("of a tenant", {"tenant": "t"}), ("that are active", {"state": "active"})):
                    times = pages(client, given.pages, **params)
                    row = {f"a page of 100 of {given.keys} keys, ms": name}
                    rows.append({**row, "p50": percentile(times, 0.5), "p95": percentile(times, 0.95), "max": max(times)})
    print(table_of(rows))


if __name__ == "__main__":
    main()
