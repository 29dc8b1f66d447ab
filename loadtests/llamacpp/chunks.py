"""What a step costs by how much of a prompt it reads: alone and beside streams, at the beginning of a prompt and deep in it.

    python -m loadtests.llamacpp.chunks [--streams 0,4,7] [--depths 0,1000,2000] [--sizes 0,2,4,8,16,32,64,128,256,512] [--repeats 3]

Takes the model of `loadtests.llamacpp.bench`. Each stream has 100 tokens behind it; the prompt's tokens follow as many as `--depths` says.
Steps of all sizes are made by turns, so that what else the machine does falls on all. Prints a line of JSON for each size: the shortest and
the median milliseconds of a step, its processor milliseconds, what a prompt token adds to a step without any, and the prompt tokens a
second that such steps read one after another. Then, for each number of streams, what this means for a prompt: if every step is at most
`--stalls` times as long as one without prompt tokens, how many seconds until 2,500 tokens are read, and how many if they are read alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from engines.llamacpp.native import Batch, Context, Model, NativeLog
from loadtests.llamacpp.bench import model_file

BEHIND, PROMPT = 100, 2500
BATCH, CELLS, SEQUENCES = 512, 8 * 4096, 16
Costs = dict[int, dict[int, float]]
"""Seconds of the shortest step, by depth and prompt tokens."""


def fill(context: Context, batch: Batch, seq: int, count: int) -> None:
    """Read so many tokens of a sequence from its start."""
    for start in range(0, count, BATCH):
        batch.clear()
        batch.add(seq, start, [400 + (seq * 977 + at * 31) % 20000 for at in range(start, min(count, start + BATCH))], output_last=True)
        run(context, batch)


def run(context: Context, batch: Batch) -> None:
    """One step. Raises RuntimeError."""
    if context.decode(batch) != 0:
        raise RuntimeError("llama_decode failed")


def step(context: Context, batch: Batch, streams: int, depth: int, size: int) -> tuple[float, float]:
    """Seconds and processor seconds of a step with a token of each stream and so many prompt tokens; leaves everything as it was."""
    batch.clear()
    for seq in range(1, streams + 1):
        batch.add_one(seq, BEHIND, 500 + seq)
    if size:
        batch.add(0, depth, [600 + at for at in range(size)], output_last=False)
    began, used = time.perf_counter(), time.process_time()
    run(context, batch)
    took = time.perf_counter() - began, time.process_time() - used
    context.trim(0, depth)
    for seq in range(1, streams + 1):
        context.trim(seq, BEHIND)
    return took


def measure(context: Context, streams: int, depths: list[int], sizes: list[int], repeats: int) -> Costs:
    """All sizes at all depths; prints them."""
    batch, costs = Batch(BATCH), Costs()
    for seq in range(1, streams + 1):
        fill(context, batch, seq, BEHIND)
    for depth in sorted(depths):
        context.trim(0, 0)
        fill(context, batch, 0, depth)
        found: dict[int, list[tuple[float, float]]] = {}
        for _ in range(repeats):
            for size in sizes:
                if streams + size and streams + size <= BATCH:
                    found.setdefault(size, []).append(step(context, batch, streams, depth, size))
        costs[depth] = {size: min(took for took, _used in times) for size, times in found.items()}
        without = costs[depth].get(0, 0.0)
        for size, times in found.items():
            least = costs[depth][size]
            line: dict[str, float] = {"streams": streams, "depth": depth, "prompt tokens": size, "ms": 1000 * least}
            line |= {"median ms": 1000 * statistics.median(took for took, _used in times)}
            line |= {"cpu ms": 1000 * min(used for _took, used in times)}
            if size:
                line |= {"added ms a token": 1000 * (least - without) / size, "prompt tokens/s": size / least}
            print(json.dumps({key: round(value, 2) for key, value in line.items()}), flush=True)
    return costs


def price(costs: Costs, depth: float, size: int) -> float:
    """Seconds of a step of this size as deep, between the depths that were measured."""
    depths = sorted(costs)
    low = max((one for one in depths if one <= depth), default=depths[0])
    high = min((one for one in depths if one >= depth), default=depths[-1])
    share = (depth - low) / (high - low) if high > low else 0.0
    return costs[low][size] + (costs[high][size] - costs[low][size]) * share


def seconds(costs: Costs, stall: float) -> float:
    """Until a prompt is read, always by the largest of the measured chunks that fits into a step, or else by the smallest."""
    done, took = 0, 0.0
    while done < PROMPT:
        sizes = sorted(size for size in costs[min(costs)] if size)
        usual = price(costs, done, 0)
        size = max((size for size in sizes if price(costs, done + size / 2, size) <= stall * usual), default=sizes[0])
        took += price(costs, done + size / 2, size)
        done += size
    return took


def main() -> None:
    """Measure and print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="0,4,7")
    parser.add_argument("--depths", default="0,1000,2000")
    parser.add_argument("--sizes", default="0,2,4,8,16,32,64,128,256,504")
    parser.add_argument("--stalls", default="2,2.4,3,4,6,8,12,20,60")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    depths, sizes = ([int(one) for one in text.split(",")] for text in (options.depths, options.sizes))
    log = NativeLog()
    model = Model(str(model_file()), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    context = Context(
        model, log, cells=CELLS, sequences=SEQUENCES, batch=BATCH, micro_batch=BATCH, threads=options.threads, threads_batch=options.threads
    )  # fmt: skip
    for streams in map(int, options.streams.split(",")):
        context.clear()
        costs = measure(context, streams, depths, sizes, options.repeats)
        if streams:
            found = {stall: round(seconds(costs, float(stall)), 1) for stall in options.stalls.split(",")}
            print(json.dumps({"streams": streams, "seconds until 2,500 tokens are read, by stall": found}))
        else:
            alone = sum(price(costs, done + max(sizes) / 2, max(sizes)) for done in range(0, PROMPT, max(sizes)))
            print(json.dumps({"streams": 0, "seconds until 2,500 tokens are read": round(alone, 1)}))
    context.close()
    model.close()


if __name__ == "__main__":
    main()
