"""How long the event loop waits while a closed segment is sealed and compressed: `python -m loadtests.audit.sealing [--records 1000000]`.

A timer of 1 ms runs on a loop; meanwhile a thread of the same process does what the gateway's does with a segment of so many records. How
late the timer is beside a thread that only sleeps says what of it is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.audit.crypto import load_signer
from gateway.audit.keeper import Keeper
from gateway.core.clock import SystemClock
from gateway.core.specs.retention import RetentionSpec
from loadtests.audit.search import Log, write

TICK = 0.001


async def beside(work: Callable[[], object]) -> tuple[float, list[float]]:
    """Seconds that the work took in a thread, and by how many ms each tick of the loop was late."""
    late: list[float] = []
    begun = time.perf_counter()
    done = asyncio.ensure_future(asyncio.to_thread(work))
    while not done.done():
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        late.append((time.perf_counter() - before - TICK) * 1e3)
    await done
    return time.perf_counter() - begun, sorted(late)


def told(name: str, seconds: float, late: list[float]) -> None:
    middle, rare = late[len(late) // 2], late[int(len(late) * 0.999)]
    over = sum(one > 10 for one in late)
    print(
        f"{name}: {seconds:.1f} s, {len(late)} ticks, late by p50 {middle:.2f}, p99.9 {rare:.2f}, longest {late[-1]:.2f} ms; {over} > 10 ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "audit"
        directory.mkdir()
        log = Log(directory, 1 << 40)
        write(log, given.records, random.Random(1))
        log.begin()  # the next segment, whose header goes on from the last line
        log.close()
        signer = load_signer(place)
        keeper = Keeper(directory, Path(place), RetentionSpec(compress_after=0.001), lambda: signer, SystemClock())
        (path,) = directory.glob("audit-gw-00000001.jsonl")
        print(f"a segment of {given.records:,} records, {path.stat().st_size / 1e6:.0f} MB")
        seconds, late = asyncio.run(beside(lambda: time.sleep(10.0)))
        told("beside nothing", seconds, late)
        cpu = time.process_time()
        seconds, late = asyncio.run(beside(keeper.look))
        told("beside sealing and compressing", seconds, late)
        print(f"{(time.process_time() - cpu) / given.records * 1e6:.1f} us of CPU a record, with the ticks'")
        assert not keeper.unsealed and not path.exists(), "it was not sealed and compressed"


if __name__ == "__main__":
    main()
