"""What a batch costs those who wait: latencies of interactive requests with and without a batch, in turns, on the same engine.

    python -m loadtests.batches.interactive [--rate 40] [--rounds 4] [--seconds 10] [--workers 2] [--parallel 16] [--line-seconds 0.1]
        [--busy 0]

One replica serves; requests and lines share an engine with 32 slots, whose answers take `line-seconds` each. The rounds alternate between
none and a batch, so that a slow minute of the machine counts for both. Prints p50, p99 and the maximum of each, the lines that ran
meanwhile, and the processor time of the gateway. busy: processes that do nothing but count beside it, for a machine with other work.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loadtests.batches.site import OVER, Client, cluster
from loadtests.cluster.evidence import arguments, header, table
from tests.cluster.load import Load
from tests.cluster.machine import processor
from tests.e2e.harness import KEY
from tests.waiting import until


@contextmanager
def busy(processes: int) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in made:
            one.kill()
            one.wait()


def main() -> None:
    defaults: dict[str, Any] = {"rate": 40, "rounds": 4, "seconds": 10.0, "parallel": 16, "line_seconds": 0.1, "streams": 0.0, "busy": 0}
    given = arguments(__doc__, **defaults).parse_args()
    with (
        tempfile.TemporaryDirectory() as files,
        cluster(given.workers or None, Path(files), seconds=given.line_seconds, parallel=given.parallel) as site,
    ):
        header(site)
        site.b.stop()
        client, ran, used = Client(site), 0, Counter[str]()

        def phase(name: str) -> None:
            """One whole phase, and what it takes of the processors."""
            before = {"control": processor([site.a.pid]), "workers": processor(site.a.workers())}
            load.phase(name)
            time.sleep(given.seconds)
            used[f"control {name}"] += processor([site.a.pid]) - before["control"]  # type: ignore[assignment]
            used[f"workers {name}"] += processor(site.a.workers()) - before["workers"]  # type: ignore[assignment]

        with busy(given.busy), Load([site.a.port], KEY, rate=given.rate, streams=given.streams) as load:
            load.phase("warm")
            time.sleep(3)
            for _ in range(given.rounds):
                phase("none")
                load.phase("begins")
                id = client.begin(100_000 if given.line_seconds < 0.01 else 20_000)
                until(lambda id=id: client.batch(id)["request_counts"]["completed"], what="the first lines", seconds=60)
                before = client.batch(id)["request_counts"]["completed"]
                phase("batch")
                load.phase("ends")
                ran += client.batch(id)["request_counts"]["completed"] - before
                client("POST", f"/batches/{id}/cancel")
                until(lambda id=id: client.batch(id)["status"] in OVER, what="the end of the batch", seconds=60)
    rows = []
    for name in ("none", "batch"):
        found = load.account[name]
        rows.append(
            {
                "batch": "running" if name == "batch" else "none",
                "requests": found["sent"],
                "failed": sum(found["failed"].values()),
                "p50, ms": found["p50"],
                "p99, ms": found["p99"],
                "max, ms": found["max"],
                "control, %": used[f"control {name}"] / (given.rounds * given.seconds) * 100,
                "workers, %": used[f"workers {name}"] / (given.rounds * given.seconds) * 100,
                "lines a second": ran / (given.rounds * given.seconds) if name == "batch" else 0.0,
            }
        )
    table(rows)
    extra = sum(used[f"{what} batch"] - used[f"{what} none"] for what in ("control", "workers"))
    print(f"processor time of the gateway for a line: {extra / max(ran, 1) * 1000:.2f} ms")
    print(f"p99 with a batch: {rows[1]['p99, ms'] / rows[0]['p99, ms'] - 1:+.1%}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
