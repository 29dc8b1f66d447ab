"""Reloads under load: what 200 changes cost the requests and streams that are under way, and whether one is lost.

    python -m loadtests.reload.run [--rate 500] [--reloads 200] [--pause 0.2] [--phase 5] [--sidecars 3] [--models 0] [--engines 0]

A real `gatehouse serve` over two scripted engines (tests/fakes/engine.py), which are external engines of the store, and a llama.cpp
sidecar of the store with the demo model. An operator in a process of its own changes keys, limits, models, engines and the file in
turns, then replaces the sidecar. Nine of ten requests are plain, one is a stream of 25 chunks in half a second; two a second go to
the sidecar. `--models` and `--engines` make the configuration larger.

Quiet phases of `--phase` seconds and phases with as many changes take turns, so that what the machine does by itself falls on both
alike; each kind's phases are pooled. Latency counts from when a request was due. Prints Markdown tables: latencies, what the changes
took, and who used the processors. Exits with 1 when a request failed or a stream was cut.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvloop

from loadtests.reload.traffic import Seen, Traffic, request_of
from loadtests.reload.usage import Usage, usage
from tests.e2e.harness import ROOT, Gatehouse, configuration, external

ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"
STREAMED = "fake:normal:chunks=25,interval=0.02"
"""The name by which the scripted engine knows that it is to take half a second."""
TURNS = ("key", "limit", "model", "engine", "key", "limit", "model", "file")
QUIET = "quiet"
WARM_SECONDS = 3.0
"""Before the first phase: connections are made, caches are warm."""
MAX_SECONDS = 120.0


@contextmanager
def scripted(pids: list[int]) -> Iterator[str]:
    """A scripted engine as a process; its URL. Adds its process id to `pids`."""
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.engine"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pids.append(process.pid)
        ready, _, address = process.stdout.readline().strip().partition(" ")
        assert ready == "ready", "the scripted engine did not start"
        yield address if address.startswith("http") else f"http://{address}"
    finally:
        process.kill()
        process.wait(10)


def config(directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The file: enough for the gateway to start, and as much more as is asked for."""
    engines = [external(f"spare-{number}", 9, health={"interval": "1h"}) for number in range(max(1, given.engines))]
    pools = [
        [engines[(number * 7 + step) % len(engines)]["name"] for step in range(min(4, len(engines)))]
        for number in range(max(1, given.models))
    ]
    models = [{"name": f"spare-{number}", "pool": pool} for number, pool in enumerate(pools)]
    made = configuration(directory / "state", engines=engines, models=models, store={"upstreams": ["127.0.0.0/8"]})
    root = {"id": "root", "key": ROOT_KEY, "tenant": "acme", "models": ["*"], "roles": ["admin"]}
    made["identity"]["api_keys"]["static"].append(root)
    return made


def prepare(client: httpx.Client, urls: Sequence[str], sidecar: bool) -> str:
    """The store's resources; returns a key of the store."""

    def create(kind: str, **body: Any) -> Any:
        answer = client.post(f"/{kind}", json=body)
        answer.raise_for_status()
        return answer.json()

    for name, url in zip(("one", "two"), urls, strict=True):
        create("engines", name=name, runtime="external", url=url, slots=512)
    create("models", name="plain", pool=["one", "two"])
    create("models", name="streamed", pool=[{"engine": name, "model": STREAMED} for name in ("one", "two")])
    create("limits", name="bench", per="key", requests={"rate": 1_000_000}, tokens={"rate": 100_000_000})
    if sidecar:
        rollout = {"steps": [0.5], "step_seconds": 0.5}
        create("engines", name="sidecar", runtime="llama.cpp", model="demo-chat.gguf", slots=4, context=256, threads=1, rollout=rollout)
        create("models", name="own", pool=["sidecar"])
    return str(create("keys", tenant="acme", models=["*"])["secret"])


def until_served(gatehouse: Gatehouse, models: Sequence[str]) -> None:
    end = time.monotonic() + 60
    for model in models:
        while gatehouse.chat(model=model, max_tokens=2).status_code != 200:
            if time.monotonic() > end:
                raise SystemExit(f"{model} does not serve")
            time.sleep(0.1)


