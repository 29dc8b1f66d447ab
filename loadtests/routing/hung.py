"""One of three engines stops answering under load: `python -m loadtests.routing.hung [--rate 200] [--seconds 15] [--first-byte 2]`.

Wanted: its breaker is open within the first-byte timeout + 1 s; the p99 of what the others answer stays within 1.5 x of before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter

from loadtests.routing.bench import OpenLoop, engines, gateway, percentile, transitions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--first-byte", type=float, default=2.0)
    options = parser.parse_args()
    settings = {"slots": 64, "health": {"path": "/v1/models"}, "timeouts": {"first_byte": options.first_byte}}
    step = ("--chunks", "4")
    frozen = 0.0
    with engines(step, step, step) as fleet, gateway(fleet, engine=settings, routing={}) as gatehouse:
        pid = fleet[0].process.pid

        def freeze() -> None:
            nonlocal frozen
            frozen = time.time()
            os.kill(pid, signal.SIGSTOP)

        load = OpenLoop(gatehouse, options.rate, options.seconds)
        moment = options.seconds / 3
        samples = asyncio.run(load.run([(moment, freeze)]))
        changes = [change for change in transitions(gatehouse, "a") if change[0] >= frozen]
        retries = gatehouse.metric("gatehouse_retries_total")
        os.kill(pid, signal.SIGCONT)
    before = [s.latency for s in samples if s.due < moment - 0.5 and s.status == 200]
    # What was caught in the hung engine took at least the first-byte timeout; everything else went to the others.
    others = [s.latency for s in samples if s.due >= moment and s.status == 200 and s.latency < options.first_byte]
    caught = [s.latency for s in samples if s.due >= moment and s.latency >= options.first_byte]
    print(f"requests {len(samples)}, statuses {dict(Counter(s.status for s in samples))}, retries {retries:.0f}")
    print(f"before: p50 {percentile(before, 0.5) * 1000:.1f} ms, p99 {percentile(before, 0.99) * 1000:.1f} ms")
    print(f"others: p50 {percentile(others, 0.5) * 1000:.1f} ms, p99 {percentile(others, 0.99) * 1000:.1f} ms")
    print(f"caught in the hung engine: {len(caught)}, the slowest {max(caught, default=0.0):.2f} s")
    for at, state, reason in changes:
        print(f"  {at - frozen:+7.3f} s after the freeze: {state} ({reason})")


if __name__ == "__main__":
    main()
