"""Engines that gateways place, under kill -9 of their machines and of the gateway that places: what clients lose, for how long a machine
that is gone is still in rotation, and when the engine has its copies again.

    python -m loadtests.machines.moves [--machines 3] [--kills 20] [--copies 2] [--clients 4] [--lease 1.5] [--reassign 2] [--seed 1]
        [--replicas 1] [--workers 2]

Gateways and so many machines, on this machine as if they were others; they have no engines of their own, and one gateway has as many of
them start the demo model as there are to be copies. In turns a machine that has it is killed with its sidecar, and started again once the
engine is ready elsewhere. `out`: from the kill until its endpoint gets no more requests, at every gateway. `moved`: from the kill until as
many copies as before are ready. Requests without a byte of their answer are tried elsewhere: none may be lost.

With two replicas they share a PostgreSQL, and machines join both. With each third kill of a machine the gateway that places is killed too,
with its workers, and started again at the end. Clients whose connection is refused or breaks ask the other gateway, as behind a load
balancer; `broken`: answers that had begun at a gateway that was killed. Exits with 1 where a request is lost, where a machine was in
rotation for more than 2 s, where an engine was not moved, or where more machines have it in the end than there are copies.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import httpx

from loadtests.cluster.evidence import arguments, table
from loadtests.machines.kills import TOKENS
from tests.cluster.machine import Ports, family
from tests.e2e.adminapi import admin
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse
from tests.e2e.joining import JoinedMachine, gateway_config, token
from tests.e2e.replicas import PEPPER
from tests.integration.postgres import PostgresServer
from tests.waiting import until

MIB = 1024 * 1024
MOST_OUT = 2.0
KILLED_EACH = 3


class Clients:
    """Ask in threads until `end`, each the gateway that answered last. codes: of answers; `broken`: the connection broke in one; `nobody`:
    no gateway took the request."""

    def __init__(self, urls: list[str], count: int) -> None:
        self._urls, self._over = urls, threading.Event()
        self.codes, self.reasons = Counter[str](), Counter[str]()
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, first: int) -> None:
        body = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS}
        turn = cycle(self._urls[first % len(self._urls) :] + self._urls[: first % len(self._urls)])
        url = next(turn)
        with httpx.Client(headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False) as client:
            while not self._over.is_set():
                for _ in self._urls:
                    try:
                        answer = client.post(f"{url}/v1/chat/completions", json=body)
                    except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                        if not isinstance(error, httpx.ConnectError):
                            self.codes["broken"] += 1
                        url = next(turn)
                        continue
                    self.codes[str(answer.status_code)] += 1
                    if answer.status_code != 200:
                        self.reasons[answer.text[:120]] += 1
                    break
                else:
                    self.codes["nobody"] += 1
                    time.sleep(0.05)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Fleet:
    """The gateways and the machines."""

    def __init__(self, given: Any, directory: Path, store: str | None) -> None:
        self.given, self.directory, self.ports = given, directory, Ports()
        place = {"runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 256, "copies": given.copies}
        self.gateways = [self._gateway(number, place, store) for number in range(given.replicas)]
        self.machines: dict[str, JoinedMachine] = {}

    def _gateway(self, number: int, place: dict[str, Any], store: str | None) -> Gatehouse:
        directory = self.directory / f"g{number}"
        directory.mkdir()
        config = gateway_config(directory / "state", f"{round(self.given.lease * 1000)}ms", place=place)
        config["machines"]["reassign"] = f"{round(self.given.reassign * 1000)}ms"
        config["listen"] = {**config["listen"], "data": f"127.0.0.1:{self.ports.take()}", "admin": f"127.0.0.1:{self.ports.take()}"}
        if store is not None:
            config["store"] = {"url": store}
        arguments_ = ["--workers", str(self.given.workers)] if self.given.workers else []
        return Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER}, arguments_)

    def join(self) -> None:
        text, accepts = token(self.gateways[0], uses=100)["token"], {"memory_bytes": 512 * MIB, "disk_bytes": 512 * MIB}
        for number in range(self.given.machines):
            name = f"gpu-{number + 1}"
            self.machines[name] = JoinedMachine(self.directory / "m", name, [], accepts=accepts)
            self.start(name, text)

    def start(self, name: str, text: str | None = None) -> None:
        first, *others = [gateway.admin_url for gateway in self.gateways]
        self.machines[name].start(first, text, *(word for url in others for word in ("--join", url)))

    def ready(self, gateway: Gatehouse) -> set[str]:
        with admin(gateway) as api:
            items = api.get("/endpoints").json()["items"]
        return {one["name"].partition("@")[2] for one in items if one["state"] == "ready" and "@" in one["name"]}

    def whole(self, gateways: list[Gatehouse]) -> bool:
        return all(len(self.ready(gateway)) == self.given.copies for gateway in gateways)

    def placer(self) -> Gatehouse | None:
        """The gateway that holds the engine's lease."""
        for gateway in self.gateways:
            with admin(gateway) as api:
                told = api.get("/replicas").json()
            own = next(one["id"] for one in told["items"] if one["here"])
            if any((job["name"], job["holder"]) == ("place/chat", own) for job in told["jobs"]):
                return gateway
        return None


