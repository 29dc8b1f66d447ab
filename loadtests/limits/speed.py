"""What limits cost a request: reserve and settle, without a gateway around them.

In each round 32 requests are under way at once, as in the relay benchmark: reserved, and then settled with the usage of an answer. The
loop around them is measured alone and taken off. Prints microseconds of processor time a request: the best of several runs.

usage: python loadtests/limits/speed.py [--calls 1000000] [--runs 5] [--leased]
It measures the compiled hot path where there is a build of these sources, and says which it was; GATEHOUSE_COMPILED=0 measures the sources.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, Final

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.core.messages import Message
from gateway.core.ports import Limiter
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal
from gateway.limits.estimates import Estimates
from gateway.limits.lease_book import LeaseBook
from gateway.limits.lease_messages import LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from gateway.limits.shares import NOTE, Shares
from gateway.wire.openai.api import ChatApi
from policies.limits import LimitRules

AT_ONCE: Final = 32
MANY: Final = RateSpec(rate=1e6, per=1.0)
MORE: Final = RateSpec(rate=1e9, per=60.0)
KEY: Final = LimitSpec(name="per-key", requests=MANY, tokens=MORE, concurrent=10_000)
SCOPES: Final[dict[str, tuple[LimitSpec, ...]]] = {
    "none": (),
    "one scope": (KEY,),
    "four scopes": (
        KEY,
        LimitSpec(name="per-user", per="user", requests=MANY, tokens=MORE),
        LimitSpec(name="per-tenant", per="tenant", tokens=MORE, concurrent=10_000),
        LimitSpec(name="all", per="global", requests=MANY),
    ),
    "four scopes, each with a budget": (
        LimitSpec(name="per-key", requests=MANY, tokens=MORE, concurrent=10_000, budget=BudgetSpec(amount=1e15)),
        LimitSpec(name="per-user", per="user", requests=MANY, tokens=MORE, budget=BudgetSpec(amount=1e15)),
        LimitSpec(name="per-tenant", per="tenant", tokens=MORE, concurrent=10_000, budget=BudgetSpec(amount=1e15)),
        LimitSpec(name="all", per="global", requests=MANY, budget=BudgetSpec(amount=1e15)),
    ),
}
CALLER: Final = Principal("ci", "team", "api_key", ("*",), user="ada")
USAGE: Final = Usage(31, 60)


def local(limits: tuple[LimitSpec, ...]) -> Limiter:
    estimates = Estimates()
    return LocalLimiter(LimitRules(limits), BucketRegistry(), estimate=estimates.estimate, learn=estimates.learn)


def leased(limits: tuple[LimitSpec, ...], soon: list[Callable[[], None]]) -> Limiter:
    """A worker's limits, with the control process's side in the same process: what it costs is counted too, when it is asked."""
    shares: Shares

    def to_worker(worker: str, message: Message) -> None:
        if isinstance(message, LeaseReply):
            shares.heard(message)

    book = LeaseBook(to_worker)
    estimates = Estimates()
    shares = Shares(
        lambda call: book.heard("bench", call),  # type: ignore[arg-type]
        soon.append,
        lambda seconds, call: None if seconds > NOTE else soon.append(call),
        learn=estimates.learn,
    )
    for worker in ("bench", "other"):
        book.joined(worker)
    return LeasedLimiter(LimitRules(limits), shares, estimate=estimates.estimate)


def nothing() -> None:
    """Somebody waits."""


def run(limiter: Limiter | None, calls: int, soon: list[Callable[[], None]]) -> float:
    """Seconds of processor time for so many requests. Without a limiter: of the loop alone. soon: what is to be called after each round."""
    request = InferenceRequest(ChatApi(), b"/v1/chat/completions", "m", {}, None, prompt_tokens=30, max_tokens=100)
    held: list[Any] = [None] * AT_ONCE
    places = range(AT_ONCE)
    rounds = range(calls // AT_ONCE)
    caller, usage = CALLER, USAGE
    begin = time.process_time()
    if limiter is None:
        for _ in rounds:
            for place in places:
                request.prompt_tokens = 30
                held[place] = caller
            for one in held:
                if type(one) is Signal:
                    one.add_callback(nothing)
            for one in held:
                if type(one) is Signal:
                    one = one.value
                one.id  # noqa: B018
        return time.process_time() - begin
    reserve = limiter.reserve
    for _ in rounds:
        for place in places:
            request.prompt_tokens = 30
            held[place] = reserve(caller, request)
        for one in held:
            if type(one) is Signal:
                one.add_callback(nothing)
        while soon:
            soon.pop(0)()
        for one in held:
            if type(one) is Signal:
                one = one.value
            one.settle(usage)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--leased", action="store_true", help="limits as in one of several workers")
    arguments = parser.parse_args()
    print("the hot path", "is compiled" if active() else "runs from its sources")
    gc.collect()
    gc.freeze()
    soon: list[Callable[[], None]] = []
    empty = min(run(None, arguments.calls, soon) for _ in range(arguments.runs))
    for name, limits in SCOPES.items():
        if arguments.leased and any(limit.budget is not None for limit in limits):
            continue
        limiter = leased(limits, soon) if arguments.leased else local(limits)
        best = min(run(limiter, arguments.calls, soon) for _ in range(arguments.runs))
        print(f"{name:32s} {(best - empty) / arguments.calls * 1e6:5.2f} us a request", flush=True)


if __name__ == "__main__":
    main()
