"""Far more arrives than can be served: `python -m loadtests.routing.overload [--factor 3] [--seconds 60] [--greedy 0.9]`.

Three engines of eight slots, 200 ms a request: 120 requests a second. A greedy tenant sends 90% of the arrivals, a modest one the rest.
Wanted: at least 95% of the capacity is served; p99 of what was admitted stays within the queue's deadline; each tenant gets what max-min
fairness gives it, within 10%; memory is flat. The first WARM_UP seconds pay for what is built once (connections, the queue, the audit log's
buffers, the allocator's arenas); flat means: from then on less than 1 MiB for 100,000 refused requests. That needs a run of minutes.
"""

from __future__ import annotations

import argparse
import asyncio

from loadtests.routing.bench import OpenLoop, engines, gateway, percentile, resident
from tests.e2e.harness import KEY, OTHER_KEY

SLOTS, SERVICE, QUEUE_TIMEOUT = 8, 0.2, 2.0
WARM_UP, EVERY = 20.0, 10.0
"""Seconds: before memory is compared, between two looks at it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--factor", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--greedy", type=float, default=0.9)
    options = parser.parse_args()
    arguments = ("--slots", str(SLOTS), "--service", str(SERVICE), "--queue", "64")
    settings = {"slots": SLOTS, "health": {"path": "/v1/models", "timeout": 5, "interval": 5}}
    capacity = 3 * SLOTS / SERVICE
    keys = (KEY,) * round(options.greedy * 10) + (OTHER_KEY,) * round(10 - options.greedy * 10)
    routing = {"queue": {"size": 256, "timeout": QUEUE_TIMEOUT}}
    with engines(arguments, arguments, arguments) as fleet, gateway(fleet, engine=settings, routing=routing) as gatehouse:
        assert gatehouse.process is not None
        pid, memory = gatehouse.process.pid, list[float]()
        moments = [EVERY * number for number in range(1, int(options.seconds / EVERY) + 1)]
        load = OpenLoop(gatehouse, capacity * options.factor, options.seconds, keys)
        samples = asyncio.run(load.run([(at, lambda: memory.append(resident(pid))) for at in moments]))
    good = [s for s in samples if s.status == 200 and s.due + s.latency <= options.seconds]
    rate = len(good) / options.seconds
    admitted = [s.latency for s in samples if s.status == 200]
    refused = [s.retry_after for s in samples if s.status == 503]
    asked = {key: capacity * options.factor * keys.count(key) / len(keys) for key in (KEY, OTHER_KEY)}
    modest = min(asked[OTHER_KEY], max(capacity / 2, capacity - asked[KEY]))
    arrivals = capacity * options.factor
    print(f"capacity {capacity:.0f}/s, arrivals {arrivals:.0f}/s, served {rate:.1f}/s ({rate / capacity:.1%} of the capacity)")
    print(f"admitted: p50 {percentile(admitted, 0.5):.2f} s, p99 {percentile(admitted, 0.99):.2f} s, queue deadline {QUEUE_TIMEOUT:g} s")
    for name, key, fair in (("greedy", KEY, capacity - modest), ("modest", OTHER_KEY, modest)):
        served = sum(s.key == key for s in good) / options.seconds
        print(f"{name}: asked {asked[key]:.0f}/s, served {served:.1f}/s, max-min fair {fair:.1f}/s ({served / fair:.1%})")
    others = len(samples) - len(admitted) - len(refused)
    print(f"refused {len(refused)} with retry-after {percentile(refused, 0.5):.0f} s (median), other outcomes {others}")
    print(f"memory of the gateway, MiB each {EVERY:g} s: " + " ".join(f"{each:.1f}" for each in memory))
    later = [(at, seen) for at, seen in zip(moments, memory, strict=False) if at >= WARM_UP]
    if len(later) > 1:
        (start, before), (end, after) = later[0], later[-1]
        count = sum(s.status == 503 and start <= s.due < end for s in samples)
        per = (after - before) / max(1, count) * 100_000
        print(f"from second {start:g} on {after - before:+.1f} MiB over {count} refusals: {per:.1f} MiB for 100,000")


if __name__ == "__main__":
    main()
