"""What an upload of a model file does to the traffic beside it: lag of the event loop and latency of requests, quiet and during the upload.

One gateway serves steady chat requests (a scripted engine) while a model file is sent to its admin listener as fast as it goes. The lag is
sampled inside the gateway's loop: how much later than asked a 2 ms timer fires. Everything shares the machine: sender, clients, engine.

usage: python loadtests/uploads/bench.py [--size 200] [--rate 100] [--seconds 8] [--uploads 1]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop
import yaml

from gateway.app.configuration.plugins import OURS
from gateway.app.process import Process
from gateway.config.load import load
from loadtests.llamacpp.random_gguf import Shape, write
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, ROOT, configuration, external

ADMIN = "admin-key-0123456789abcdef0123456789abcdef"
TICK = 0.002
BODY = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "Hello!"}]}).encode()
Window = tuple[float, float]


def serve(config: Path, samples: Path) -> None:
    """The gateway, with a task beside it that measures the loop. The samples (time, lag) are written at the end."""
    found = array("d")

    async def sample() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK)
            now = time.monotonic()
            found.extend((now, now - before - TICK))

    async def run() -> None:
        sampling = asyncio.ensure_future(sample())
        await Process(load(config, {}, OURS.schemas()), {}, None).run()
        sampling.cancel()

    uvloop.run(run())
    samples.write_bytes(found.tobytes())


class Traffic:
    """Requests at a fixed rate over a few connections; (time, seconds) of each."""

    def __init__(self, host: str, rate: float, clients: int = 4) -> None:
        self.host, self.pause, self.stop = host, clients / rate, threading.Event()
        self.times: list[tuple[float, float]] = []
        self.failed = 0
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        due = time.monotonic()
        while not self.stop.wait(max(0.0, due - time.monotonic())):
            due += self.pause
            began = time.monotonic()
            connection.request("POST", "/v1/chat/completions", BODY, headers)
            answer = connection.getresponse()
            answer.read()
            self.failed += answer.status != 200
            self.times.append((began, time.monotonic() - began))
        connection.close()

    def close(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def quantiles(values: list[float]) -> str:
    """Median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(values) or [0.0]
    picked = (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1])
    return "  ".join(f"{name} {value * 1000:6.2f} ms" for name, value in zip(("p50", "p99", "max"), picked, strict=True))


def within(samples: list[tuple[float, float]], window: Window) -> list[float]:
    return [value for at, value in samples if window[0] <= at <= window[1]]


def gguf(directory: Path, megabytes: int) -> Path:
    """A valid model with so many bytes behind it; their content costs the gateway nothing but its length."""
    path = write(directory / "m.gguf", Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32))
    with path.open("ab") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1024 * 1024))
    return path


def measure(directory: Path, options: Any, engine: EngineThread) -> None:
    config = configuration(
        directory / "state", engines=[external("fake", engine.port, slots=64)], models=[{"name": "m1", "pool": ["fake"]}]
    )
    config["identity"]["api_keys"]["static"].append({"id": "a", "key": ADMIN, "tenant": "t", "models": ["*"], "roles": ["admin"]})
    file, samples = directory / "gatehouse.yaml", directory / "samples"
    file.write_text(yaml.safe_dump(config))
    model = gguf(directory, options.size)
    command = [sys.executable, __file__, "--serve", str(file), "--samples", str(samples)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            found = dict(line.strip().split(": ", 1) for line in (child.stdout.readline() for _ in range(2)))
            traffic = Traffic(found["gateway"].removeprefix("http://"), options.rate)
            time.sleep(2.0)
            quiet = (time.monotonic(), time.monotonic() + options.seconds)
            time.sleep(options.seconds)
            busy = upload(found["admin"], model, options.uploads)
            traffic.close()
        finally:
            child.terminate()
            child.wait(30)
    numbers = array("d", samples.read_bytes())
    lags = list(zip(numbers[::2], numbers[1::2], strict=True))
    total = options.uploads * model.stat().st_size / 1e6
    print(
        f"{total:.0f} MB in {options.uploads} upload(s), {busy[1] - busy[0]:.1f} s ({total / (busy[1] - busy[0]):.0f} MB/s with checksums)"
    )
    print(f"{options.rate:g} requests/s, {traffic.failed} failed")
    for name, window in (("quiet", quiet), ("upload", busy)):
        print(f"{name:7} lag of the loop  {quantiles(within(lags, window))}")
        print(f"{name:7} requests         {quantiles(within(traffic.times, window))}")


def upload(admin: str, model: Path, count: int) -> Window:
    began = time.monotonic()
    environ = {**os.environ, "GATEHOUSE_URL": admin, "GATEHOUSE_KEY": ADMIN}
    command = [sys.executable, "-m", "gateway", "models", "add", str(model), "-o", "json"]
    running = [
        subprocess.Popen([*command, "--name", f"m{number}.gguf"], cwd=ROOT, env=environ, stdout=subprocess.PIPE) for number in range(count)
    ]
    for process in running:
        shown = json.loads(process.communicate(timeout=200)[0])
        assert shown["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    return began, time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200, help="MiB of a file")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second beside it")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the quiet part")
    parser.add_argument("--uploads", type=int, default=1, help="at once")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.samples)
        return
    engine = EngineThread()
    try:
        with tempfile.TemporaryDirectory() as directory:
            measure(Path(directory), options, engine)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
