"""A batch under kill -9: of the control process that works on it, and of the workers that run its lines, in turns, at random moments.

    python -m loadtests.batches.kills [--lines 10000] [--kills 20] [--workers 2] [--parallel 16] [--seconds 0.02] [--pause 1.5] [--seed 1]

Two replicas on one PostgreSQL with one directory of files. A control process that was killed is started again; the other replica goes on
meanwhile. Every line must be in the results once; lines that ran again must be told. The engine counts what it was asked: what is beyond
the lines and the told repetitions was run twice unsaid. Exits with 1 where a line is lost, is there twice, or ran unsaid.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from loadtests.batches.site import OVER, Client, cluster, holder
from loadtests.cluster.evidence import arguments, header, table


def main() -> None:
    given = arguments(__doc__, lines=10_000, kills=20, parallel=16, seconds=0.02, pause=1.5, seed=1, limit=500.0).parse_args()
    chance, killed = random.Random(given.seed), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as files,
        cluster(given.workers or None, Path(files), seconds=given.seconds, parallel=given.parallel) as site,
    ):
        header(site)
        client, begin = Client(site), time.monotonic()
        id = client.begin(given.lines)
        while killed.total() < given.kills:
            time.sleep(given.pause * (0.5 + chance.random()))
            batch = client.batch(id)
            if batch["status"] in OVER or time.monotonic() - begin > given.limit:
                break
            replica = holder(site, id)
            if replica is None:
                continue
            workers = replica.workers() if given.workers else []
            if workers and killed["worker"] <= killed["control process"]:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
            else:
                replica.kill()
                replica.start()
                killed["control process"] += 1
        while (batch := client.batch(id))["status"] not in OVER and time.monotonic() - begin < given.limit:
            time.sleep(0.2)
        seconds = time.monotonic() - begin
        done, failed = (client.results(batch[name]) for name in ("output_file_id", "error_file_id"))
        asked = httpx.get(f"{site.engine.url}/counts", trust_env=False).json()["requests"]
    seen = Counter(one["custom_id"] for one in (*done, *failed))
    told, codes = batch["gatehouse"], Counter((one["error"] or {}).get("code", "status") for one in failed)
    lost, twice = given.lines - len(seen), sum(count > 1 for count in seen.values())
    unsaid = max(0, asked - given.lines - told["repeated"])
    table(
        [
            {
                "lines": given.lines,
                "state": batch["status"],
                "seconds": seconds,
                "kills": ", ".join(f"{count} {what}" for what, count in sorted(killed.items())),
                "completed": len(done),
                "failed": len(failed),
                "lost": lost,
                "in the results twice": twice,
                "repeated (told)": told["repeated"],
                "unknown (told)": told["unknown"],
                "asked of the engine": asked,
                "run twice unsaid": unsaid,
            }
        ]
    )
    if codes:
        print("failed lines:", dict(codes))
    if lost or twice or unsaid or batch["status"] != "completed":
        raise SystemExit(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
