"""One fault after another, drawn by chance, under load: does the cluster come back each time, and what did each fault cost?

    python -m loadtests.cluster.storm [--faults 20] [--rate 200] [--workers 2] [--overlap 1] [--seed 1]

Load goes through haproxy; the client repeats what failed before its answer began. `--overlap 2` strikes twice before anything is mended.
After each round the cluster must be whole again within a minute: both replicas get traffic, every worker serves, a new key works at all of
them and is refused by all once it is revoked. Prints a row for each kind of fault, and exits with 1 when the cluster did not come back, a
request was lost for good before its answer began, or an audit log does not verify. The seed tells the faults, so a run can be repeated.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from loadtests.cluster.evidence import arguments, header, outcomes, reasons, table, verified
from tests.cluster.cluster import NAMES, Cluster, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY
from tests.waiting import until

WHOLE_SECONDS = 60.0
HELD_SECONDS = 3.0
"""How long something stays frozen or cut off."""


class Storm:
    """The faults. Each method is one: it strikes, waits as long as it lasts, and takes back what does not end by itself."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance

    def faults(self) -> dict[str, Callable[[], None]]:
        made: dict[str, Callable[[], None]] = {
            "worker killed": lambda: self._signal(self._worker(), signal.SIGKILL),
            "worker asked to end": lambda: self._signal(self._worker(), signal.SIGTERM),
            "worker frozen": lambda: self._frozen(self._worker()),
            "control process frozen": lambda: self._frozen(self._replica().pid),
            "upgrade": self._upgrade,
            "replica killed": self._killed,
            "replica restarted": self._restarted,
            "reload": lambda: self._signal(self._replica().pid, signal.SIGHUP),
            "PostgreSQL restarted": self._postgres,
            "PostgreSQL cut off from one": lambda: self._cut("partition"),
            "connections to PostgreSQL reset": lambda: self._cut("reset"),
            "Redis frozen": self._redis,
        }
        return (
            made if self._cluster.workers else {name: fault for name, fault in made.items() if "worker" not in name and name != "upgrade"}
        )

    def _replica(self) -> Replica:
        return self._cluster.replicas[self._chance.choice(NAMES)]

    def _worker(self) -> int:
        return self._chance.choice(self._replica().workers() or [0])

    def _signal(self, pid: int, number: int) -> None:
        if pid:
            os.kill(pid, number)

    def _frozen(self, pid: int) -> None:
        self._signal(pid, signal.SIGSTOP)
        time.sleep(HELD_SECONDS)
        self._signal(pid, signal.SIGCONT)

    def _upgrade(self) -> None:
        replica = self._replica()
        before = set(replica.workers())
        self._signal(replica.pid, signal.SIGUSR2)
        until(lambda: not before & set(replica.workers()) or not replica.runs(), WHOLE_SECONDS, "the end of the old workers")

    def _killed(self) -> None:
        replica = self._replica()
        ours = replica.processes()
        replica.kill()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ours), 45, "the end of a killed replica's processes")
        replica.start()

    def _restarted(self) -> None:
        replica = self._replica()
        if (code := replica.stop()) != 0:
            raise AssertionError(f"a replica ended with {code}:\n" + "\n".join(replica.lines[-20:]))
        replica.start()

    def _postgres(self) -> None:
        self._cluster.postgres.stop()
        time.sleep(1)
        self._cluster.postgres.start()

    def _cut(self, how: str) -> None:
        way = self._replica().ways["postgres"]
        getattr(way, how)()
        if how != "reset":
            time.sleep(HELD_SECONDS)
        way.heal()

    def _redis(self) -> None:
        self._cluster.redis.freeze()
        time.sleep(HELD_SECONDS)
        self._cluster.redis.thaw()


