"""Joined machines under kill -9 and SIGSTOP: what clients lose, and for how long a machine that is gone is still in rotation.

    python -m loadtests.machines.kills [--machines 3] [--kills 20] [--workers 2] [--clients 6] [--streams 2] [--lease 1.5] [--seed 1]

A gateway and so many machines, each a process with a sidecar of the demo model, on this machine as if they were others. In turns a
machine is killed (and started again without a token) or stopped by SIGSTOP, as one that hangs or cannot be reached (and continued).
`out`: from the signal until the gateway's endpoint is no longer ready; a killed machine refuses connections, a stopped one is out when
its lease is over. Requests that have no byte of their answer are tried elsewhere: none may be lost. A stream that has begun ends with
an error: counted apart. Exits with 1 where a request is lost, or a machine was in rotation for more than half a second beyond its lease.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from loadtests.cluster.evidence import arguments, table
from tests.e2e.adminapi import admin
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.joining import JoinedMachine, gateway_config, token
from tests.waiting import until

TOKENS, STREAMED = 8, 64
SLACK = 0.5


class Clients:
    """Ask in threads until `over`. codes: of whole answers; 0 where the connection broke. streams: `whole`, `broken`, or a status."""

    def __init__(self, gatehouse: Gatehouse, plain: int, streaming: int) -> None:
        self.gatehouse, self.over = gatehouse, threading.Event()
        self.codes, self.streams = Counter[int](), Counter[str]()
        self.reasons = Counter[str]()
        self.threads = [threading.Thread(target=self._ask) for _ in range(plain)] + [
            threading.Thread(target=self._stream) for _ in range(streaming)
        ]
        for thread in self.threads:
            thread.start()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.gatehouse.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False)

    def _ask(self) -> None:
        body = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS}
        with self._client() as client:
            while not self.over.is_set():
                try:
                    answer = client.post("/v1/chat/completions", json=body)
                except httpx.HTTPError as error:
                    self.codes[0] += 1
                    self.reasons[type(error).__name__] += 1
                    continue
                self.codes[answer.status_code] += 1
                if answer.status_code != 200:
                    self.reasons[answer.text[:120]] += 1

    def _stream(self) -> None:
        body = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": STREAMED, "stream": True}
        with self._client() as client:
            while not self.over.is_set():
                try:
                    answer = client.post("/v1/chat/completions", json=body)
                except httpx.HTTPError:
                    self.streams["broken"] += 1
                    continue
                if answer.status_code != 200:
                    self.streams[str(answer.status_code)] += 1
                else:
                    self.streams["broken" if '"error"' in answer.text else "whole"] += 1

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def main() -> None:
    given = arguments(__doc__, machines=3, kills=20, clients=6, streams=2, lease=1.5, seed=1, limit=220.0).parse_args()
    chance, begin = random.Random(given.seed), time.monotonic()
    out: dict[str, list[float]] = {"killed": [], "stopped": []}
    with tempfile.TemporaryDirectory(prefix="gh") as folder:
        directory = Path(folder)
        config = gateway_config(directory / "state", f"{round(given.lease * 1000)}ms")
        arguments_ = ["--workers", str(given.workers)] if given.workers else []
        with Gatehouse(directory, config, arguments=arguments_) as gatehouse, admin(gatehouse) as api:

            def ready() -> set[str]:
                return {one["name"] for one in api.get("/endpoints").json()["items"] if one["state"] == "ready"}

            text = token(gatehouse)["token"]
            machines = [JoinedMachine(directory / "m", f"gpu-{n + 1}").start(gatehouse.admin_url, text) for n in range(given.machines)]
            try:
                until(lambda: len(ready()) == given.machines, 120, "the machines")
                clients = Clients(gatehouse, given.clients, given.streams)
                while sum(map(len, out.values())) < given.kills and time.monotonic() - begin < given.limit:
                    machine = chance.choice(machines)
                    how = "killed" if len(out["killed"]) <= len(out["stopped"]) else "stopped"
                    assert machine.process is not None
                    since = time.monotonic()
                    os.kill(machine.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                    until(lambda name=f"chat@{machine.name}": name not in ready(), 60, "the end of its requests")  # type: ignore[misc]
                    out[how].append(time.monotonic() - since)
                    time.sleep(0.3)
                    if how == "killed":
                        machine.process.wait()
                        machine.start(gatehouse.admin_url)
                    else:
                        os.kill(machine.process.pid, signal.SIGCONT)
                    until(lambda: len(ready()) == given.machines, 60, "its return")
                clients.end()
            finally:
                for machine in machines:
                    machine.stop()
    asked, lost = clients.codes.total(), clients.codes.total() - clients.codes[200]
    rows = [
        {
            "how": how,
            "times": len(found),
            "out, median s": round(statistics.median(found), 3),
            "out, longest s": round(max(found), 3),
        }
        for how, found in out.items()
        if found
    ]
    table(rows)
    table([{"requests": asked, "lost": lost, **{f"streams {what}": count for what, count in sorted(clients.streams.items())}}])
    if clients.reasons:
        print("lost:", dict(clients.reasons))
    if lost or max(map(max, (found for found in out.values() if found))) > given.lease + SLACK:
        raise SystemExit(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