def kill(gateway: Gatehouse) -> None:
    assert gateway.process is not None
    for pid in family(gateway.process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gateway.process.wait()


def main() -> None:
    given = arguments(
        __doc__, machines=3, kills=20, copies=2, clients=4, workers=2, replicas=1, lease=1.5, reassign=2.0, seed=1, limit=220.0
    ).parse_args()
    chance, begin, out, moved, with_placer = Random(given.seed), time.monotonic(), list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="gh") as folder, ExitStack() as stack:
        store = None
        if given.replicas > 1:
            server = PostgresServer().start()
            stack.callback(server.remove)
            store = server.database()
        fleet = Fleet(given, Path(folder), store)
        for gateway in fleet.gateways:
            gateway.launch()
            stack.callback(gateway.stop)
        for gateway in fleet.gateways:
            gateway.await_start()
        fleet.join()
        stack.callback(lambda: [machine.stop() for machine in fleet.machines.values()])
        until(lambda: fleet.whole(fleet.gateways), 60, "the engine's copies")
        clients = Clients([gateway.url for gateway in fleet.gateways], given.clients)
        while len(out) < given.kills and time.monotonic() - begin < given.limit:
            name, left, gone = chance.choice(sorted(fleet.ready(fleet.gateways[0]))), list(fleet.gateways), None
            if given.replicas > 1 and len(out) % KILLED_EACH == KILLED_EACH - 1 and (gone := fleet.placer()) is not None:
                left.remove(gone)
            since = time.monotonic()
            if gone is not None:
                kill(gone)
            fleet.machines[name].kill()
            until(lambda: not any(name in fleet.ready(one) for one in left), 30, "the end of its requests")  # noqa: B023
            out.append(time.monotonic() - since)
            until(lambda: fleet.whole(left), 60, "its copies elsewhere")  # noqa: B023
            (moved if gone is None else with_placer).append(time.monotonic() - since)
            fleet.start(name)
            if gone is not None:
                gone.start()
            until(lambda: fleet.whole(fleet.gateways) and all(_hears(one, name) for one in fleet.gateways), 60, "its return")  # noqa: B023
        clients.end()
        running = {gateway.admin_url: sorted(fleet.ready(gateway)) for gateway in fleet.gateways}
    for what, found in (("out", out), ("moved", moved), ("moved, placer killed too", with_placer)):
        if found:
            table([{"what": what, "kills": len(found), "median s": round(statistics.median(found), 2), "longest s": round(max(found), 2)}])
    broken = clients.codes.pop("broken", 0)
    lost = clients.codes.total() - clients.codes["200"] + (broken if not with_placer else 0)
    table([{"requests": clients.codes.total(), "lost": lost, "broken": broken}])
    if clients.reasons:
        print("lost:", dict(clients.reasons))
    if lost or max(out) > MOST_OUT or len(out) < given.kills or any(len(one) != given.copies for one in running.values()):
        print("ready in the end:", running)
        raise SystemExit(1)


def _hears(gateway: Gatehouse, machine: str) -> bool:
    with admin(gateway) as api:
        return bool(api.get(f"/machines/{machine}").json()["state"] == "there")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
