"""The staging fleet: two replicas with workers, PostgreSQL and Redis behind haproxy, before engines that fail in every way.

    python -m loadtests.staging [--workers 2] [--run-time 3m] [--users 40] [--html FILE]

Three engines serve one model. One is well; one answers 503 now and then, resets connections before its answer and is slow to begin; one
breaks streams off in the middle, inside an event, and hangs. While Locust runs (loadtests/profiles/staging.conf), every twenty seconds a
fault befalls the fleet: a worker is killed, Redis freezes for two seconds, a replica restarts. The exit code is Locust's: 1 where a
threshold was passed.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from loadtests import locust_run
from tests.cluster.cluster import ADMIN_KEY, Cluster
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, external
from tests.fakes.answers import Step, parse_script

EVERY = 20.0
"""Seconds between faults."""
WELL = "normal:chunks=16,interval=0.02"
SCRIPTS = {
    "well": WELL,
    "shaky": f"{WELL}*12; status:code=503; {WELL}*9; reset:at=before; {WELL}*7; normal:chunks=16,interval=0.02,delay=1.5",
    "broken": f"{WELL}*40; reset:at=mid,chunks=16; {WELL}*30; half_event; {WELL}*20; hang:at=before",
}


class Forever(deque[Step]):
    """A script that begins again at its end."""

    def popleft(self) -> Step:
        step = super().popleft()
        self.append(step)
        return step


def engines() -> dict[str, EngineThread]:
    """One scripted engine for each script, on threads of this process."""
    found = {}
    for name, script in SCRIPTS.items():
        found[name] = EngineThread()
        found[name].engine.script = Forever(parse_script(script))
    return found


def parts(fleet: dict[str, EngineThread]) -> dict[str, Any]:
    """What both replicas are configured with beside the cluster's own."""
    return {
        "engines": [external(name, engine.port, slots=64, timeouts={"first_byte": "5s", "total": "20s"}) for name, engine in fleet.items()],
        "models": [{"name": "demo-chat", "pool": list(fleet)}],
        "limits": [{"name": "per-tenant", "per": "tenant", "match": {"tenant": "globex"}, "requests": {"rate": 20, "per": "1s"}}],
    }


def faults(cluster: Cluster) -> list[Callable[[], None]]:
    def kill_worker() -> None:
        victims = cluster.a.workers()
        if victims:
            os.kill(random.choice(victims), signal.SIGKILL)

    def freeze_redis() -> None:
        cluster.redis.freeze()
        time.sleep(2)
        cluster.redis.thaw()

    def restart_replica() -> None:
        cluster.b.stop()
        cluster.b.start()

    return [kill_worker, freeze_redis, restart_replica]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--run-time", default="3m")
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--html", default="")
    parser.add_argument("--no-faults", action="store_true", help="nothing befalls the replicas; the engines fail all the same")
    options = parser.parse_args()
    fleet = engines()
    try:
        with Cluster(workers=options.workers, **parts(fleet)) as cluster:
            return drive(cluster, options, fleet)
    finally:
        for engine in fleet.values():
            engine.close()


def drive(cluster: Cluster, options: argparse.Namespace, fleet: dict[str, EngineThread]) -> int:
    locust_run.make_tenant(cluster.a.admin_url, ADMIN_KEY)
    environment = {
        "GATEHOUSE_URL": cluster.url,
        "GATEHOUSE_KEY": KEY,
        "GATEHOUSE_GREEDY_KEY": OTHER_KEY,
        "GATEHOUSE_ADMIN_URL": cluster.a.admin_url,
        "GATEHOUSE_ADMIN_KEY": ADMIN_KEY,
        "GATEHOUSE_MODEL": "demo-chat",
    }
    extra = ["--html", options.html] if options.html else []
    locust = locust_run.start("staging", environment, "--users", str(options.users), "--run-time", options.run_time, *extra)
    happens, next_fault = faults(cluster), time.monotonic() + EVERY
    while locust.poll() is None:
        time.sleep(0.5)
        for engine in fleet.values():
            engine.engine.requests.clear()  # it remembers each
        if not options.no_faults and time.monotonic() >= next_fault:
            happens[0]()
            happens.append(happens.pop(0))
            next_fault = time.monotonic() + EVERY
    cluster.mend()
    return locust.returncode


if __name__ == "__main__":
    sys.exit(main())
