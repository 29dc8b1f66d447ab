"""Engines that gateways place, under kill -9 of all that has a part in serving them: what clients lose, for how long an engine that is gone
is still in rotation, and when there are as many copies as before again.

    python -m loadtests.machines.moves [--machines 3] [--kills 20] [--copies 2] [--clients 4] [--lease 1.5] [--reassign 2] [--seed 1]
        [--replicas 1] [--workers 2] [--kinds machine,supervisor,sidecar]

Gateways and so many machines, on this machine as if they were others; they have no engines of their own, and one gateway has as many of
them start the demo model as there are to be copies. In turns one of these is killed, of a machine that has a copy:

    machine             the supervisor and its sidecar at once; it comes again once the engine is ready elsewhere
    supervisor          the supervisor alone, whose sidecar must end by itself; it is started again at once
    sidecar             the engine's process alone, which its supervisor starts again
    gateway             the gateway that places, with its workers; it is started again (with --replicas 2)
    machine+gateway     both at once (with --replicas 2)

`out`: from the kill until the engine's endpoint gets no more requests, at every gateway that is left. `whole`: from the kill until as many
copies as before are ready there. `reassigned`: kills after which another machine has the copy. Requests without a byte of their answer are
tried elsewhere: none may be lost.

Replicas share a PostgreSQL, and machines join both. Clients whose connection is refused or breaks ask the other gateway, as behind a load
balancer; `broken`: answers that had begun at a gateway that was killed. Exits with 1 where a request is lost, where an engine was in
rotation for more than 2 s, where copies are missing, where more machines have the engine in the end than there are copies, or where a
process of the engine is left that no supervisor has.
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
from tests.cluster.machine import Ports, children, command, family
from tests.e2e.adminapi import admin
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, alive
from tests.e2e.joining import JoinedMachine, gateway_config, token
from tests.e2e.replicas import PEPPER
from tests.integration.postgres import PostgresServer
from tests.waiting import until

MIB = 1024 * 1024
MOST_OUT, GIVE_UP = 2.0, 10.0
GATEWAYS = ("gateway", "machine+gateway")
KINDS = ("machine", "supervisor", "sidecar", *GATEWAYS)


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


MODULE = "engines.llamacpp"
"""Of the engine's process."""


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

    def engine(self, name: str) -> set[int]:
        """Process ids of the engine at a machine."""
        process = self.machines[name].process
        assert process is not None
        return {pid for pid in children(process.pid) if MODULE in command(pid)}

    def placer(self) -> Gatehouse | None:
        """The gateway that holds the engine's lease."""
        for gateway in self.gateways:
            with admin(gateway) as api:
                told = api.get("/replicas").json()
            own = next(one["id"] for one in told["items"] if one["here"])
            if any((job["name"], job["holder"]) == ("place/chat", own) for job in told["jobs"]):
                return gateway
        return None


def kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Kills:
    """One after another. out, whole: seconds by kind. reassigned: how often by kind."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        self._fleet, self._chance = fleet, chance
        self.out: dict[str, list[float]] = {}
        self.whole: dict[str, list[float]] = {}
        self.reassigned = Counter[str]()

    def one(self, kind: str) -> None:
        fleet = self._fleet
        before = fleet.ready(fleet.gateways[0])
        name, machines, left = self._chance.choice(sorted(before)), fleet.machines, list(fleet.gateways)
        gone = until(fleet.placer, what="a gateway that places") if kind in GATEWAYS else None
        if gone is not None:
            left.remove(gone)
        process, engine = machines[name].process, fleet.engine(name)
        assert process is not None and engine, f"{name} has no engine to kill"
        since = time.monotonic()
        if gone is not None and gone.process is not None:
            kill(family(gone.process.pid))
            gone.process.wait()
        if kind.startswith("machine"):
            kill({process.pid, *engine})
        elif kind != "gateway":
            kill({process.pid} if kind == "supervisor" else engine)
        if kind == "supervisor":
            machines[name].kill()
            fleet.start(name)
        if kind != "gateway":
            end = since + GIVE_UP
            until(lambda: time.monotonic() > end or not any(name in fleet.ready(one) for one in left), what="the end of its requests")
            self.out.setdefault(kind, []).append(time.monotonic() - since)
        if kind.startswith("machine"):
            machines[name].kill()
        until(lambda: fleet.whole(left), 60, "as many copies as before")
        self.whole.setdefault(kind, []).append(time.monotonic() - since)
        self.reassigned[kind] += fleet.ready(left[0]) != before
        if kind.startswith("machine"):
            fleet.start(name)
        if gone is not None:
            gone.start()
        until(lambda: fleet.whole(fleet.gateways) and all(_hears(one, name) for one in fleet.gateways), 60, "its return")
        until(lambda: kind == "gateway" or not any(map(alive, engine)), 60, "the end of an engine that nobody has")

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "killed": kind,
                "times": len(whole),
                **_spread("out", self.out.get(kind, [])),
                **_spread("whole", whole),
                "reassigned": self.reassigned[kind],
            }
            for kind, whole in self.whole.items()
        ]


def _spread(what: str, found: list[float]) -> dict[str, Any]:
    if not found:
        return {f"{what}, median s": "", f"{what}, longest s": ""}
    return {f"{what}, median s": round(statistics.median(found), 2), f"{what}, longest s": round(max(found), 2)}


def main() -> None:
    given = arguments(
        __doc__, machines=3, kills=20, copies=2, clients=4, workers=2, replicas=1, lease=1.5, reassign=2.0, seed=1, limit=220.0, kinds=""
    ).parse_args()
    kinds = given.kinds.split(",") if given.kinds else [kind for kind in KINDS if given.replicas > 1 or kind not in GATEWAYS]
    if set(kinds) - set(KINDS) or (given.replicas < 2 and set(kinds) & set(GATEWAYS)):
        raise SystemExit(f"--kinds takes {', '.join(KINDS)}; the last two need --replicas 2")
    with tempfile.TemporaryDirectory(prefix="gh") as folder, ExitStack() as stack:
        store = None
        if given.replicas > 1:
            server = PostgresServer().start()
            stack.callback(server.remove)
            store = server.database()
        fleet, begin = Fleet(given, Path(folder), store), time.monotonic()
        for gateway in fleet.gateways:
            gateway.launch()
            stack.callback(gateway.stop)
        for gateway in fleet.gateways:
            gateway.await_start()
        fleet.join()
        stack.callback(lambda: [machine.stop() for machine in fleet.machines.values()])
        until(lambda: fleet.whole(fleet.gateways), 60, "the engine's copies")
        kills, clients = Kills(fleet, Random(given.seed)), Clients([gateway.url for gateway in fleet.gateways], given.clients)
        made = 0
        for kind in cycle(kinds):
            if made == given.kills or time.monotonic() - begin > given.limit:
                break
            kills.one(kind)
            made += 1
        clients.end()
        running = {gateway.admin_url: sorted(fleet.ready(gateway)) for gateway in fleet.gateways}
    table(kills.rows())
    broken = clients.codes.pop("broken", 0)
    lost = clients.codes.total() - clients.codes["200"] + (0 if set(GATEWAYS) & set(kinds) else broken)
    table([{"kills": made, "requests": clients.codes.total(), "lost": lost, "broken": broken}])
    if clients.reasons:
        print("lost:", dict(clients.reasons))
    longest = max(max(found) for found in kills.out.values()) if kills.out else 0.0
    if lost or longest > MOST_OUT or made < given.kills or any(len(one) != given.copies for one in running.values()):
        print("ready in the end:", running)
        raise SystemExit(1)


def _hears(gateway: Gatehouse, machine: str) -> bool:
    with admin(gateway) as api:
        return bool(api.get(f"/machines/{machine}").json()["state"] == "there")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
