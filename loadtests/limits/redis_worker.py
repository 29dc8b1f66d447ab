"""One process that hammers a limit in Redis, as a worker of a gateway would: its own connection, its own part while Redis is away.

Started by loadtests.limits.redis with one argument of JSON. It says `ready`, waits for a line with the moment of the monotonic clock at
which to begin, and prints what came of it. What it admits it writes into a file at once, so that it is known when the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, cast

import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.limits.shared import SharedLimitsPart
from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.ports import Reservation
from gateway.core.secret import Secret
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal, as_future
from gateway.core.wire import WireApi
from gateway.limits.redis.held import IN_HAND, SharedHeld
from gateway.limits.redis.limiter import RedisLimiter
from policies.limits import LimitRules, estimate

ROOM: Final = 1 << 20
"""Admissions that fit into the file."""
ENTRY: Final = struct.Struct("<Q")
LOCAL: Final = 1 << 63
"""Marks what was admitted without Redis: then the moment is by the clock of this machine."""
PAUSE: Final = 0.02
"""Seconds, on average, between a refusal and the next try of a client."""


class Admitted:
    """The moments of what was admitted, in microseconds since the epoch, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ROOM * ENTRY.size)
        self.count = 0

    def add(self, held: SharedHeld) -> None:
        moment = time.time_ns() // 1000 if held.outage == IN_HAND else held.taken_at or LOCAL | time.time_ns() // 1000
        ENTRY.pack_into(self._map, self.count * ENTRY.size, moment)
        self.count += 1


def created(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(ROOM * ENTRY.size)


def read(path: Path) -> list[tuple[int, bool]]:
    """(the moment, whether Redis decided) of each admission."""
    found = [one for (one,) in ENTRY.iter_unpack(path.read_bytes()) if one]
    return [(one & (LOCAL - 1), not one & LOCAL) for one in found]


class Worker:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.admitted = Admitted(Path(settings["file"]))
        self.refused = self.unavailable = 0
        self.said: list[tuple[str, float]] = []
        where = dict(settings["redis"])
        if "url" in where:
            where["url"] = Secret(where["url"])
        spec = RedisSpec(**{**where, "sentinels": tuple(where.get("sentinels", ()))})
        self.part = SharedLimitsPart(spec, self._record, lambda: settings["processes"], lambda name: None)
        rate = RateSpec(rate=settings["rate"], burst=settings["burst"])
        limit = LimitSpec(name="hammered", requests=rate, on_failure=settings["mode"], precision=settings["precision"])
        self.limiter = RedisLimiter(LimitRules([limit]), self.part.shared, self.part.pots, estimate=estimate)
        self.caller = Principal("ci", "team", "api_key", ("*",))
        self.request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, prompt_tokens=1, max_tokens=1)
        self.slowest = 0.0

    def _record(self, event: str, target: str, detail: dict[str, Any]) -> None:
        self.said.append((event, time.time()))

    async def run(self) -> None:
        await self.part.start()
        print("ready", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        began = float(line)
        await asyncio.sleep(max(0.0, began - time.monotonic()))
        end = began + self.settings["seconds"]
        await asyncio.gather(*(self._client(end) for _ in range(self.settings["clients"])))
        ended = time.time()
        await self.part.aclose()
        shared = self.part.shared
        print(
            json.dumps(
                {
                    "ended": ended,
                    "admitted": self.admitted.count,
                    "refused": self.refused,
                    "unavailable": self.unavailable,
                    "slowest_ms": round(self.slowest * 1000, 1),
                    "late": shared.late,
                    "in_hand": shared.advance.decided,
                    "asked": shared.asked,
                    "calls": shared.called,
                    "said": self.said,
                }
            ),
            flush=True,
        )

    async def _client(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            try:
                found = self.limiter.reserve(self.caller, self.request)
                held = cast(Reservation, await as_future(found) if isinstance(found, Signal) else found)
            except LimitExceeded:
                self.refused += 1
                await asyncio.sleep(PAUSE * (0.5 + random.random()))
            except Overloaded:
                self.unavailable += 1
                await asyncio.sleep(PAUSE * (0.5 + random.random()))
            else:
                self.admitted.add(cast(SharedHeld, held))
                held.settle(Usage(1, 1))
                if not cast(SharedHeld, held).taken_at:
                    await asyncio.sleep(PAUSE)  # with `open` nothing else slows it down
            self.slowest = max(self.slowest, time.monotonic() - now - 1.5 * PAUSE)


async def main() -> None:
    await Worker(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    uvloop.run(main())
