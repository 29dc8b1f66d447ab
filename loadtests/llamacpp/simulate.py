"""The sidecar's scheduler on a virtual clock: which `stall` and `hold` serve most requests in time, free of what else a machine does.

    python -m loadtests.llamacpp.simulate [--stalls 1.5,2,2.5,3,4] [--holds 0,0.5] [--mixes mixed,chats] [--rates 0.2,0.3] [--seeds 5]

The scheduler and its learning are the real ones; a step takes what a linear model says (measured with the benchmark's 207M model on two
cores: see the constants), times a random factor (`--noise`). `server` is the plan of llama.cpp's own server: every step reads all of the
prompts that fit into 2,048 tokens, in the order in which they came. The traffic and the objectives are those of
`loadtests.llamacpp.goodput`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.llamacpp.pacing import HOLD, Pacer
from engines.llamacpp.scheduler import TILE, Plan, StepCosts, Work, admit
from loadtests.llamacpp.traffic import MIXES, OBJECTIVES, Request, Served, mix

STEP, ROW = 0.014, 0.0013
"""Seconds of any step, and of each token in it."""
DEPTH, DEPTH_IN_TILES = 0.0000021, 0.00000054
"""Seconds that each token before it adds to a token: one of few in a step, and one of those that fill tiles (also if there is no such one:
a started tile costs as much as a full one)."""
SLOTS, BATCH, SERVER_BATCH = 8, 512, 2048


@dataclass(slots=True, eq=False, kw_only=True)
class Stream(Work):
    """A request under way."""

    request: Request
    made: int = 0
    times: list[float] = field(default_factory=list)


Planner = Callable[[list[Stream], float], Plan[Stream]]
Due = Callable[[Stream, float], float]
Contestant = tuple[Planner, StepCosts, Due]
"""What plans steps, what learns from them, and what says when a token is handed out."""


def seconds(plan: Plan[Stream], noise: random.Random, spread: float) -> float:
    """What the model says that a step takes."""
    rows = len(plan.decode) + sum(count for _work, count in plan.prefill)
    deep = sum(work.done + work.made for work in plan.decode) + sum(count * (work.done + count / 2) for work, count in plan.prefill)
    deep *= DEPTH if rows < TILE else DEPTH_IN_TILES * (-(-rows // TILE) * TILE / rows)
    return (STEP + ROW * (rows + rows % 2) + deep) * noise.lognormvariate(0, spread)


def sidecar(stall: float, hold: float) -> Contestant:
    """The sidecar."""
    costs = StepCosts(stall)
    costs.observe(1, 0, STEP + 2 * ROW)
    costs.observe(1, 15, STEP + ROW * 16)
    costs.observe(1, TILE - 1, STEP + ROW * TILE)
    pacer = Pacer(costs, hold)
    return lambda running, now: pacer.plan(running, BATCH, now), costs, pacer.due


def server(most: int = SERVER_BATCH) -> Contestant:
    """llama.cpp's server, which reads so many tokens in a step."""

    def planned(running: list[Stream], _now: float) -> Plan[Stream]:
        plan: Plan[Stream] = Plan([item for item in running if item.decoding])
        left = most - len(plan.decode)
        for item in (item for item in running if not item.decoding):
            count = min(left, item.prompt - item.done)
            left -= count
            if count:
                plan.prefill.append((item, count))
        return plan

    return planned, StepCosts(), lambda _stream, now: now


def run(requests: list[Request], contestant: Contestant, spread: float, seed: int = 0) -> list[Served]:
    """All requests served; when their tokens came."""
    planner, costs, due = contestant
    noise, now, served = random.Random(seed), 0.0, list[Served]()
    coming = sorted(requests, key=lambda item: item.at, reverse=True)
    waiting: list[Stream] = []
    running: list[Stream] = []
    while coming or waiting or running:
        while coming and coming[-1].at <= now:
            request = coming.pop()
            waiting.append(Stream(1, len(requests) - len(coming), request.prompt, request=request))
        for item in admit(waiting, SLOTS - len(running), now)[0]:
            waiting.remove(item)
            running.append(item)
        plan = planner(running, now)
        if not plan:
            now = coming[-1].at
            continue
        took = seconds(plan, noise, spread)
        now += took
        prefilled = sum(count for _work, count in plan.prefill)
        depth = sum(count * (work.done + count / 2) for work, count in plan.prefill) / max(1, prefilled)
        costs.observe(len(plan.decode), prefilled, took, depth)
        for item, count in plan.prefill:
            item.done += count
            item.decoding = item.done == item.prompt
        for item in [*plan.decode, *(item for item, _count in plan.prefill if item.decoding)]:
            item.made += 1
            item.times.append(due(item, now))
            if item.made == item.request.tokens:
                item.times = [min(at, now) for at in item.times]  # the last token brings all that were held
                running.remove(item)
                served.append(Served(item.request, item.times))
    return served


def beside(contestant: Contestant, spread: float, streams: int) -> dict[str, float]:
    """A prompt of 8 tokens and one of 2,000 arrive beside streams: first tokens, and the streams' longest gap against their usual one."""
    running = [Request(0.0, 16, 2000) for _ in range(streams)]
    long, short = Request(20.0, 2000, 4), Request(20.5, 8, 4)
    served = run([*running, long, short], contestant, spread)
    firsts = {item.request: item for item in served}
    end = firsts[long].times[0]
    gaps = [
        b - a for item in served if item.request.tokens == 2000 for a, b in zip(item.times, item.times[1:], strict=False) if 20 < b < end
    ]
    usual = [
        b - a for item in served if item.request.tokens == 2000 for a, b in zip(item.times, item.times[1:], strict=False) if 5 < b < 20
    ]
    found = {"short first token s": firsts[short].first, "long first token s": firsts[long].first}
    if gaps:
        found |= {
            "longest gap ratio": max(gaps) / statistics.median(usual),
            "median gap ratio": statistics.median(gaps) / statistics.median(usual),
        }
    return found


def main() -> None:
    """Print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stalls", default="1.5,2,2.5,2.8,3,4,6")
    parser.add_argument("--holds", default=f"0,{HOLD}")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--rates", default="0.4,0.7,1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument(
        "--noise", type=float, default=0.05, help="spread of a step's time (of its logarithm): 0.5 is a machine shared with others"
    )
    options = parser.parse_args()
    plans: list[tuple[str, Callable[[], Contestant]]] = [("server", server)]
    plans += [
        (f"stall {stall}, hold {hold}", lambda stall=stall, hold=hold: sidecar(float(stall), float(hold)))
        for stall in options.stalls.split(",") for hold in options.holds.split(",")
    ]  # fmt: skip
    for name, make in plans:
        for streams in (0, 1, 4, 6):
            print(
                json.dumps(
                    {"plan": name, "streams": streams}
                    | {key: round(value, 2) for key, value in beside(make(), options.noise, streams).items()}
                )
            )
        for kind in options.mixes.split(","):
            for rate in options.rates.split(","):
                mixes = [mix(seed, options.requests, float(rate), MIXES[kind]) for seed in range(options.seeds)]
                every = [run(requests, make(), options.noise, seed) for seed, requests in enumerate(mixes)]
                line = {objective.name: round(statistics.mean(map(objective.share, every)), 3) for objective in OBJECTIVES}
                print(json.dumps({"plan": name, "mix": kind, "rate": rate, **line}))


if __name__ == "__main__":
    main()
