"""What a request costs with one worker and with several: processor time of the gateway's processes, and their memory.

    python -m loadtests.cluster.cost [--workers 2] [--rate 500] [--seconds 5] [--rounds 3] [--embedded 1]

Constant load goes directly to one replica, `--rate` requests a second for each worker, so that every worker has the same to do: at a low
rate a request costs more, because each event brings a wait and cold caches of its own. Replicas without workers (`--embedded 1`), with one
and with `--workers` take turns, `--rounds` times; the ratio is of the medians. Prints only; the machine decides what the figures are worth.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from loadtests.cluster.evidence import Usage, arguments, header, resident, table
from tests.cluster.cluster import Cluster
from tests.cluster.load import Load
from tests.e2e.harness import KEY


def measure(workers: int | None, given: Any, first: bool) -> dict[str, Any]:
    with Cluster(workers) as cluster:
        if first:
            header(cluster)
        cluster.haproxy.stop()
        cluster.b.stop()
        rate = given.rate * (workers or 1)
        with Load([cluster.a.port], KEY, rate=rate, streams=given.streams) as load:
            time.sleep(1.5)
            load.phase("measured")
            usage = Usage(cluster, load.pid)
            begin = time.monotonic()
            time.sleep(given.seconds)
            row = usage.row(round(rate * (time.monotonic() - begin)))
        account = load.account["measured"]
        memory = resident(cluster)[0]
        ok = f"{account['ok']} of {account['sent']}"
        return {"workers": workers or "embedded", "rate": rate, "ok": ok, "p99, ms": account["p99"], **row, **memory}


def main() -> None:
    given = arguments(__doc__, rate=500, seconds=5.0, rounds=3, embedded=1).parse_args()
    kinds: list[int | None] = [*([None] if given.embedded else []), 1, given.workers]
    rows = [measure(kind, given, not (turn or at)) for turn in range(given.rounds) for at, kind in enumerate(kinds)]
    for row in rows:
        row.pop("resident")
    table(rows)
    cost = {
        row["workers"]: statistics.median(one["gateways, us a request"] for one in rows if one["workers"] == row["workers"]) for row in rows
    }
    print("medians, us a request: " + ", ".join(f"{workers}: {value:.0f}" for workers, value in cost.items()))
    print(f"{given.workers} workers to one: {cost[given.workers] / cost[1]:.3f}")


if __name__ == "__main__":
    main()
