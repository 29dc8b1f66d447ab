"""How long a revocation takes to be obeyed by running gateways: over HTTP, from the admin API's answer to the first 401.

    python -m loadtests.store.revocation [--trials 200] [--interval 0.5]

Two gateways share one PostgreSQL; keys are made and revoked over the admin API of the first, and used on both all the time (one request
after another, each gateway on a connection of its own). Prints a Markdown table and exits with 1 when the p99 of either is above a second,
or when a key was accepted again after it had been refused.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

import httpx

from loadtests.store.keys import percentile, table_of
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external
from tests.integration.postgres import PostgresServer

ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"
PEPPER = "a pepper for measuring, 32 characters"
BODY = {"model": "m1", "messages": [{"role": "user", "content": "Hello!"}]}
AFTER = 5
"""Requests that must be refused after the first refusal."""


def gateway(directory: Path, url: str, engine: EngineThread, interval: float) -> Gatehouse:
    directory.mkdir()
    engines, models = [external("fake", engine.port, slots=64)], [{"name": "m1", "pool": ["fake"]}]
    config = configuration(
        directory / "state", engines=engines, models=models, store={"url": url, "poll_interval": f"{int(interval * 1000)}ms"}
    )
    root = {"id": "root", "key": ROOT_KEY, "tenant": "acme", "models": ["*"], "roles": ["admin"]}
    config["identity"]["api_keys"]["static"].append(root)
    return Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER})


class Watch(threading.Thread):
    """Uses a key until it is refused; `refused_at` is when that answer came."""

    def __init__(self, client: httpx.Client, key: str) -> None:
        super().__init__(daemon=True)
        self._client, self._key = client, key
        self.refused_at = 0.0
        self.accepted = threading.Event()
        self.wrong: list[int] = []

    def _ask(self) -> int:
        return self._client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {self._key}"}).status_code

    def run(self) -> None:
        while (status := self._ask()) == 200:
            self.accepted.set()
        self.refused_at = time.perf_counter()
        self.accepted.set()
        self.wrong = [status for status in (status, *(self._ask() for _ in range(AFTER))) if status != 401]


def trial(admin: httpx.Client, clients: list[httpx.Client], pause: float) -> tuple[list[float], list[int]]:
    """Milliseconds for each gateway, and answers that should have been 401."""
    made = admin.post("/keys", json={"tenant": "acme", "models": ["*"]})
    made.raise_for_status()
    watches = [Watch(client, made.json()["secret"]) for client in clients]
    for watch in watches:
        watch.start()
    for watch in watches:
        watch.accepted.wait(10)
    time.sleep(pause)
    admin.post(f"/keys/{made.json()['id']}/revoke").raise_for_status()
    revoked = time.perf_counter()
    for watch in watches:
        watch.join(30)
    return [max(0.0, watch.refused_at - revoked) * 1000 for watch in watches], [status for watch in watches for status in watch.wrong]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trials", type=int, default=200)
    arguments.add_argument("--interval", type=float, default=0.5)
    given = arguments.parse_args()
    chance = random.Random(1)
    times: list[list[float]] = []
    wrong: list[int] = []
    server, engine = PostgresServer().start(), EngineThread()
    gateways: list[Gatehouse] = []
    try:
        url = server.database()
        with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as directory:
            for number in range(2):
                gateways.append(gateway(Path(directory) / f"g{number}", url, engine, given.interval).start())
            clients = [httpx.Client(base_url=one.url, trust_env=False, timeout=30) for one in gateways]
            headers = {"authorization": f"Bearer {ROOT_KEY}"}
            with httpx.Client(base_url=f"{gateways[0].admin_url}/admin/v1", headers=headers, trust_env=False, timeout=30) as admin:
                for _ in range(given.trials):
                    took, bad = trial(admin, clients, chance.random() * given.interval)
                    times.append(took)
                    wrong += bad
            for client in clients:
                client.close()
            for one in gateways:
                one.stop()
    finally:
        for one in gateways:
            if one.process is not None and one.process.poll() is None:
                one.stop()
        engine.close()
        server.remove()
    rows = []
    for number, name in enumerate(("the gateway that revoked", "the other one")):
        values = [took[number] for took in times]
        rows.append(
            {"revocation to refusal, ms": name, "p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values)}
        )
    print(table_of(rows))
    print(f"\n{given.trials} trials; answers after a refusal that were not 401: {len(wrong)}")
    if wrong or any(row["p99"] > 1000 for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
