"""The llama.cpp sidecar against its peers: tokens a second, the gap that a long prompt makes, what conversations reuse.

    python -m loadtests.llamacpp.bench [--xllamacpp PYTHON] [--llama-cpp-server PYTHON] [--only throughput,gap,conversations]
                                       [--rounds 3] [--tokens 64]

Builds a 207M-parameter Q8_0 model with random weights once (in the system's temporary directory). All servers are started at the
beginning and stay; one is asked at a time, by turns, each round in another order, so that what else the machine does falls on
all. Prints each round as a line of JSON, then the medians and, of figures where the worst counts, the maxima. The client and the gateway
share the machine's cores with the servers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtests.llamacpp import measures
from loadtests.llamacpp.peers import DIRECT, GATEWAY, LLAMA_SERVER, LOOP, XLLAMACPP, Loop, Server, Setting, gatehouse, loop, peer
from loadtests.llamacpp.random_gguf import Shape, write

SHAPE = Shape(layers=12, width=1024, heads=16, kv_heads=8, feed_forward=2816, context=4096, extra_words=31600)
COUNTS = (1, 4, 8)
WORST = ("ratio", "alone ratio", "longest gap ms")
Figures = dict[str, dict[str, list[float]]]


def model_file() -> Path:
    """The benchmark's model, made once."""
    directory = Path(tempfile.gettempdir()) / "gatehouse-bench"
    directory.mkdir(exist_ok=True)
    path = directory / "random-207m-q8_0.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        write(part, SHAPE)
        part.rename(path)
    return path


@contextlib.contextmanager
def contestants(options: argparse.Namespace, setting: Setting) -> Iterator[dict[str, Server | Loop]]:
    """Everything that was asked for, running."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ghb")))
        gateway, sidecar = stack.enter_context(gatehouse(setting, work, json.loads(options.options)))
        found: dict[str, Server | Loop] = {DIRECT: sidecar}
        if "gateway" not in options.without:
            found[GATEWAY] = gateway
        if "throughput" in options.only:
            found[LOOP] = stack.enter_context(loop(setting))
        for name, python in ((XLLAMACPP, options.xllamacpp), (LLAMA_SERVER, options.llama_cpp_server)):
            if python:
                found[name] = stack.enter_context(peer(name, setting, python, work))
        yield found


def measure(name: str, server: Server | Loop, options: argparse.Namespace, seed: int) -> dict[str, float]:
    """One contestant, one round, all that was asked for."""
    if isinstance(server, Loop):
        return {f"tok/s x{count}": count * options.tokens / server.generate(count, options.tokens) for count in COUNTS}
    result: dict[str, float] = {}
    if "throughput" in options.only:
        for count in COUNTS:
            figures = measures.throughput(server, count, options.tokens, seed * 10 + count)
            result |= {f"{key} x{count}": value for key, value in figures.items()}
    if "gap" in options.only and name in (DIRECT, GATEWAY, XLLAMACPP):
        result |= measures.gap(server, seed)
    if "conversations" in options.only and name in (DIRECT, XLLAMACPP):
        result |= measures.conversations(server, seed)
    return result


def summary(figures: Figures) -> None:
    """Medians, and maxima of what is judged by its worst, one line a contestant."""
    for name, values in figures.items():
        line = {key: round(statistics.median(items), 3) for key, items in values.items()}
        line |= {f"max {key}": round(max(items), 3) for key, items in values.items() if key in WORST}
        print(json.dumps({"median of": name, **line}))


def main() -> None:
    """Run and print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xllamacpp", help="interpreter with the package xllamacpp")
    parser.add_argument("--llama-cpp-server", help="interpreter with llama-cpp-python[server]")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, for throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="number of the first round: prompts that a former run has not used")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="throughput,gap,conversations")
    parser.add_argument("--without", default="", help="gateway: leave it out")
    parser.add_argument("--options", default="{}", help="options of the engine, as JSON")
    options = parser.parse_args()
    figures: Figures = {}
    with contestants(options, Setting(model_file(), threads=options.threads)) as found:
        for server in found.values():
            if isinstance(server, Server):
                measures.throughput(server, 1, 8, 0)  # the first request pays for what is made once
        for number in range(options.first, options.first + options.rounds):
            names = list(found)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                result = measure(name, found[name], options, number)
                if not result:
                    continue
                for key, value in result.items():
                    figures.setdefault(name, {}).setdefault(key, []).append(value)
                print(json.dumps({"round": number, "of": name, **{key: round(value, 3) for key, value in result.items()}}), flush=True)
    summary(figures)


if __name__ == "__main__":
    main()
