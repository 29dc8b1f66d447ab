"""Clock steps: one of two replicas on one Redis has a wall clock that steps by an hour, forth and back, while both are hammered.

    python -m loadtests.limits.clock --library /usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 [--seconds 6] [--step 3600]

The library is libfaketime (Debian: `libfaketime`); it steps the wall clock of one gateway (with workers) and leaves its monotonic clock,
as a step of a machine's clock does. A rate, a monthly budget, a rolling budget and a rate over a day are counted: each must admit what it
allows, no more and, of what never comes back, no less. Prints one line of JSON; exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, external
from tests.fakes.hammer import hammer, request_bytes

RATE: Final = 50
BURST: Final = 10
DAY: Final = 300
ROLLING: Final = 200
LASTING: Final = 100
LIMITS: Final = [
    {"name": "rate", "match": {"key": "test"}, "requests": {"rate": RATE, "per": "1s", "burst": BURST}},
    {"name": "day", "match": {"key": "other"}, "budget": {"amount": DAY, "unit": "requests", "window": "month"}},
    {"name": "rolling", "match": {"key": "narrow"}, "budget": {"amount": ROLLING, "unit": "requests", "window": {"rolling": "30m"}}},
    {"name": "lasting", "match": {"key": "a-admin"}, "requests": {"rate": LASTING, "per": "1d"}},
]


def gateway(directory: Path, port: int, redis: RedisServer, environ: dict[str, str], workers: int) -> Gatehouse:
    directory.mkdir()
    config = adminapi.config(
        directory / "state",
        port,
        engines=[external("fake", port, slots=256)],
        models=[{"name": "m1", "pool": ["fake"]}],
        redis={"url": f"unix://{redis.socket}", "timeout": "1s"},
        limits=LIMITS,
    )
    for key in config["identity"]["api_keys"]["static"]:
        key["models"] = ["*"]
    return Gatehouse(directory, config, environ, ["--workers", str(workers)] if workers else [])


async def hammered(gateways: list[Gatehouse], seconds: float, clock: Path, steps: list[float]) -> tuple[dict[str, int], float]:
    """What each key was admitted in all, and how long that took."""

    async def stepping() -> None:
        for step in steps:
            await asyncio.sleep(seconds / (len(steps) + 1))
            clock.write_text(f"{step:+.0f}")

    keys = {"rate": KEY, "day": OTHER_KEY, "rolling": NARROW_KEY, "lasting": adminapi.KEYS["admin"]}
    calls = [hammer(one.url, request_bytes(one.url, key), 4, seconds) for key in keys.values() for one in gateways]
    *found, _ = await asyncio.gather(*calls, stepping())
    began, ended = min(one.began for one in found), max(one.ended for one in found)
    counts = [len(one.admitted) for one in found]
    return {name: sum(counts[2 * place : 2 * place + 2]) for place, name in enumerate(keys)}, ended - began


def measured(library: str, seconds: float, step: float, workers: int) -> dict[str, Any]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatehouse-")))
        redis = RedisServer(directory).start()
        stack.callback(redis.stop)
        engine = EngineThread()
        stack.callback(engine.close)
        clock = directory / "clock"
        clock.write_text("+0")
        faked = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        made = [gateway(directory / "true", engine.port, redis, {}, 0), gateway(directory / "faked", engine.port, redis, faked, workers)]
        for one in made:
            one.launch()
            stack.callback(one.stop)
        for one in made:
            one.await_start()
        admitted, took = asyncio.run(hammered(made, seconds, clock, [step, -step, 0.0, -step, step]))
        stepped = [record["time"] for record in made[1].audit() if record["kind"] == "intent"]
    most = BURST + RATE * took
    lasting = LASTING + LASTING * took / 86_400
    fine = (
        admitted["rate"] <= most
        and admitted["day"] == DAY
        and admitted["rolling"] == ROLLING
        and int(lasting) >= admitted["lasting"] >= LASTING
    )
    return {
        "seconds": round(took, 2),
        "step": step,
        "clock_spread": round(max(stepped) - min(stepped), 1),
        "rate": {"admitted": admitted["rate"], "allowed": round(most, 1)},
        "month": {"admitted": admitted["day"], "allowed": DAY},
        "rolling": {"admitted": admitted["rolling"], "allowed": ROLLING},
        "per_day": {"admitted": admitted["lasting"], "allowed": round(lasting, 1)},
        "fine": fine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--step", type=float, default=3600.0)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    found = measured(given.library, given.seconds, given.step, given.workers)
    print(json.dumps(found))
    sys.exit(0 if found["fine"] else 1)


if __name__ == "__main__":
    main()
