"""Does the gateway's memory stay where it is? `python -m loadtests.routing.memory [--marks 1000 20000 60000 100000]`.

A gateway over an engine with a static answer (nginx) gets so many requests in all, each with a text of its own, as fast as they
go over 32 connections (wrk). At each mark the resident memory is read, anonymous pages (what the process allocated) apart. The first
requests pay for what is built once (connections, caches, the allocator's arenas), so growth is counted from the second mark on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.relay.processes import free_port, need
from loadtests.relay.run import ANSWER, ENGINE, MODELS
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer %(key)s"
local sent = %(first)d
function request()
  sent = sent + 1
  return wrk.format(nil, nil, nil, string.format(
    '{"model":"m1","messages":[{"role":"user","content":"Question %%d: which documents do I need?"}],"max_tokens":16}', sent))
end
"""


@contextmanager
def engine(folder: Path) -> Iterator[int]:
    """nginx with a static answer; its port."""
    port = free_port()
    place = folder / "engine"
    place.mkdir()
    file = folder / "engine.conf"
    file.write_text(ENGINE.format(port=port, folder=place, answer=json.dumps(ANSWER), models=json.dumps(MODELS)))
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    with subprocess.Popen(["nginx", "-c", str(file), "-e", str(place / "error.log")], env={**os.environ, "PATH": path}) as process:
        try:
            yield port
        finally:
            process.terminate()


def memory(pid: int) -> tuple[float, float]:
    """(resident, anonymous) MiB of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, anonymous = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
    return resident, anonymous


def send(gatehouse: Gatehouse, folder: Path, goal: int) -> int:
    """Load, a second at a time, until so many requests were answered since the start; how many they are."""
    script = folder / "load.lua"
    while (sent := int(gatehouse.metric("gatehouse_requests_total"))) < goal:
        script.write_text(SCRIPT % {"key": KEY, "first": sent})
        command = ["wrk", "-t1", "-c32", "-d1s", "-s", str(script), f"{gatehouse.url}/v1/chat/completions"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        until(lambda: gatehouse.metric("gatehouse_endpoint_in_flight") == 0, 10, "the end of all requests")
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--marks", type=int, nargs="+", default=[1000, 20_000, 60_000, 100_000])
    parser.add_argument("--durability", default="write", choices=("async", "write", "fsync"))
    options = parser.parse_args()
    need("nginx", "wrk")
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench") as name, engine(Path(name)) as port:
        folder = Path(name)
        parts = {"engines": [external("a", port, slots=64)], "models": [{"name": "m1", "pool": ["a"]}]}
        config = configuration(folder / "state", **parts, audit={"durability": options.durability})
        with Gatehouse(folder, config) as gatehouse:
            assert gatehouse.process is not None
            pid, seen = gatehouse.process.pid, list[tuple[int, float]]()
            print(f"{'requests':>9} {'resident':>9} {'anonymous':>10}  MiB")
            for mark in (0, *options.marks):
                sent = send(gatehouse, folder, mark)
                resident, anonymous = memory(pid)
                seen.append((sent, anonymous))
                print(f"{sent:>9} {resident:>9.1f} {anonymous:>10.1f}", flush=True)
            good = gatehouse.metric("gatehouse_requests_total", status="200")
    (first, before), (last, after) = seen[min(2, len(seen) - 1)], seen[-1]
    print(f"answered with 200: {good:.0f}; from the second mark on {(after - before) * 2**20 / max(1, last - first):.1f} bytes a request")


if __name__ == "__main__":
    main()
