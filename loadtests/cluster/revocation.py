"""From a revocation to its refusal at every worker of both replicas.

    python -m loadtests.cluster.revocation [--trials 200] [--workers 2] [--rate 100] [--wait 0]

A key is made at one replica (they take turns) and used all the time on one connection to each worker of both; then it is revoked there.
The time is from the admin API's answer to the first 401 of each worker; after that, nobody may accept the key again. Light load goes
through haproxy meanwhile. `--wait 5` has the admin API answer once every worker of its replica refuses: then none of them may accept a
request that begins after the answer. Exits with 1 when the p99 of the last refusal is above a second, or a key was accepted that must not.
"""

from __future__ import annotations

import argparse
import http.client
import random
import threading
import time
from dataclasses import dataclass

from loadtests.cluster.evidence import arguments, header, outcomes, spread, table
from tests.cluster.cluster import Cluster, Line, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY

AFTER = 8
"""Further requests at each replica, each on a connection of its own, that must be refused once all workers have refused."""
LIMIT = 1.0


class Watch(threading.Thread):
    """Uses a key at one worker until it is refused there; `status` is the refusal's, or 0 when the connection ended without one.

    accepted: when the last accepted request began. refused: when the refusal had come."""

    def __init__(self, line: Line, secret: str, pause: float) -> None:
        super().__init__(daemon=True)
        self._line, self._secret, self._pause = line, secret, pause
        self.refused = self.accepted = 0.0
        self.status = 200
        self.used = threading.Event()

    def run(self) -> None:
        end = time.monotonic() + 30
        while self.status == 200 and time.monotonic() < end:
            begin = time.monotonic()
            try:
                self.status = self._line.chat(self._secret)
            except (OSError, http.client.HTTPException):
                self.status = 0
            self.refused = time.monotonic()
            self.accepted = begin if self.status == 200 else self.accepted
            self.used.set()
            time.sleep(self._pause)


@dataclass
class Trial:
    """Seconds until the refusal at each worker of the replica that revokes, and of the other one. wrong: what was accepted, or failed, when
    it had to be refused. in_force: whether the admin API said so."""

    here: list[float]
    there: list[float]
    wrong: list[str]
    in_force: bool


def trial(cluster: Cluster, here: Replica, there: Replica, chance: random.Random, given: argparse.Namespace) -> Trial:
    id, secret = here.make_key()
    with cluster.at_each_worker(here) as ours, cluster.at_each_worker(there) as theirs:
        watches = [Watch(line, secret, given.poll) for line in (*ours.values(), *theirs.values())]
        for watch in watches:
            watch.start()
        for watch in watches:
            watch.used.wait(10)
        time.sleep(chance.random() * 0.1)
        in_force = here.revoke(id, given.wait)
        revoked = time.monotonic()
        for watch in watches:
            watch.join(60)
    again = [cluster.chat(secret, url=replica.url).status_code for replica in (here, there) for _ in range(AFTER)]
    wrong = [f"{status} at or after a refusal" for status in (*again, *(watch.status for watch in watches)) if status != 401]
    if in_force:
        wrong += ["accepted after in force" for watch in watches[: len(ours)] if watch.accepted > revoked]
    took = [max(0.0, watch.refused - revoked) for watch in watches]
    return Trial(took[: len(ours)], took[len(ours) :], wrong, in_force)


def main() -> None:
    given = arguments(__doc__, trials=200, rate=100, poll=0.005, wait=0.0, seed=1).parse_args()
    chance = random.Random(given.seed)
    trials: list[Trial] = []
    with Cluster(given.workers or None) as cluster:
        header(cluster)
        with Load([cluster.haproxy.port], KEY, rate=given.rate, streams=given.streams) as load:
            for number in range(given.trials):
                here, there = (cluster.a, cluster.b) if number % 2 else (cluster.b, cluster.a)
                trials.append(trial(cluster, here, there, chance, given))
        last = [max(*one.here, *one.there) for one in trials]
        rows = [
            ("workers of the replica that revoked", [took for one in trials for took in one.here]),
            ("workers of the other one", [took for one in trials for took in one.there]),
            ("the last of all workers", last),
        ]
        table([{"from the revocation's answer to the refusal": name, "times": len(values), **spread(values)} for name, values in rows])
        table([outcomes(load.total)])
        wrong = [what for one in trials for what in one.wrong]
        said = sum(one.in_force for one in trials)
        print(
            f"{given.trials} trials; {said} answers said that it was in force; accepted, or failed, when it had to be refused: {len(wrong)}"
        )
        for what in sorted(set(wrong)):
            print(f"  {wrong.count(what)} times: {what}")
    late = spread(last)["p99, ms"] > LIMIT * 1000
    raise SystemExit(bool(wrong) or late or load.total["ok"] != load.total["sent"])


if __name__ == "__main__":
    main()
