"""The llama.cpp sidecar against its peers: tokens a second, the gap that a long prompt makes, what conversations reuse.

    python -m loadtests.llamacpp.bench [--xllamacpp PYTHON] [--llama-cpp-server PYTHON] [--only throughput,gap,conversations]
                                       [--rounds 3] [--tokens 64]

Builds a 207M-parameter Q8_0 model with random weights once (in the system's temporary directory). All servers are started at the
beginning and stay; one is asked at a time, by turns, each round in another order, so that what else the machine does falls on
all. Prints each round as a line of JSON, then the medians and, of figures where the worst counts, the maxima. The client and the gateway
share the machine's cores with the servers. A measurement during which processes that have nothing to do with it took more than `--others`
of a core is printed and left out of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from loadtests.llamacpp import measures
from loadtests.llamacpp.peers import DIRECT, GATEWAY, LLAMA_SERVER, LOOP, XLLAMACPP, Loop, Server, Setting, cpu_of, gatehouse, loop, peer
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


class Bystanders:
    """How much of a core processes take that have nothing to do with the benchmark."""

    def __init__(self, pids: set[int]) -> None:
        self._pids = pids
        self._mark = self._now()

    def _now(self) -> tuple[float, float]:
        user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
        busy = (user + nice + system) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - sum(map(cpu_of, self._pids))

    def share(self) -> float:
        """Since the last call."""
        before, self._mark = self._mark, self._now()
        return max(0.0, (self._mark[1] - before[1]) / (self._mark[0] - before[0]))


def steps(name: str, server: Server | Loop, options: argparse.Namespace, seed: int) -> Iterator[dict[str, float]]:
    """One contestant, one round, all that was asked for, one measurement after the other."""
    if "throughput" in options.only:
        for count in COUNTS:
            if isinstance(server, Loop):
                yield {f"tok/s x{count}": count * options.tokens / server.generate(count, options.tokens)}
                continue
            figures = measures.throughput(server, count, options.tokens, seed * 10 + count)
            yield {f"{key} x{count}": value for key, value in figures.items()}
    if "gap" in options.only and isinstance(server, Server) and name != LLAMA_SERVER:
        yield measures.gap(server, seed)
    if "conversations" in options.only and isinstance(server, Server) and name in (DIRECT, XLLAMACPP):
        yield measures.conversations(server, seed)


def rounded(values: dict[str, float]) -> dict[str, float]:
    """For people."""
    return {key: round(value, 3) for key, value in values.items()}


def summary(figures: Figures) -> None:
    """Medians, and maxima of what is judged by its worst, one line a contestant."""
    for name, values in figures.items():
        line = {key: round(statistics.median(items), 3) for key, items in values.items()}
        line["measurements"] = min(map(len, values.values()))
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
    parser.add_argument("--others", type=float, default=0.1, help="share of a core that other processes may take during a measurement")
    parser.add_argument("--options", default="{}", help="options of the engine, as JSON")
    options = parser.parse_args()
    figures: Figures = {}
    with contestants(options, Setting(model_file(), threads=options.threads)) as found:
        for server in found.values():
            if isinstance(server, Server):
                measures.throughput(server, 1, 8, 0)  # the first request pays for what is made once
        bystanders = Bystanders({os.getpid(), *(pid for server in found.values() for pid in server.pids)})
        for number in range(options.first, options.first + options.rounds):
            names = list(found)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                bystanders.share()
                for result in steps(name, found[name], options, number):
                    others = bystanders.share()
                    print(json.dumps({"round": number, "of": name, **rounded(result), "others": round(others, 2)}), flush=True)
                    if others > options.others:
                        continue
                    for key, value in result.items():
                        figures.setdefault(name, {}).setdefault(key, []).append(value)
    summary(figures)


if __name__ == "__main__":
    main()