def whole(cluster: Cluster) -> float:
    """Waits until the cluster is whole again; the seconds. Raises AssertionError."""
    begin = time.monotonic()
    cluster.mend()
    until(lambda: cluster.haproxy.up() == set(NAMES), WHOLE_SECONDS, "both replicas behind haproxy")
    for replica in cluster.replicas.values():
        while not replica.all_there():
            time.sleep(0.2)
            assert time.monotonic() - begin < WHOLE_SECONDS, f"{replica.name} has not all its workers:\n" + "\n".join(replica.lines[-20:])
        until(lambda replica=replica: replica.readiness()[1]["store"], WHOLE_SECONDS, "the store")
    while not key_everywhere(cluster):
        time.sleep(0.2)
        assert time.monotonic() - begin < WHOLE_SECONDS, "connections to the workers end"
    return time.monotonic() - begin


def key_everywhere(cluster: Cluster) -> bool:
    """Whether a key works at each worker and is refused at each once it is revoked; False when a worker has left meanwhile. Raises
    AssertionError when it does not, or is not."""
    id, secret = cluster.a.make_key()
    with cluster.at_each_worker(cluster.a) as here, cluster.at_each_worker(cluster.b) as there:
        lines = [*here.values(), *there.values()]
        try:
            assert [line.chat(secret) for line in lines] == [200] * len(lines), "a new key does not work everywhere"
            cluster.b.revoke(id)
            for line in lines:
                until(lambda line=line: line.chat(secret) == 401, 10, "the refusal of a revoked key")
        except (OSError, HTTPException):
            return False
    return True


def strike(storm: Storm, names: list[str], load: Load, label: str) -> str:
    """Returns what went wrong, or nothing."""
    load.phase(label)
    try:
        for name in names:
            storm.faults()[name]()
    except ProcessLookupError:
        pass  # another fault was faster
    except AssertionError as error:
        return f"{label}: {error}"
    return ""


def row(label: str, account: dict[str, Any], back: float | None) -> dict[str, Any]:
    return {
        "fault": label.partition(": ")[2],
        "whole again after, s": "NEVER" if back is None else back,
        "sent": account["sent"],
        "ok at once": account["ok"] - account["retried"],
        "when repeated": account["retried"],
        "failed": reasons(account["failed"]),
        "p99, ms": account["p99"],
        "max, ms": account["max"],
    }


def main() -> None:
    given = arguments(__doc__, faults=20, rate=200, overlap=1, retries=3, seed=1).parse_args()
    chance = random.Random(given.seed)
    wrong: list[str] = []
    back: dict[str, float | None] = {}
    with Cluster(given.workers or None) as cluster:
        header(cluster)
        storm = Storm(cluster, chance)
        kinds = list(storm.faults())
        order = [kind for _ in range(-(-given.faults * given.overlap // len(kinds))) for kind in chance.sample(kinds, len(kinds))]
        with Load([cluster.haproxy.port], KEY, rate=given.rate, streams=given.streams, retries=given.retries) as load:
            time.sleep(1)
            for number in range(given.faults):
                names = order[number * given.overlap : (number + 1) * given.overlap]
                label = f"{number + 1}: {', '.join(names)}"
                problem = strike(storm, names, load, label)
                back[label] = None
                try:
                    back[label] = whole(cluster)
                except AssertionError as error:
                    problem = f"{problem}\n{label}: {error}"
                if problem:
                    wrong.append(problem)
        table([row(label, load.account[label], seconds) for label, seconds in back.items() if label in load.account])
        table([outcomes(load.total)])
        logs = [verified(replica) for replica in cluster.replicas.values()]
        table(logs)
    wrong += [f"the audit log of {log['audit log of']} does not verify" for log in logs if log["verifies"] != "yes"]
    lost = [f for f in load.total["failures"] if not f["ok"] and f["reason"] not in ("cut", "error event")]
    wrong += [f"lost: {one}" for one in lost[:10]]
    print("\n".join(wrong) or "nothing was lost before its answer began, and the cluster came back each time")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
