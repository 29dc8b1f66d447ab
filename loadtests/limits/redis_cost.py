"""What a request with four limits in Redis costs: processor time in this process and in Redis."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop
from msgspec.structs import replace

from gateway.app.compiled import active
from gateway.app.limits.shared import SharedLimitsPart
from gateway.core.ports import Reservation
from gateway.core.secret import Secret
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal
from gateway.core.wire import WireApi
from gateway.limits.redis.held import IN_HAND, SharedHeld
from gateway.limits.redis.limiter import RedisLimiter
from policies.limits import LimitRules, estimate
from tests.cluster.servers import RedisServer

MUCH: Final = 1e9
LIMITS: Final = (
    LimitSpec(name="key", requests=RateSpec(rate=MUCH), tokens=RateSpec(rate=MUCH), concurrent=1000),
    LimitSpec(name="tenant", per="tenant", tokens=RateSpec(rate=MUCH, per=60.0)),
    LimitSpec(name="model", per="model", requests=RateSpec(rate=MUCH)),
    LimitSpec(name="all", per="global", concurrent=10_000),
)
"""Four buckets a request; of the first everything is counted."""
RATES: Final = (
    LimitSpec(name="key", requests=RateSpec(rate=MUCH), tokens=RateSpec(rate=MUCH)),
    LimitSpec(name="tenant", per="tenant", tokens=RateSpec(rate=MUCH, per=60.0)),
    LimitSpec(name="model", per="model", requests=RateSpec(rate=MUCH)),
    LimitSpec(name="all", per="global", requests=RateSpec(rate=MUCH)),
)
"""Of which shares can be taken in advance."""


class Bench:
    """So many requests at once: the next ones begin when all of them have been decided and are settled."""

    def __init__(self, limiter: RedisLimiter, at_once: int, settled: bool) -> None:
        self.limiter, self.at_once, self.settled = limiter, at_once, settled
        self.left = 0
        self.done = asyncio.Event()
        self.callers = [Principal(f"key{number % 8}", "team", "api_key", ("*",)) for number in range(at_once)]
        self.request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=40, max_tokens=100)
        self.usage = Usage(38, 61)

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.done.clear()
            self.left = self.at_once
            for caller in self.callers:
                found = self.limiter.reserve(caller, self.request)
                if isinstance(found, Signal):
                    found.add_callback(_Ended(self, found))
                else:
                    assert isinstance(found, SharedHeld) and found.outage == IN_HAND, "Redis is away"
                    self.over(found)
            if self.left:
                await self.done.wait()
            else:
                await asyncio.sleep(0)

    def ended(self, signal: Signal[Reservation]) -> None:
        assert signal.value is not None, signal.error
        self.over(signal.value)

    def over(self, reservation: Reservation) -> None:
        reservation.settle(self.usage if self.settled else None)
        self.left -= 1
        if not self.left:
            self.done.set()


class _Ended:
    __slots__ = ("_bench", "_signal")

    def __init__(self, bench: Bench, signal: Signal[Reservation]) -> None:
        self._bench, self._signal = bench, signal

    def __call__(self) -> None:
        self._bench.ended(self._signal)


def ticks_of(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measured(server: RedisServer, arguments: argparse.Namespace) -> None:
    spec = RedisSpec(url=Secret(f"unix://{server.socket}"), timeout=5.0)
    part = SharedLimitsPart(spec, lambda event, target, detail: None, lambda: 1, lambda name: None)
    await part.start()
    assert server.process is not None
    limits = LIMITS if arguments.precision is None else [replace(limit, precision=arguments.precision) for limit in RATES]
    limiter = RedisLimiter(LimitRules(limits), part.shared, part.pots, estimate=estimate)
    bench = Bench(limiter, arguments.at_once, True)
    await bench.run(50)
    rounds = max(1, arguments.requests // arguments.at_once // arguments.rounds)
    for _ in range(arguments.rounds):
        own, redis, began, calls = time.process_time(), ticks_of(server.process.pid), time.monotonic(), part.shared.called
        await bench.run(rounds)
        own, redis, took = time.process_time() - own, ticks_of(server.process.pid) - redis, time.monotonic() - began
        each, count = 1e6 / (rounds * arguments.at_once), part.shared.called - calls
        print(
            f"| {own * each:.1f} | {redis * each:.1f} | {took * each:.1f} | {rounds * arguments.at_once / max(1, count):.1f} |", flush=True
        )
    await part.aclose()


def cost(arguments: argparse.Namespace) -> int:
    build = "compiled" if active() else "from its sources"
    print(f"the hot path is {build}; {arguments.at_once} at once, four buckets, settled; load {os.getloadavg()[0]:.1f}")
    print("| us of ours a request | us of Redis | us that passed | requests a call |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name:
        server = RedisServer(Path(name)).start()
        try:
            uvloop.run(measured(server, arguments))
        finally:
            server.stop()
    return 0
