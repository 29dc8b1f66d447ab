"""What callers with budgets cost: memory of the limits' state for each, and the time of a request among so many.

    python -m loadtests.limits.keys [--keys 1000000] [--calls 200000]

A limiter in this process counts a monthly budget of tokens and one of money for each key, as a gateway without workers does. Each key
makes a request, so that there is a bucket of its own for both; then `--calls` requests of random keys are timed, and as many of one key.
Memory is the growth of this process's resident size. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from pathlib import Path
from typing import Any, Final

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.core.prices import Price
from gateway.core.specs import BudgetSpec, LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.wire import WireApi
from gateway.limits.estimates import Estimates
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from policies.limits import LimitRules

LIMITS: Final = (
    LimitSpec(name="tokens", per="key", budget=BudgetSpec(amount=1e9, unit="tokens", window="month")),
    LimitSpec(name="money", per="key", budget=BudgetSpec(amount=1e6, unit="usd", window="month")),
)
API: Final = WireApi("chat")
PRICE: Final = Price("usd", "v", prompt=1_000_000, completion=2_000_000)
USED: Final = Usage(120, 40)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def once(limiter: LocalLimiter, principal: Principal) -> None:
    request = InferenceRequest(API, b"/v1/chat/completions", "m", {}, None, prompt_tokens=100, max_tokens=50)
    request.price = PRICE
    held: Any = limiter.reserve(principal, request)
    held.settle(USED)


def timed(limiter: LocalLimiter, principals: list[Principal]) -> float:
    """Microseconds of processor time a request."""
    begun = time.process_time()
    for principal in principals:
        once(limiter, principal)
    return (time.process_time() - begun) / len(principals) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("keys", 1_000_000), ("calls", 200_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    random.seed(1)
    limiter = LocalLimiter(LimitRules(LIMITS), BucketRegistry(), estimate=Estimates().estimate)
    callers = [Principal(f"key-{number}", "t", "api_key", ("*",)) for number in range(arguments.keys)]
    gc.collect()
    before = resident()
    first = timed(limiter, callers)
    gc.collect()
    grown = resident() - before
    chosen = [callers[random.randrange(arguments.keys)] for _ in range(arguments.calls)]
    many = min(timed(limiter, chosen) for _ in range(3))
    one = min(timed(limiter, callers[:1] * arguments.calls) for _ in range(3))
    found = {"keys": arguments.keys, "compiled": active(), "bytes_a_key": round(grown / arguments.keys), "first_us": round(first, 2)}
    print(json.dumps(found | {"random_keys_us": round(many, 2), "one_key_us": round(one, 2)}))


if __name__ == "__main__":
    main()
