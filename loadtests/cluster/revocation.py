"""From a revocation to its refusal at every worker of both replicas.

    python -m loadtests.cluster.revocation [--trials 200] [--workers 2] [--rate 100]

A key is made at one replica (they take turns) and used all the time on one connection to each worker of both; then it is revoked there.
The time is from the admin API's answer to the first 401 of each worker; after that, nobody may accept the key again. Light load goes
through haproxy meanwhile. Exits with 1 when the p99 of the last refusal is above a second, or a key was accepted after a refusal.
"""

from __future__ import annotations

import http.client
import random
import threading
import time

from loadtests.cluster.evidence import arguments, header, outcomes, spread, table
from tests.cluster.cluster import Cluster, Line, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY

AFTER = 8
"""Further requests at each replica, each on a connection of its own, that must be refused once all workers have refused."""
LIMIT = 1.0


class Watch(threading.Thread):
    """Uses a key at one worker until it is refused there; `status` is the refusal's, or 0 when the connection ended without one."""

    def __init__(self, line: Line, secret: str, pause: float) -> None:
        super().__init__(daemon=True)
        self._line, self._secret, self._pause = line, secret, pause
        self.refused = 0.0
        self.status = 200
        self.used = threading.Event()

    def run(self) -> None:
        end = time.monotonic() + 30
        while self.status == 200 and time.monotonic() < end:
            try:
                self.status = self._line.chat(self._secret)
            except (OSError, http.client.HTTPException):
                self.status = 0
            self.refused = time.monotonic()
            self.used.set()
            time.sleep(self._pause)


def trial(
    cluster: Cluster, here: Replica, there: Replica, chance: random.Random, pause: float
) -> tuple[list[float], list[float], list[int]]:
    """Seconds for each worker of the replica that revokes and of the other one, and statuses other than 401."""
    id, secret = here.make_key()
    with cluster.at_each_worker(here) as ours, cluster.at_each_worker(there) as theirs:
        watches = [Watch(line, secret, pause) for line in (*ours.values(), *theirs.values())]
        for watch in watches:
            watch.start()
        for watch in watches:
            watch.used.wait(10)
        time.sleep(chance.random() * 0.1)
        here.revoke(id)
        revoked = time.monotonic()
        for watch in watches:
            watch.join(60)
    again = [cluster.chat(secret, url=replica.url).status_code for replica in (here, there) for _ in range(AFTER)]
    took = [max(0.0, watch.refused - revoked) for watch in watches]
    return took[: len(ours)], took[len(ours) :], [status for status in (*again, *(watch.status for watch in watches)) if status != 401]


def main() -> None:
    given = arguments(__doc__, trials=200, rate=100, poll=0.005, seed=1).parse_args()
    chance = random.Random(given.seed)
    same: list[float] = []
    other: list[float] = []
    last: list[float] = []
    wrong: list[int] = []
    with Cluster(given.workers or None) as cluster:
        header(cluster)
        with Load([cluster.haproxy.port], KEY, rate=given.rate, streams=given.streams) as load:
            for number in range(given.trials):
                here, there = (cluster.a, cluster.b) if number % 2 else (cluster.b, cluster.a)
                ours, theirs, bad = trial(cluster, here, there, chance, given.poll)
                same += ours
                other += theirs
                last.append(max(*ours, *theirs))
                wrong += bad
        rows = [("workers of the replica that revoked", same), ("workers of the other one", other), ("the last of all workers", last)]
        table([{"from the revocation's answer to the refusal": name, "times": len(values), **spread(values)} for name, values in rows])
        table([outcomes(load.total)])
        print(f"{given.trials} trials; answers at or after a refusal that were not 401: {len(wrong)}")
    p99 = spread(last)["p99, ms"]
    raise SystemExit(bool(wrong) or p99 > LIMIT * 1000 or load.total["ok"] != load.total["sent"])


if __name__ == "__main__":
    main()