def turns(rate: int, key: str, sidecar: bool) -> list[tuple[str, bytes]]:
    plain, stream = ("plain", request_of(key, "plain", False)), ("stream", request_of(key, "streamed", True))
    made = [stream if number % 10 == 9 else plain for number in range(rate)]
    if sidecar:
        made[0] = made[rate // 2] = ("own", request_of(key, "own", True).replace(b'"max_tokens": 25', b'"max_tokens": 12'))
    return made


@dataclass
class Phase:
    """What was spent (`used`) between two moments (monotonic)."""

    name: str
    begin: float
    end: float
    used: Usage


class Bench:
    """One run: the traffic goes on, phases come and go. `fixed`: process ids by role, of those that live as long as the run."""

    def __init__(self, given: argparse.Namespace, gatehouse: Gatehouse, key: str, urls: list[str], fixed: dict[str, list[int]]) -> None:
        self._given, self._gatehouse, self._urls, self._roles = given, gatehouse, urls, fixed
        self.traffic = Traffic(int(gatehouse.url.rpartition(":")[2]), given.rate, turns(given.rate, key, given.sidecars > 0))
        self.phases: list[Phase] = []
        self.changes: list[Any] = []

    async def run(self) -> None:
        given = self._given
        running = asyncio.create_task(self.traffic.run())
        kinds = [TURNS[number % len(TURNS)] for number in range(given.reloads - given.sidecars)] + ["sidecar"] * given.sidecars
        operator = await self._operator(kinds)
        together = max(1, round(given.phase / given.pause))
        await asyncio.sleep(WARM_SECONDS)
        for done in range(0, given.reloads - given.sidecars, together):
            await self._phase(QUIET, asyncio.sleep(given.phase))
            await self._phase("reloads", self._operate(operator, min(together, given.reloads - given.sidecars - done)))
        await self._phase(QUIET, asyncio.sleep(given.phase))
        for _ in range(given.sidecars):
            await self._phase("a sidecar replaced", self._operate(operator, 1))
            await self._phase("quiet after that", asyncio.sleep(given.phase))
        self.traffic.stop()
        await running
        operator.kill()
        await operator.wait()

    async def _phase(self, name: str, work: Awaitable[None]) -> None:
        begin, before = time.monotonic(), usage(self._roles)
        await work
        self.phases.append(Phase(name, begin, time.monotonic(), usage(self._roles).since(before)))
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)

    async def _operator(self, kinds: list[str]) -> asyncio.subprocess.Process:
        plan = json.dumps({"kinds": kinds, "pause": self._given.pause, "urls": self._urls})
        command = (sys.executable, "-m", "loadtests.reload.operate", self._gatehouse.admin_url, ROOT_KEY, plan)
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, **pipes)
        assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
        self._roles["operator"] = [process.pid]
        return process

    async def _operate(self, operator: asyncio.subprocess.Process, count: int) -> None:
        assert operator.stdin is not None and operator.stdout is not None
        async with asyncio.timeout(MAX_SECONDS):
            operator.stdin.write(b"%d\n" % count)
            while (line := await operator.stdout.readline()) != b"done\n":
                if not line:
                    raise SystemExit("the operator failed")
                self.changes.append(json.loads(line))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else float("nan")


