"""One of three engines is killed under load and comes back: `python -m loadtests.routing.kill [--rate 500] [--seconds 20]`.

Wanted: at least 99.9% of the requests succeed; the endpoint is out within a second; one request probes it when it is back.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

from loadtests.routing.bench import EngineProcess, OpenLoop, engines, gateway, percentile, transitions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    settings = {"slots": 64, "health": {"path": "/v1/models"}}
    back: list[EngineProcess] = []
    killed = 0.0
    with engines((), (), ()) as fleet, gateway(fleet, engine=settings, routing={}) as gatehouse:

        def kill() -> None:
            nonlocal killed
            killed = time.time()
            fleet[0].kill()

        load = OpenLoop(gatehouse, options.rate, options.seconds)
        events = [(options.seconds / 4, kill), (options.seconds / 2, lambda: back.append(EngineProcess(port=fleet[0].port)))]
        samples = asyncio.run(load.run(events))
        changes = [change for change in transitions(gatehouse, "a") if change[0] >= killed]
        retries = gatehouse.metric("gatehouse_retries_total")
    for engine in back:
        engine.kill()
    good = [sample.latency for sample in samples if sample.status == 200]
    print(f"requests {len(samples)}, answered {len(good)} ({len(good) / len(samples):.4%}), retries {retries:.0f}")
    print(f"statuses {dict(Counter(sample.status for sample in samples))}")
    print(f"latency p50 {percentile(good, 0.5) * 1000:.1f} ms, p99 {percentile(good, 0.99) * 1000:.1f} ms, max {max(good) * 1000:.1f} ms")
    for at, state, reason in changes:
        print(f"  {at - killed:+7.3f} s after the kill: {state} ({reason})")


if __name__ == "__main__":
    main()
