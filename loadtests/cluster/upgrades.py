"""Upgrades under load: SIGUSR2 replaces the control process's image and its workers, one by one, in place.

    python -m loadtests.cluster.upgrades [--upgrades 20] [--rate 1000] [--workers 2]

Constant load goes directly to the replica that is upgraded: no other one could help. `long` streams (2 s) outlive an upgrade. Nothing is
repeated by the client. Exits with 1 when a request failed, a stream was cut, an upgrade did not happen or the process id changed.
"""

from __future__ import annotations

import os
import signal
import time

from loadtests.cluster.evidence import arguments, header, outcomes, resident, spread, table, verified
from tests.cluster.cluster import Cluster, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY
from tests.waiting import until


def upgrade(replica: Replica) -> tuple[float, float]:
    """Seconds until as many new workers run, and until the last old one has ended."""
    before, pid, begin = set(replica.workers()), replica.pid, time.monotonic()
    os.kill(pid, signal.SIGUSR2)

    def renewed() -> bool:
        assert replica.process is not None and replica.process.poll() is None, "the control process ended:\n" + "\n".join(
            replica.lines[-20:]
        )
        return len(set(replica.workers()) - before) >= len(before)

    until(renewed, 60, "the new workers")
    new = time.monotonic() - begin
    until(lambda: not set(replica.workers()) & before, 60, "the end of the old workers")
    until(lambda: replica.readiness()[0] == 200, 30, "readiness")
    return new, time.monotonic() - begin


def main() -> None:
    given = arguments(__doc__, upgrades=20, pause=0.3, stream_model="long").parse_args()
    new: list[float] = []
    old: list[float] = []
    with Cluster(given.workers or None) as cluster:
        header(cluster)
        replica = cluster.a
        options = {"rate": given.rate, "streams": given.streams, "stream_model": given.stream_model}
        with Load([replica.port], KEY, **options) as load:
            time.sleep(2)
            for _ in range(given.upgrades):
                one, other = upgrade(replica)
                new.append(one)
                old.append(other)
                time.sleep(given.pause)
            time.sleep(1)
        table([outcomes(load.total)])
        table([{"of an upgrade": "until all workers are new", **spread(new)}, {"of an upgrade": "until the old ones ended", **spread(old)}])
        log = verified(replica)
        table([log])
        table(resident(cluster))
        for failure in load.total["failures"][:10]:
            print(f"  {failure}")
    raise SystemExit(load.total["ok"] != load.total["sent"] or log["verifies"] != "yes")


if __name__ == "__main__":
    main()
