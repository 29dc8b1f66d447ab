"""Reloads under load: what 200 changes cost the requests and streams that are under way, and whether one is lost.

    python -m loadtests.reload.run [--rate 500] [--reloads 200] [--pause 0.2] [--quiet 20] [--sidecars 3] [--models 0] [--engines 0]

A real `gatehouse serve` over two scripted engines (tests/fakes/engine.py), which are external engines of the store, and a llama.cpp
sidecar of the store with the demo model. An operator in a process of its own changes keys, limits, models, engines and the file in
turns, then replaces the sidecar. Nine of ten requests are plain, one is a stream of 25 chunks in half a second; two a second go to
the sidecar. `--models` and `--engines` make the configuration larger. Prints a Markdown table; exits with 1 when a request failed or
a stream was cut. Latency counts from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loadtests.reload.traffic import Seen, Traffic, request_of
from tests.e2e.harness import ROOT, Gatehouse, configuration, external

ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"
STREAMED = "fake:normal:chunks=25,interval=0.02"
"""The name by which the scripted engine knows that it is to take half a second."""
TURNS = ("key", "limit", "model", "engine", "key", "limit", "model", "file")
MAX_SECONDS = 230.0


@contextmanager
def scripted() -> Iterator[str]:
    """A scripted engine as a process; its URL."""
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.engine"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
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


async def measure(
    given: argparse.Namespace, gatehouse: Gatehouse, key: str, urls: list[str]
) -> tuple[list[Seen], list[tuple[str, float, float]], list[Any]]:
    """All requests, the phases (name, begin, end), and the changes."""
    traffic = Traffic(int(gatehouse.url.rpartition(":")[2]), given.rate, turns(given.rate, key, given.sidecars > 0))
    running = asyncio.create_task(traffic.run())
    phases: list[tuple[str, float, float]] = []
    changes: list[Any] = []

    async def phase(name: str, work: Awaitable[None]) -> None:
        begin = time.monotonic()
        await work
        phases.append((name, begin, time.monotonic()))

    async def operator(kinds: list[str], pause: float) -> asyncio.subprocess.Process:
        plan = json.dumps({"kinds": kinds, "pause": pause, "urls": urls})
        command = (sys.executable, "-m", "loadtests.reload.operate", gatehouse.admin_url, ROOT_KEY, plan)
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, **pipes)
        assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
        return process

    async def operate(process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(MAX_SECONDS):
            output, _ = await process.communicate(b"go\n")
        changes.extend(json.loads(line) for line in output.splitlines())
        if process.returncode:
            raise SystemExit("the operator failed")

    kinds = [TURNS[number % len(TURNS)] for number in range(given.reloads - given.sidecars)]
    first, second = await operator(kinds, given.pause), await operator(["sidecar"] * given.sidecars, 0.5)
    await asyncio.sleep(2.0)  # connections are made, caches are warm
    await phase("quiet", asyncio.sleep(given.quiet))
    await phase("reloads", operate(first))
    await phase("sidecars replaced", operate(second))
    await phase("quiet again", asyncio.sleep(given.quiet))
    traffic.stop()
    await running
    return traffic.seen, phases, changes


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else float("nan")


def report(seen: list[Seen], phases: list[tuple[str, float, float]], changes: list[Any]) -> bool:
    """Prints the tables. True when nothing was lost."""
    print("| phase | seconds | changes | requests | failed | streams cut | plain p50 / p99, ms | first chunk p50 / p99 | longest gap p99 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, begin, end in phases:
        mine = [one for one in seen if begin <= one.due < end]
        plain = [one for one in mine if one.kind == "plain"]
        streams = [one for one in mine if one.kind == "stream"]
        failed = sum(1 for one in mine if one.status != 200)
        cut = sum(1 for one in mine if one.status == 200 and not one.whole)
        done = sum(1 for change in changes if begin <= change["begin"] < end)
        times, first = [one.took for one in plain if one.whole], [one.took for one in streams if one.whole]
        gaps = [one.longest_gap for one in streams if one.whole]
        print(
            f"| {name} | {end - begin:.0f} | {done} | {len(mine)} | {failed} | {cut} "
            f"| {percentile(times, 0.5):.2f} / {percentile(times, 0.99):.2f} "
            f"| {percentile(first, 0.5):.2f} / {percentile(first, 0.99):.2f} | {percentile(gaps, 0.99):.1f} |"
        )
    print("\n| change | times | write p50 / p99, ms | until it is in force after that, p50 / max, ms |\n|---|---|---|---|")
    for kind in dict.fromkeys(change["kind"] for change in changes):
        mine = [change for change in changes if change["kind"] == kind]
        waits = [change["in_force"] for change in mine if change["in_force"] is not None]
        took = [change["end"] - change["begin"] - (change["in_force"] or 0.0) for change in mine]
        waited = f"{percentile(waits, 0.5):.1f} / {max(waits) * 1000:.1f}" if waits else "-"
        print(f"| {kind} | {len(mine)} | {percentile(took, 0.5):.1f} / {percentile(took, 0.99):.1f} | {waited} |")
    lost = [one for one in seen if not one.whole]
    for one in lost[:5]:
        print(f"lost: {one}", file=sys.stderr)
    return not lost


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rate", type=int, default=500)
    arguments.add_argument("--reloads", type=int, default=200)
    arguments.add_argument("--pause", type=float, default=0.2)
    arguments.add_argument("--quiet", type=float, default=20.0)
    arguments.add_argument("--sidecars", type=int, default=3)
    arguments.add_argument("--models", type=int, default=0)
    arguments.add_argument("--engines", type=int, default=0)
    given = arguments.parse_args()
    with scripted() as one, scripted() as two, scripted() as spare, tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as folder:
        with Gatehouse(Path(folder), config(Path(folder), given)) as gatehouse:
            headers = {"authorization": f"Bearer {ROOT_KEY}"}
            with httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=60) as client:
                key = prepare(client, (one, two), given.sidecars > 0)
            until_served(gatehouse, ("plain", "streamed", *(("own",) if given.sidecars else ())))
            seen, phases, changes = asyncio.run(measure(given, gatehouse, key, [one, spare]))
            applied, refused = (gatehouse.metric("gatehouse_config_reloads_total", result=result) for result in ("applied", "refused"))
        whole = report(seen, phases, changes)
        print(f"\n{len(changes)} changes; configurations put into force: {applied:.0f}, refused: {refused:.0f}")
    if not whole or refused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
