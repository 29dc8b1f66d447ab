"""Worker kills under load: whom they cost what, and whether the audit log holds.

    python -m loadtests.cluster.kills [--kills 50] [--rate 1000] [--workers 2] [--pause 0.5]

One replica of the cluster gets constant load directly; its workers, drawn by chance, are killed with SIGKILL. Each is frozen for a moment
before, to read which connections it holds: a request may only fail on one of these. What failed before its answer began is repeated by the
client, as the OpenAI clients do, and must then succeed. Exits with 1 when a request failed elsewhere, one was lost for good before its
answer began, a worker was not replaced, the audit log does not verify, an answered request is not in it, or more requests have no outcome
there than attempts failed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

from loadtests.cluster.evidence import arguments, header, outcomes, spread, table, verified
from tests.cluster.cluster import Cluster, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY
from tests.waiting import until

NOTICE = 2.0
"""Seconds after a kill within which its victims' failures show."""


@dataclass
class Kill:
    """at: monotonic seconds. ports: the clients' ends of the worker's connections. replaced: seconds until as many workers served again."""

    at: float
    ports: set[int]
    replaced: float = 0.0


def kill_one(replica: Replica, chance: random.Random) -> Kill:
    victim = chance.choice(replica.workers())
    os.kill(victim, signal.SIGSTOP)
    ports = replica.served_by(victim)
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    kill = Kill(at, ports)
    until(lambda: victim not in replica.workers(), 30, "the end of the worker")
    while not replica.all_there():  # seldom, because it costs every worker a scrape
        time.sleep(0.1)
        assert time.monotonic() - at < 60, "the worker has no successor"
    kill.replaced = time.monotonic() - at
    return kill


def elsewhere(failures: list[dict[str, Any]], kills: list[Kill]) -> list[dict[str, Any]]:
    """The failures that no kill explains."""
    return [f for f in failures if not any(f["port"] in kill.ports and kill.at <= f["failed"] <= kill.at + NOTICE for kill in kills)]


def main() -> None:
    given = arguments(__doc__, kills=50, pause=0.5, retries=2, seed=1).parse_args()
    chance, kills = random.Random(given.seed), list[Kill]()
    with Cluster(given.workers or None) as cluster:
        header(cluster)
        replica = cluster.a
        with Load([replica.port], KEY, rate=given.rate, streams=given.streams, retries=given.retries) as load:
            time.sleep(2)
            for _ in range(given.kills):
                kills.append(kill_one(replica, chance))
                time.sleep(given.pause * (0.5 + chance.random()))
            time.sleep(1)
        strangers = elsewhere(load.total["failures"], kills)
        lost = [f for f in load.total["failures"] if not f["ok"] and f["reason"] not in ("cut", "error event")]
        table([outcomes(load.total)])
        held = sorted(len(kill.ports) for kill in kills)
        table([{"kills": len(kills), "connections of the killed, median": held[len(held) // 2], **spread(kill.replaced for kill in kills)}])
        with contextlib.suppress(AssertionError):  # the records of the last worker killed are recovered by whoever takes its id
            until(lambda: verified(replica)["left in journals"] == 0, 10)
        log = verified(replica)
        table([log])
        print(
            f"attempts that failed on connections of no killed worker: {len(strangers)}; lost for good before an answer began: {len(lost)}"
        )
        for one in [*strangers[:5], *lost[:5]]:
            print(f"  {one}")
    attempts = len(load.total["failures"])
    unrecorded = load.total["ok"] > log["intents"] or log["of them without an outcome"] > attempts
    wrong = bool(strangers or lost or unrecorded or log["verifies"] != "yes")
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
