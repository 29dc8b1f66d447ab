"""Rolling restarts of replicas behind haproxy, under load: SIGTERM with `listen.drain_delay`, the end, the start, the next one.

    python -m loadtests.cluster.rolling [--restarts 20] [--rate 1000] [--workers 2] [--drain-delay 1s]

Nothing is repeated by the client. Exits with 1 when a request failed, a stream was cut, or a replica did not end with 0.
"""

from __future__ import annotations

import time

from loadtests.cluster.evidence import arguments, header, outcomes, spread, table, verified
from tests.cluster.cluster import NAMES, Cluster
from tests.cluster.load import Load
from tests.e2e.harness import KEY
from tests.waiting import until


def main() -> None:
    given = arguments(__doc__, restarts=20, drain_delay="1s", pause=0.3).parse_args()
    left: list[float] = []
    back: list[float] = []
    codes: list[int] = []
    with Cluster(given.workers or None, listen={"drain_delay": given.drain_delay}) as cluster:
        header(cluster)
        with Load([cluster.haproxy.port], KEY, rate=given.rate, streams=given.streams) as load:
            time.sleep(2)
            for number in range(given.restarts):
                replica, begin = cluster.replicas[NAMES[number % len(NAMES)]], time.monotonic()
                codes.append(replica.stop())
                left.append(time.monotonic() - begin)
                begin = time.monotonic()
                replica.start()
                until(lambda: cluster.haproxy.up() == set(NAMES), 30, "both replicas")
                back.append(time.monotonic() - begin)
                time.sleep(given.pause)
            time.sleep(1)
        table([outcomes(load.total)])
        table([{"of a replica": "from SIGTERM to its end", **spread(left)}, {"of a replica": "from its start to traffic", **spread(back)}])
        logs = [verified(replica) for replica in cluster.replicas.values()]
        table(logs)
        for one in load.total["failures"][:10]:
            print(f"  {one}")
        print(f"exit codes other than 0: {sum(code != 0 for code in codes)} of {len(codes)}")
    raise SystemExit(load.total["ok"] != load.total["sent"] or any(codes) or any(log["verifies"] != "yes" for log in logs))


if __name__ == "__main__":
    main()
