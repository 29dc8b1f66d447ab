"""Engines that the gateway places, under kill -9 of their machines: what clients lose, for how long a machine that is gone is still in
rotation, and when the engine has its copies again.

    python -m loadtests.machines.moves [--machines 3] [--kills 20] [--copies 2] [--clients 4] [--lease 1.5] [--reassign 2] [--seed 1]

A gateway and so many machines, on this machine as if they were others; they have no engines of their own, and the gateway has as many of
them start the demo model as there are to be copies. In turns a machine that has it is killed with its sidecar, and started again once the
engine is ready elsewhere. `out`: from the kill until its endpoint gets no more requests. `moved`: from the kill until as many copies as
before are ready. Requests without a byte of their answer are tried elsewhere: none may be lost. Exits with 1 where one is, where a machine
was in rotation for more than 2 s, or where an engine was not moved.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from loadtests.cluster.evidence import arguments, table
from loadtests.machines.kills import Clients
from tests.e2e.adminapi import admin
from tests.e2e.harness import DEMO_MODEL, Gatehouse
from tests.e2e.joining import JoinedMachine, gateway_config, token
from tests.waiting import until

MIB = 1024 * 1024
MOST_OUT = 2.0


def main() -> None:
    given = arguments(
        __doc__, machines=3, kills=20, copies=2, clients=4, workers=2, lease=1.5, reassign=2.0, seed=1, limit=220.0
    ).parse_args()
    chance, begin, out, moved = Random(given.seed), time.monotonic(), list[float](), list[float]()
    place = {"runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 256, "copies": given.copies}
    accepts = {"memory_bytes": 512 * MIB, "disk_bytes": 512 * MIB}
    with tempfile.TemporaryDirectory(prefix="gh") as folder:
        directory = Path(folder)
        config = gateway_config(directory / "state", f"{round(given.lease * 1000)}ms", place=place)
        config["machines"]["reassign"] = f"{round(given.reassign * 1000)}ms"
        arguments_ = ["--workers", str(given.workers)] if given.workers else []
        with Gatehouse(directory, config, arguments=arguments_) as gatehouse, admin(gatehouse) as api:

            def ready() -> set[str]:
                items = api.get("/endpoints").json()["items"]
                return {one["name"].partition("@")[2] for one in items if one["state"] == "ready" and "@" in one["name"]}

            text = token(gatehouse)["token"]
            names = [f"gpu-{n + 1}" for n in range(given.machines)]
            machines = {name: JoinedMachine(directory / "m", name, [], accepts=accepts).start(gatehouse.admin_url, text) for name in names}
            try:
                until(lambda: len(ready()) == given.copies, 60, "the engine's copies")
                clients = Clients(gatehouse, given.clients, 0)
                while len(moved) < given.kills and time.monotonic() - begin < given.limit:
                    name = chance.choice(sorted(ready()))
                    since = time.monotonic()
                    machines[name].kill()
                    until(lambda gone=name: gone not in ready(), 30, "the end of its requests")  # type: ignore[misc]
                    out.append(time.monotonic() - since)
                    until(lambda: len(ready()) == given.copies, 60, "its copies elsewhere")
                    moved.append(time.monotonic() - since)
                    machines[name].start(gatehouse.admin_url)
                    until(lambda gone=name: api.get(f"/machines/{gone}").json()["state"] == "there", 30, "its return")  # type: ignore[misc]
                clients.end()
            finally:
                for machine in machines.values():
                    machine.stop()
    lost = clients.codes.total() - clients.codes[200]
    for what, found in (("out", out), ("moved", moved)):
        table([{"what": what, "kills": len(found), "median s": round(statistics.median(found), 2), "longest s": round(max(found), 2)}])
    table([{"requests": clients.codes.total(), "lost": lost}])
    if clients.reasons:
        print("lost:", dict(clients.reasons))
    if lost or max(out) > MOST_OUT or len(moved) < given.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
