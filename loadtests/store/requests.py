"""What a request, the start and memory cost as the store grows: tenants, keys, roles and bindings, limits, guardrails, engines, and others.

    python -m loadtests.store.requests [--sizes 1,1000,100000] [--only keys,limits] [--rounds 200] [--turns 3]
                                       [--instructions [--build DIRECTORY]]

Rows are written into the tables directly (SQLite). Then the gateway of loadtests.pipeline.bench starts on them, in one process, without
sockets, with an engine that answers at once. One object of each kind concerns the request. `us` is the smallest CPU time of a request over
all rounds and turns, in which the sizes take turns; start and resident memory (of the start alone: the interpreter and libraries come on
top) are those of the turn that started fastest. --instructions counts instructions as loadtests/pipeline/instructions.py does, which takes
minutes for 1,000 objects and hours for 100,000, and needs valgrind and a build of these very sources (scripts/compile.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from gateway.store.store import Store
from gateway.store.tables import resources
from loadtests.pipeline.instructions import TIMEOUT
from loadtests.store.keys import PEPPER, fill, opened, table_of
from loadtests.store.others import FIXED

Bodies = list[tuple[str, str, dict[str, Any]]]
CHATTER: Final[dict[str, Any]] = {"permissions": ["infer:*"]}
FOUND: Final = re.compile(r"start ([\d.]+) s, ([\d.]+) s of CPU, (\d+) MiB.*CPU ([\d.]+)|instructions a request: ([\d,]+)", re.DOTALL)


def tenants(number: int) -> Bodies:
    return [("tenants", "bench" if not number else f"t{number:06d}", {"description": "one of many"})]


def bindings(number: int) -> Bodies:
    subject = f"user/u{number:06d}" if number else "key/bench"
    return [("roles", f"r{number:06d}", CHATTER), ("bindings", f"b{number:06d}", {"role": f"r{number:06d}", "subjects": [subject]})]


def limits(number: int) -> Bodies:
    match = {"tenant": f"t{number:06d}" if number else "bench"}
    return [("limits", f"l{number:06d}", {"match": match, "per": "key", "requests": {"rate": 1_000_000, "per": 1}})]


def guardrails(number: int) -> Bodies:
    tenant = f"t{number:06d}" if number else "bench"
    return [("guardrails", f"g{number:06d}", {"type": "denylist", "tenants": [tenant], "settings": {"phrases": [f"never {number}"]}})]


def tools(number: int) -> Bodies:
    tenant, tool = f"t{number:06d}" if number else "bench", {"tool": "run_*", "action": "block"}
    return [("guardrails", f"g{number:06d}", {"type": "tool_calls", "tenants": [tenant], "settings": {"rules": [tool]}})]


def engines(number: int) -> Bodies:
    engine = {"runtime": "external", "url": f"http://127.0.0.1:9/{number}", "slots": 4}
    return [("engines", f"e{number:06d}", engine), ("models", f"m{number:06d}", {"pool": [f"e{number:06d}"]})]


def models(number: int) -> Bodies:
    return [("models", f"m{number:06d}", {"pool": ["up"], "aliases": [f"alias-{number}"]})]


def prices(number: int) -> Bodies:
    return [("prices", f"p{number:06d}", {"model": f"m{number:06d}" if number else "m1", "prompt": 1.0, "completion": 2.0})]


def halts(number: int) -> Bodies:
    return [("halts", f"agent/a{number:06d}", {"target": f"agent/a{number:06d}", "reason": "one of many"})]


def suspensions(number: int) -> Bodies:
    return [("suspensions", f"tenant/t{number:06d}", {"target": f"tenant/t{number:06d}", "reason": "one of many"})]


KINDS: Final[dict[str, Callable[[int], Bodies] | None]] = {
    "keys": None,
    "tenants": tenants,
    "bindings": bindings,
    "limits": limits,
    "guardrails": guardrails,
    "tools": tools,
    "engines": engines,
    "models": models,
    "prices": prices,
    "halts": halts,
    "suspensions": suspensions,
}


async def filled(state: Path, kind: str, count: int) -> str:
    """The key to ask with; "" for that of the configuration."""
    state.mkdir()
    store: Store = opened("sqlite", state)
    await store.start()
    make, key = KINDS[kind], ""
    if make is None:
        key = (await fill(store, count))[0]
    else:
        rows = [{**FIXED, "kind": kind, "name": name, "body": body} for number in range(count) for kind, name, body in make(number)]

        def insert(connection: sa.Connection) -> None:
            for start in range(0, len(rows), 10_000):
                connection.execute(sa.insert(resources), rows[start : start + 10_000])

        await store._database.run(insert, write=True, deadline=240.0)
    await store.aclose()
    return key


def measured(state: Path, key: str, rounds: int, instructions: bool, build: str | None = None) -> tuple[float, ...]:
    """Seconds, seconds of CPU, MiB, microseconds; or the instructions. Raises RuntimeError."""
    environ = {**os.environ, "GATEHOUSE_PEPPER": PEPPER, **({"BENCH_KEY": key} if key else {})}
    command = [sys.executable, "-m", "loadtests.pipeline." + ("instructions" if instructions else "bench"), "--rounds", str(rounds)]
    command += ["--build", build] if build else []
    done = subprocess.run([*command, "--state", str(state)], capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environ)
    found = FOUND.search(done.stdout)
    if found is None:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "no figure")
    return tuple(float(one.replace(",", "")) for one in found.groups() if one is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,1000,100000")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--build", help="with --instructions: a directory that scripts/compile.py made of these sources")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    for kind in given.only.split(","):
        with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as folder:
            places = {size: Path(folder) / str(size) for size in sizes}
            keys = {size: asyncio.run(filled(places[size], kind, size)) for size in sizes}
            turns: dict[int, list[tuple[float, ...]]] = {size: [] for size in sizes}
            for _ in range(1 if given.instructions else given.turns):
                for size in sizes:
                    turns[size].append(measured(places[size], keys[size], given.rounds, given.instructions, given.build))
            rows = []
            for size, found in turns.items():
                best = min(found)
                figures = {"instructions": best[0]} if given.instructions else {"us": min(one[3] for one in found), "start, s": best[0]}
                further = {} if given.instructions else {"start, s of CPU": best[1], "MiB": best[2]}
                rows.append({"kind": kind, "objects": size, **figures, **further})
            print(table_of(rows), flush=True)


if __name__ == "__main__":
    main()
