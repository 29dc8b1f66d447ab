"""How exactly limits in Redis count while everything around them fails, and what they cost.

    python -m loadtests.limits.redis exact [--seconds 20] [--processes 4] [--clients 64] [--modes closed local open]
                                           [--rate 100] [--burst 50] [--precision leased]
                                           [--events calm stop failover kill]
    python -m loadtests.limits.redis cost [--requests 200000] [--at-once 32] [--precision exact|leased]

exact: so many processes, each with so many clients, hammer one bucket (100/s, burst 50, unless another is given) in a Redis that this
script starts: undisturbed; with Redis stopped for 5 seconds (SIGSTOP); with a Sentinel failover (the master is killed); with one of the
processes killed. For each `on_failure`. Prints a Markdown table: what was admitted; what the limit allows from the first moment to the
last (burst + rate x time); `excess`: by how much it was exceeded between any two moments, by the clock of Redis; `of what it could be`:
without the time in which nothing could be admitted. Exits with 1 when more was admitted than the limit allows with `closed`, or less than
98 % of it undisturbed.

cost: the processor's time of one request with four limits, so many at once, coalesced: without and with the settlement, in this process and
in Redis. `loadtests.limits.reconcile --redis` is the third part: requests with cancels, kills, engine failures and stalls of Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.specs.redis import RedisSpec
from gateway.limits.bucket import Shape
from gateway.limits.redis.book import BucketBook
from loadtests.limits import redis_cost
from loadtests.limits.redis_worker import created, read
from tests.cluster.redis_servers import Watched
from tests.cluster.servers import ROOT, RedisServer

STOPPED: Final = 5.0
"""Seconds."""
MODES = ("closed", "local", "open")
EVENTS = ("calm", "stop", "failover", "kill")


@dataclass
class Run:
    """One Redis and the processes that hammer it."""

    directory: Path
    redis: dict[str, Any]
    arguments: argparse.Namespace
    mode: str

    def __post_init__(self) -> None:
        self.files = [self.directory / f"admitted{number}" for number in range(self.arguments.processes)]
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        for file in self.files:
            created(file)
            settings = {
                "redis": self.redis,
                "file": str(file),
                "mode": self.mode,
                **{name: getattr(self.arguments, name) for name in ("processes", "clients", "seconds", "rate", "burst", "precision")},
            }
            command = [sys.executable, "-m", "loadtests.limits.redis_worker", json.dumps(settings)]
            with (self.directory / "log").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
                )
        for process in self.processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit((self.directory / "log").read_text())

    def go(self) -> float:
        """The beginning, by the clock of the epoch."""
        ahead = 0.2
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{time.monotonic() + ahead}\n")
            process.stdin.flush()
        return time.time() + ahead

    def results(self) -> list[dict[str, Any]]:
        """Of those that were not killed."""
        found = []
        for process in self.processes:
            text, _ = process.communicate(timeout=60)
            if process.returncode == 0:
                found.append(json.loads(text))
        return found

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)


@contextmanager
def surroundings(event: str, directory: Path) -> Iterator[tuple[dict[str, Any], Callable[[Run, float], None]]]:
    """Where Redis is, and what happens after so many seconds of the run."""
    if event == "failover":
        watched = Watched(directory).start()
        watched.notice_soon()
        try:
            where = {"sentinels": [f"127.0.0.1:{watched.sentinel.port}"], "master": "main"}
            yield where, lambda run, seconds: (time.sleep(seconds / 3), watched.master.stop(signal.SIGKILL))[1]
        finally:
            watched.stop()
        return
    server = RedisServer(directory).start()

    def happen(run: Run, seconds: float) -> None:
        time.sleep(seconds / 3)
        if event == "stop":
            server.freeze()
            time.sleep(min(STOPPED, seconds / 3))
            server.thaw()
        elif event == "kill":
            os.kill(run.processes[0].pid, signal.SIGKILL)

    try:
        yield {"url": f"unix://{server.socket}"}, happen
    finally:
        server.stop()


def excess(moments: list[int], rate: float, burst: float) -> float:
    """By how much more than burst + rate x time was admitted between any two moments (in microseconds, sorted), at worst."""
    debt = worst = 0.0
    before = moments[0] if moments else 0
    for moment in moments:
        debt = max(0.0, debt - (moment - before) * rate / 1e6) + 1.0
        before = moment
        worst = max(worst, debt - burst)
    return worst


def possible(moments: list[int], ended: float, rate: float, burst: float) -> float:
    """What could have been admitted from the first admission to the end, without pauses longer than it takes the bucket to fill."""
    gaps = [(after - before) / 1e6 for before, after in zip(moments, [*moments[1:], int(ended * 1e6)], strict=True)]
    return burst + rate * sum(min(gap, burst / rate) for gap in gaps)


def exact(arguments: argparse.Namespace) -> int:
    wrong = False
    print(f"the hot path {'is compiled' if active() else 'runs from its sources'}; load {os.getloadavg()[0]:.1f}")
    print(
        "| on_failure | what | admitted | allowed | of it | of what it could be | excess | without Redis | 503 | late "
        "| in hand | slowest ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for event in arguments.events:
        for mode in arguments.modes:
            with tempfile.TemporaryDirectory(prefix="gatehouse-") as name, surroundings(event, Path(name)) as (redis, happen):
                run = Run(Path(name), {**redis, "timeout": arguments.timeout}, arguments, mode)
                try:
                    run.start()
                    began = run.go()
                    happen(run, arguments.seconds)
                    results = run.results()
                    used = asyncio.run(charged(run)) if event == "failover" else None
                finally:
                    run.stop()
                wrong = row(event, mode, run, began, results) or wrong
                if used is not None:
                    forgotten(run, began, used)
    return 1 if wrong else 0


async def charged(run: Run) -> tuple[int, float]:
    """(what the new master has charged, when that was)."""
    where = {"sentinels": tuple(run.redis["sentinels"]), "master": run.redis["master"]}
    rate = RateSpec(rate=run.arguments.rate, burst=run.arguments.burst)
    shape = Shape(LimitSpec(name="hammered", requests=rate))
    (seen,) = await BucketBook(RedisSpec(**where)).look([(shape, ("team", "api_key", "ci"))])
    return seen.amounts[0].used, time.time()


def forgotten(run: Run, began: float, used: tuple[int, float]) -> None:
    """How many admissions the new master does not know of, at least: exactly, where nothing is refilled meanwhile."""
    admitted = sum(len(read(file)) for file in run.files)
    drained = run.arguments.rate * (used[1] - began)
    print(f"admitted {admitted}, charged at the new master {used[0]}, refilled at most {drained:.1f}: ", end="")
    print(f"{max(0.0, admitted - used[0] - drained):.0f} to {max(0, admitted - used[0])} were not replicated", flush=True)


def row(event: str, mode: str, run: Run, began: float, results: list[dict[str, Any]]) -> bool:
    """Prints it; whether it is wrong."""
    found = sorted(one for file in run.files for one in read(file))
    moments, ended = [moment for moment, _ in found], max(one["ended"] for one in results)
    rate, burst = run.arguments.rate, run.arguments.burst
    allowed, could, over = burst + rate * (ended - began), possible(moments, ended, rate, burst), excess(moments, rate, burst)
    local = sum(not by_redis for _, by_redis in found)
    late, unavailable = sum(one["late"] for one in results), sum(one["unavailable"] for one in results)
    in_hand = sum(one["in_hand"] for one in results)
    slowest = max(one["slowest_ms"] for one in results)
    undisturbed = event in ("calm", "kill") and not late
    bound = mode == "closed" or (not late and event != "failover")
    wrong = (bound and len(found) > allowed) or (undisturbed and len(found) < 0.98 * could)
    figures = f"{len(found)} | {allowed:.1f} | {len(found) / allowed:.2%} | {len(found) / could:.2%} | {over:.1f} | {local} | {unavailable}"
    print(f"| {mode} | {event} | {figures} | {late} | {in_hand} | {slowest} |{' **wrong**' if wrong else ''}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("exact")
    one.add_argument("--seconds", type=float, default=20.0)
    one.add_argument("--processes", type=int, default=4)
    one.add_argument("--clients", type=int, default=64)
    one.add_argument("--rate", type=float, default=100)
    one.add_argument("--burst", type=float, default=50)
    one.add_argument("--precision", choices=("exact", "leased"), default="exact")
    one.add_argument("--timeout", type=float, default=0.05, help="redis.timeout in seconds")
    one.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    one.add_argument("--events", nargs="+", choices=EVENTS, default=EVENTS)
    one.set_defaults(run=exact)
    two = commands.add_parser("cost")
    two.add_argument("--requests", type=int, default=200_000)
    two.add_argument("--at-once", type=int, default=32)
    two.add_argument("--precision", choices=("exact", "leased"), help="four limits of rates only, decided so")
    two.add_argument("--rounds", type=int, default=5)
    two.set_defaults(run=redis_cost.cost)
    arguments = parser.parse_args()
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
