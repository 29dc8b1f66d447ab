"""The llama.cpp sidecar against its peers: tokens a second, the gap that a long prompt makes, what conversations reuse, how soon a short
prompt beside a long one is answered, and how many requests of a mix are served within an objective.

    python -m loadtests.llamacpp.bench [--xllamacpp PYTHON] [--llama-cpp-server PYTHON] [--only throughput,gap,conversations,beside,goodput]
                                       [--rounds 3] [--tokens 64] [--counts 1,4,8] [--rate 0.25] [--requests 60] [--mix mixed|chats|halves]
                                       [--variants q8,ngram]

Builds a 207M-parameter Q8_0 model with random weights once (in the system's temporary directory). All servers are started at the
beginning and stay; each measurement is made of one after the other, each round in another order, so that what else the machine does falls
on all. Many short rounds tell more than few long ones. Prints each measurement as a line of JSON, then the medians, of figures where the
worst counts the maxima, and of speed and processor time the median, least and greatest ratio to a peer in the same round. The client and
the gateway share the machine's cores with the servers. A measurement during which processes that have nothing to do with it took more
than `--others` of a core is printed and left out of the summary, and so is one during which other machines took more than `--steal`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtests.llamacpp import goodput, measures
from loadtests.llamacpp.peers import (
    DIRECT,
    GATEWAY,
    LLAMA_SERVER,
    LOOP,
    VARIANTS,
    XLLAMACPP,
    Loop,
    Server,
    Setting,
    cpu_of,
    gatehouse,
    loop,
    peer,
)
from loadtests.llamacpp.random_gguf import Shape, write
from loadtests.llamacpp.traffic import MIXED, MIXES

SHAPE = Shape(layers=12, width=1024, heads=16, kv_heads=8, feed_forward=2816, context=4096, extra_words=31600)
WORST = ("ratio", "work ratio", "alone ratio", "longest gap ms")
Figures = dict[str, dict[str, dict[int, float]]]
"""By contestant, figure and round."""
Measure = Callable[[Any, int], dict[str, float]]


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
        for variant in filter(None, options.variants.split(",")):
            (work / variant).mkdir()
            _gateway, sidecar = stack.enter_context(gatehouse(setting, work / variant, VARIANTS[variant]))
            found[f"{DIRECT} {variant}"] = replace(sidecar, name=f"{DIRECT} {variant}")
            if options.xllamacpp:
                found[f"{XLLAMACPP} {variant}"] = stack.enter_context(peer(XLLAMACPP, setting, options.xllamacpp, work, variant))
        yield found


class Machine:
    """What the machine did beside the benchmark, since the last call of `since`."""

    def __init__(self, pids: set[int]) -> None:
        self._pids = pids
        self._mark = self._now()

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _idle, _wait, _irq, _soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        return time.monotonic(), (user + nice + system) / ticks - sum(map(cpu_of, self._pids)), steal / ticks

    def since(self) -> dict[str, float]:
        """Cores taken by processes that have nothing to do with the benchmark (`others`) and by other machines (`steal`)."""
        before, self._mark = self._mark, self._now()
        at, others, steal = (now - then for now, then in zip(self._mark, before, strict=True))
        return {"others": max(0.0, others / at), "steal": steal / at}


def speed(count: int, tokens: int, server: Server | Loop, seed: int) -> dict[str, float]:
    """Tokens a second of `count` requests at once."""
    if isinstance(server, Loop):
        return {f"tok/s x{count}": count * tokens / server.generate(count, tokens)}
    return {f"{key} x{count}": value for key, value in measures.throughput(server, count, tokens, seed * 10 + count).items()}


def phases(options: argparse.Namespace) -> list[tuple[frozenset[str], Measure]]:
    """What was asked for: whom it is measured of, and how. One phase is measured of all, by turns, before the next begins."""
    found: list[tuple[frozenset[str], Measure]] = []
    if "throughput" in options.only:
        everybody = frozenset((DIRECT, GATEWAY, LOOP, XLLAMACPP, LLAMA_SERVER))
        everybody |= {f"{name} {variant}" for name in (DIRECT, XLLAMACPP) for variant in VARIANTS}
        found += [(everybody, functools.partial(speed, int(count), options.tokens)) for count in options.counts.split(",")]
    if "gap" in options.only:
        found.append((frozenset((DIRECT, GATEWAY, XLLAMACPP)), measures.gap))
    if "conversations" in options.only:
        found.append((frozenset((DIRECT, XLLAMACPP)), measures.conversations))
    if "beside" in options.only:
        found += [(frozenset((DIRECT, GATEWAY, XLLAMACPP)), measure) for measure in (goodput.alone, goodput.beside, goodput.crowded)]
    if "goodput" in options.only:
        mixed = functools.partial(goodput.mixed, rate=options.rate, count=options.requests, kind=options.mix)
        found.append((frozenset((DIRECT, GATEWAY, XLLAMACPP)), mixed))
    return found


def rounded(values: dict[str, float]) -> dict[str, float]:
    """For people."""
    return {key: round(value, 3) for key, value in values.items()}


def summary(figures: Figures) -> None:
    """Medians, maxima of what is judged by its worst, and medians of the ratios to a peer in the same round; one line each."""
    for name, values in figures.items():
        line = {key: round(statistics.median(items.values()), 3) for key, items in values.items()}
        line["measurements"] = min(map(len, values.values()))
        line |= {f"max {key}": round(max(items.values()), 3) for key, items in values.items() if key in WORST}
        print(json.dumps({"median of": name, **line}))
    variants = [(name, f"{name} {variant}") for name in (DIRECT, XLLAMACPP) for variant in VARIANTS]
    pairs = [(one, name) for one in (XLLAMACPP, LLAMA_SERVER) for name in figures]
    pairs += [*variants, *((f"{XLLAMACPP} {variant}", f"{DIRECT} {variant}") for variant in VARIANTS)]
    for peer_name, name in pairs:
        if name in figures and peer_name in figures and name != peer_name:
            print(json.dumps({"paired ratio of": name, "to": peer_name, **ratios(figures[name], figures[peer_name])}))


def ratios(mine: dict[str, dict[int, float]], theirs: dict[str, dict[int, float]]) -> dict[str, list[float]]:
    """Of each figure that both have: the median, the least and the greatest ratio among the rounds in which both were measured."""
    found = {}
    for key in [key for key in mine if key in theirs and key.startswith(("tok/s", "cpu ms"))]:
        if pairs := sorted(mine[key][number] / theirs[key][number] for number in mine[key] if number in theirs[key]):
            found[key] = [round(value, 3) for value in (statistics.median(pairs), pairs[0], pairs[-1])]
    return found


def main() -> None:
    """Run and print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xllamacpp", help="interpreter with the package xllamacpp")
    parser.add_argument("--llama-cpp-server", help="interpreter with llama-cpp-python[server]")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, for throughput")
    parser.add_argument("--counts", default="1,4,8", help="requests at once, for throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="number of the first round: prompts that a former run has not used")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="throughput,gap,conversations")
    parser.add_argument("--rate", type=float, default=0.25, help="requests a second of the mix, for goodput")
    parser.add_argument("--requests", type=int, default=60, help="of the mix, for goodput")
    parser.add_argument("--mix", choices=MIXES, default=MIXED, help="kind of mix, for goodput: see loadtests.llamacpp.traffic")
    parser.add_argument("--without", default="", help="gateway: leave it out")
    parser.add_argument("--others", type=float, default=0.1, help="share of a core that other processes may take during a measurement")
    parser.add_argument("--steal", type=float, default=2.0, help="cores that other machines may take during a measurement")
    parser.add_argument("--variants", default="", help=f"also with {' and '.join(VARIANTS)}, for throughput: the sidecar and xllamacpp")
    parser.add_argument("--options", default="{}", help="options of the engine, as JSON")
    options = parser.parse_args()
    figures: Figures = {}
    setting = Setting(model_file(), threads=options.threads)
    if "beside" in options.only:  # a long prompt and its answer
        setting = replace(setting, context=goodput.LONG + 548)
    with contestants(options, setting) as found:
        for server in found.values():
            if isinstance(server, Server):
                measures.throughput(server, 1, 8, 0)  # the first request pays for what is made once
        machine = Machine({os.getpid(), *(pid for server in found.values() for pid in server.pids)})
        for number in range(options.first, options.first + options.rounds):
            for wanted, measure in phases(options):
                names = [name for name in found if name in wanted]
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    machine.since()
                    # Prompts of its own for each: what one contestant has read lies in the memory of the engine behind both its doors.
                    result = measure(found[name], number * len(found) + list(found).index(name))
                    beside = machine.since()
                    print(json.dumps({"round": number, "of": name, **rounded(result), **rounded(beside)}), flush=True)
                    if beside["others"] <= options.others and beside["steal"] <= options.steal:
                        for key, value in result.items():
                            figures.setdefault(name, {}).setdefault(key, {})[number] = value
    summary(figures)


if __name__ == "__main__":
    main()