def report(seen: list[Seen], phases: list[Phase], changes: list[Any]) -> bool:
    """Prints the tables. True when nothing was lost."""
    print("| phases | s | changes | requests | failed | cut | plain p50 / p99 | first chunk p50 / p99 | gap p99 | sent late p99 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    names = list(dict.fromkeys(phase.name for phase in phases))
    for name in names:
        pooled = [phase for phase in phases if phase.name == name]
        mine = [one for one in seen if any(phase.begin <= one.due < phase.end for phase in pooled)]
        streams = [one for one in mine if one.kind == "stream"]
        failed = sum(1 for one in mine if one.status != 200)
        cut = sum(1 for one in mine if one.status == 200 and not one.whole)
        done = sum(1 for change in changes if any(phase.begin <= change["begin"] < phase.end for phase in pooled))
        times, first = _plain(mine), [one.took for one in streams if one.whole]
        gap = percentile([one.longest_gap for one in streams if one.whole], 0.99)
        late = percentile([one.late for one in mine], 0.99)
        print(
            f"| {name} | {sum(phase.end - phase.begin for phase in pooled):.0f} | {done} | {len(mine)} | {failed} | {cut} "
            f"| {percentile(times, 0.5):.2f} / {percentile(times, 0.99):.2f} "
            f"| {percentile(first, 0.5):.2f} / {percentile(first, 0.99):.2f} | {gap:.1f} | {late:.2f} |"
        )
    report_ratio(seen, phases)
    report_changes(changes)
    report_usage(phases, names)
    lost = [one for one in seen if not one.whole]
    for one in lost[:5]:
        print(f"lost: {one}", file=sys.stderr)
    return not lost


def _plain(seen: list[Seen]) -> list[float]:
    return [one.took for one in seen if one.kind == "plain" and one.whole]


def report_ratio(seen: list[Seen], phases: list[Phase]) -> None:
    """Each phase with changes against the quiet ones before and after it, so that one bad moment of the machine counts once."""
    tails = [percentile(_plain([one for one in seen if phase.begin <= one.due < phase.end]), 0.99) for phase in phases]
    ratios = [
        tails[at] / ((tails[at - 1] + tails[at + 1]) / 2)
        for at in range(1, len(phases) - 1)
        if phases[at].name == "reloads" and phases[at - 1].name == phases[at + 1].name == QUIET
    ]
    if ratios:
        print(
            f"\np99 of a phase with changes to the mean of the quiet ones beside it: median {statistics.median(ratios):.2f}, "
            f"from {min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)} phases)"
        )


def report_changes(changes: list[Any]) -> None:
    print("\n| change | times | write p50 / p99, ms | until it is in force after that, p50 / max, ms |\n|---|---|---|---|")
    for kind in dict.fromkeys(change["kind"] for change in changes):
        mine = [change for change in changes if change["kind"] == kind]
        waits = [change["in_force"] for change in mine if change["in_force"] is not None]
        took = [change["end"] - change["begin"] - (change["in_force"] or 0.0) for change in mine]
        waited = f"{percentile(waits, 0.5):.1f} / {max(waits) * 1000:.1f}" if waits else "-"
        print(f"| {kind} | {len(mine)} | {percentile(took, 0.5):.1f} / {percentile(took, 0.99):.1f} | {waited} |")


def report_usage(phases: list[Phase], names: list[str]) -> None:
    """Percent of one processor, by role; the machine has as many times 100 as processors."""
    roles = list(dict.fromkeys(role for phase in phases for role in phase.used.roles))
    print(f"\n| processor, % of one | {' | '.join(roles)} | others | stolen |\n|{'---|' * (len(roles) + 3)}")
    for name in names:
        pooled = [phase for phase in phases if phase.name == name]
        seconds = sum(phase.end - phase.begin for phase in pooled)
        used = functools.reduce(Usage.plus, (phase.used for phase in pooled))
        others = max(0.0, used.busy - sum(used.roles.values()))
        shares = [*(used.roles.get(role, 0.0) for role in roles), others, used.stolen]
        print(f"| {name} | {' | '.join(f'{share / seconds * 100:.0f}' for share in shares)} |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rate", type=int, default=500)
    arguments.add_argument("--reloads", type=int, default=200)
    arguments.add_argument("--pause", type=float, default=0.2)
    arguments.add_argument("--phase", type=float, default=5.0)
    arguments.add_argument("--sidecars", type=int, default=3)
    arguments.add_argument("--models", type=int, default=0)
    arguments.add_argument("--engines", type=int, default=0)
    given = arguments.parse_args()
    engines: list[int] = []
    with scripted(engines) as one, scripted(engines) as two, scripted(engines) as spare, tempfile.TemporaryDirectory() as folder:
        with Gatehouse(Path(folder), config(Path(folder), given)) as gatehouse:
            assert gatehouse.process is not None
            roles = {"gateway": [gatehouse.process.pid], "sidecars": [], "operator": [], "load": [os.getpid()], "scripted engines": engines}
            headers = {"authorization": f"Bearer {ROOT_KEY}"}
            with httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=60) as client:
                key = prepare(client, (one, two), given.sidecars > 0)
            until_served(gatehouse, ("plain", "streamed", *(("own",) if given.sidecars else ())))
            bench = Bench(given, gatehouse, key, [one, spare], roles)
            gc.freeze()
            gc.set_threshold(100_000, 50, 1000)  # whoever measures keeps everything that it has seen
            uvloop.run(bench.run())
            applied, refused = (gatehouse.metric("gatehouse_config_reloads_total", result=result) for result in ("applied", "refused"))
        whole = report(bench.traffic.seen, bench.phases, bench.changes)
        print(f"\n{len(bench.changes)} changes; configurations put into force: {applied:.0f}, refused: {refused:.0f}")
    if not whole or refused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
