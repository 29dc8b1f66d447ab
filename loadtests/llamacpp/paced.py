"""A long prompt beside streams on the real model, timed by the processor: what `stall` and `hold` cost, whatever else the machine does.

    python -m loadtests.llamacpp.paced [--streams 4,6] [--stalls 2,2.4] [--holds 0,0.5] [--prompt 2500]

The scheduler, its learning and llama.cpp's steps are the real ones, in one thread; the clock is the processor time that the steps take, so
other processes disturb little. `server` is the plan of llama.cpp's own server: all of the prompt in steps of 512 tokens. Streams run for
12 steps, then the prompt arrives, and 0.5 s later one of 8 tokens. Prints a line of JSON for each: seconds to the first tokens; median and
longest gap of the streams as handed out, against the usual; how long tokens were held at most; steps, and tokens a second of all streams.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise

from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.scheduler import TILE, Plan, StepCosts
from loadtests.llamacpp.bench import model_file
from loadtests.llamacpp.simulate import BATCH, Contestant, Stream, server, sidecar
from loadtests.llamacpp.traffic import Request

BEFORE, APART, SHORT = 12, 0.5, 8


class Machine:
    """llama.cpp in one thread, and a clock that goes while it computes."""

    def __init__(self, context: Context) -> None:
        self.now = 0.0
        self.context = context
        self._batch = Batch(BATCH)
        context.clear()

    def step(self, plan: Plan[Stream]) -> float:
        """Seconds of a step. Each sequence's number is its arrival."""
        batch = self._batch
        batch.clear()
        for item in plan.decode:
            batch.add_one(item.arrival, item.prompt + item.made - 1, 500 + item.made % 99)
        for item, count in plan.prefill:
            tokens = [600 + (item.arrival * 977 + at * 31) % 9000 for at in range(item.done, item.done + count)]
            batch.add(item.arrival, item.done, tokens, output_last=item.done + count == item.prompt)
        began = time.process_time()
        if self.context.decode(batch) != 0:
            raise RuntimeError("llama_decode failed")
        took = time.process_time() - began
        self.now += took
        return took


def stream(number: int, prompt: int) -> Stream:
    """A request that answers for ever."""
    return Stream(1, number, prompt, request=Request(0.0, prompt, 10**6))


def beside(machine: Machine, contestant: Contestant, streams: int, size: int) -> dict[str, float]:
    """Everything about one contestant."""
    planner, costs, due = contestant
    running = [stream(number, 16) for number in range(streams)]
    long, short = stream(streams, size), stream(streams + 1, SHORT)
    came: dict[int, float] = {}
    steps, held = 0, 0.0
    while not (long.times and short.times):
        if long.arrival not in came and min(item.made for item in running) > BEFORE:
            came[long.arrival] = machine.now
            running.append(long)
            steps = 0
        if short.arrival not in came and long.arrival in came and machine.now >= came[long.arrival] + APART:
            came[short.arrival] = machine.now
            running.append(short)
        plan = planner(running, machine.now)
        took = machine.step(plan)
        steps += 1
        prefilled = sum(count for _item, count in plan.prefill)
        costs.observe(
            len(plan.decode), prefilled, took, sum(count * (item.done + count / 2) for item, count in plan.prefill) / max(1, prefilled)
        )
        for item, count in plan.prefill:
            item.done += count
            item.decoding = item.done == item.prompt
        for item in [*plan.decode, *(item for item, _count in plan.prefill if item.decoding)]:
            item.made += 1
            item.times.append(due(item, machine.now))
            held = max(held, item.times[-1] - machine.now)
    begin, end = came[long.arrival], long.times[0]
    every = [(b, b - a) for item in running[:streams] for a, b in pairwise(item.times)]
    usual = statistics.median(gap for at, gap in every if at <= begin)
    during = [gap for at, gap in every if begin < at and at - gap < end]
    return {
        "long first token s": end - begin, "short first token s": short.times[0] - came[short.arrival], "usual gap ms": 1000 * usual,
        "median gap ratio": statistics.median(during) / usual, "longest gap ratio": max(during) / usual, "longest hold s": held,
        "steps": steps, "tok/s": steps * streams / (machine.now - begin),
    }  # fmt: skip


def warm(costs: StepCosts, machine: Machine) -> None:
    """What the engine measures before its first request."""
    for count in (1, 16, TILE):
        first = stream(0, count)
        machine.step(Plan([], [(first, count)]))
        machine.context.clear()
        took = machine.step(Plan([], [(first, count)]))
        costs.observe(1, count - 1, took)
        machine.context.clear()


def main() -> None:
    """Print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="4,6")
    parser.add_argument("--stalls", default="2,2.4")
    parser.add_argument("--holds", default="0,0.5")
    parser.add_argument("--prompt", type=int, default=2500)
    options = parser.parse_args()
    log = NativeLog()
    model = Model(str(model_file()), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    context = Context(model, log, cells=8 * 4096, sequences=16, batch=BATCH, micro_batch=BATCH, threads=1, threads_batch=1, outputs=64)
    for streams in map(int, options.streams.split(",")):
        made: list[tuple[str, Contestant]] = [("server", server(BATCH))]
        made += [
            (f"stall {stall}, hold {hold}", sidecar(float(stall), float(hold)))
            for stall in options.stalls.split(",")
            for hold in options.holds.split(",")
        ]
        for name, contestant in made:
            machine = Machine(context)
            warm(contestant[1], machine)
            figures = beside(machine, contestant, streams, options.prompt)
            print(json.dumps({"plan": name, "streams": streams, **{key: round(value, 2) for key, value in figures.items()}}), flush=True)
    context.close()
    model.close()


if __name__ == "__main__":
    main()
