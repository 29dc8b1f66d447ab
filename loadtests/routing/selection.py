"""What a decision costs, how few keys move, and that the bound holds: `python -m loadtests.routing.selection [--keys N]`.

cost      microseconds of `acquire` and of `close`, for pools of 1, 8 and 256 endpoints with a third of their slots taken
movement  share of a million keys that change their endpoint when one is added or removed (at most 1/N + 5%)
bound     the largest load seen against ceil(bound x in flight / N), over a million requests with a few hot keys (at most 1.0)
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque
from math import ceil
from typing import Any, Literal, get_args

from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.ports import AttemptResult
from gateway.core.specs import EngineSpec, ModelSpec, RoutingSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.routing.build import build_router
from gateway.routing.registry import EndpointRegistry
from gateway.routing.ring import Ring
from gateway.routing.router import PoolRoute
from gateway.wire.openai.api import ChatApi
from gateway.wire.openai.views import ChatRequest, Message

Policy = Literal["consistent_hash", "least_outstanding", "power_of_two", "round_robin", "weighted"]

CHAT = ChatApi()
CALLER = Principal("bench", "bench", "api_key")
SYSTEM = "You answer questions about the company's travel policy. Be brief and cite the paragraph."


class NoClient:
    """Nothing is sent."""

    def send(self, *_: Any) -> Any:
        raise AssertionError

    async def aclose(self) -> None:
        return None


def pool(count: int, policy: Policy, slots: int = 1024) -> PoolRoute:
    engines = tuple(EngineSpec(name=f"engine-{n}", runtime="external", url=f"http://engine-{n}", slots=slots) for n in range(count))
    registry = EndpointRegistry(SystemClock(), SystemEntropy(), lambda spec, address: NoClient())
    router = build_router(
        (ModelSpec(name="m", pool=tuple(e.name for e in engines), routing=RoutingSpec(policy=policy)),), engines, registry
    )
    registry.activate(router)
    return router.routes["m"]


def request(text: str) -> InferenceRequest:
    view = ChatRequest(model="m", messages=[Message(role="system", content=SYSTEM), Message(role="user", content=text)])
    return InferenceRequest(CHAT, b"/v1/chat/completions", "m", {}, view, prompt_tokens=50, max_tokens=100)


def cost(count: int, policy: Policy, rounds: int = 60, batch: int = 250) -> tuple[float, float]:
    """(acquire, close) in microseconds: the best of some rounds, each over different requests, one at a time."""
    route = pool(count, policy)
    requests = [request(f"May I take the train, case {n}?") for n in range(batch)]
    held = [route.acquire(request(f"held {n}"), CALLER, None, (), 0.0) for n in range(3 * count)]
    best_acquire = best_close = 1e9
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        acquire = close = 0
        for one in requests:
            start = time.perf_counter_ns()
            attempt = route.acquire(one, CALLER, None, (), 0.0)
            middle = time.perf_counter_ns()
            attempt.close(AttemptResult.SUCCESS)  # type: ignore[union-attr]
            close += time.perf_counter_ns() - middle
            acquire += middle - start
        gc.enable()
        best_acquire, best_close = min(best_acquire, acquire / batch), min(best_close, close / batch)
    del held
    clock = min(_clock_cost() for _ in range(5))
    return (best_acquire - clock) / 1000, (best_close - clock) / 1000


def _clock_cost(rounds: int = 20_000) -> float:
    """Nanoseconds that a measurement itself costs."""
    total = 0
    for _ in range(rounds):
        start = time.perf_counter_ns()
        total += time.perf_counter_ns() - start
    return total / rounds


def movement(count: int, keys: list[int]) -> tuple[float, float]:
    """(added, removed): shares of the keys that move when one endpoint joins or leaves `count` of them."""
    names = [f"engine-{n}" for n in range(count + 1)]

    def owners(of: list[str]) -> list[str]:
        ring = Ring(of, [1.0] * len(of))
        return [of[ring.owner(key)] for key in keys]

    before = owners(names[:count])
    added = sum(map(str.__ne__, before, owners(names))) / len(keys)
    removed = sum(map(str.__ne__, before, owners(names[1:count]))) / len(keys)
    return added, removed


def bound(count: int, requests: int, in_flight: int) -> float:
    """The largest load of any endpoint against the bound, with `in_flight` requests at a time, half of them for ten hot keys."""
    route = pool(count, "consistent_hash")
    generator = random.Random(11)
    hot = [request(f"hot {n}") for n in range(10)]
    cold = [request(f"cold {n}") for n in range(5000)]
    held: deque[Any] = deque()
    worst = 0.0
    for _ in range(requests):
        if len(held) >= in_flight:
            held.popleft().close(AttemptResult.SUCCESS)
        attempt: Any = route.acquire(generator.choice(hot if generator.random() < 0.5 else cold), CALLER, None, (), 0.0)
        held.append(attempt)
        worst = max(worst, attempt._member.load / ceil(1.25 * len(held) / count))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=1_000_000)
    keys = parser.parse_args().keys
    print("policy              endpoints  acquire us  close us")
    for policy in get_args(Policy):
        for count in (1, 8, 256):
            acquire, close = cost(count, policy)
            print(f"{policy:20}{count:8}{acquire:12.2f}{close:10.2f}")
    generator = random.Random(5)
    sample = [generator.getrandbits(64) for _ in range(keys)]
    print(f"\nkeys moved, of {keys:,}   endpoints   joining   leaving   limit joining / leaving")
    for count in (2, 3, 8, 256):
        added, removed = movement(count, sample)
        print(f"{count:32}{added:12.4f}{removed:10.4f}   {1 / (count + 1) + 0.05:.4f} / {1 / count + 0.05:.4f}")
    print(f"\nlargest load against its bound, over {keys:,} requests")
    for count, in_flight in ((3, 24), (8, 64), (64, 512)):
        print(f"{count:4} endpoints, {in_flight:4} in flight: {bound(count, keys // 3, in_flight):.3f}")


if __name__ == "__main__":
    main()
