"""By how many tokens streams that run at once go beyond a limit of tokens.

    python -m loadtests.limits.overshoot [--streams 200] [--rate 10000] [--seconds 20] [--workers 0] [--tokens 40] [--max-tokens 100]

A real `gatehouse serve` over a scripted engine (tests/fakes/engine.py) whose answers have `--tokens` chunks. So many clients stream one
answer after the other, each asking for at most `--max-tokens`, under a limit of `--rate` tokens a minute. What they used (the audit
log says) may be at most the limit, what refilled meanwhile, and what was reserved too little. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from tests.e2e import adminapi
from tests.e2e.harness import KEY, ROOT, Gatehouse, external
from tests.fakes.ports import empty_port
from tests.waiting import until


async def stream(port: int, until_: float, most: int, statuses: Counter[int]) -> None:
    """One answer after the other on a connection; a refused one is tried again after a while."""
    body = {"model": "m1", "stream": True, "max_tokens": most, "messages": [{"role": "user", "content": "x" * 100}]}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while time.monotonic() < until_:
            writer.write(head + data)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = int(answer[9:12])
            statuses[status] += 1
            if b"transfer-encoding: chunked" in answer:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
                await asyncio.sleep(0.2)
    finally:
        writer.close()


async def run(arguments: argparse.Namespace, port: int) -> tuple[Counter[int], float]:
    statuses: Counter[int] = Counter()
    begun = time.monotonic()
    clients = [stream(port, begun + arguments.seconds, arguments.max_tokens, statuses) for _ in range(arguments.streams)]
    await asyncio.gather(*clients)
    return statuses, time.monotonic() - begun


def used(gatehouse: Gatehouse) -> tuple[int, int]:
    """Tokens that the log says were used, and the most that one request used beyond its reservation."""
    records = gatehouse.audit()
    reserved = {one["request_id"]: one["reserved_prompt"] + one["reserved_completion"] for one in records if one["kind"] == "intent"}
    spent = {
        one["request_id"]: one.get("prompt_tokens", 0) + one.get("completion_tokens", 0) for one in records if one["kind"] == "outcome"
    }
    return sum(spent.values()), max((tokens - reserved.get(id, 0) for id, tokens in spent.items() if id in reserved), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("streams", 200), ("rate", 10_000), ("seconds", 20), ("workers", 0), ("tokens", 40), ("max-tokens", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, empty_port() as engine_port:
        command = [sys.executable, "-m", "tests.fakes.engine", "--port", str(engine_port)]
        engine = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert engine.stdout is not None and engine.stdout.readline().startswith("ready ")
        script = f"fake:normal:chunks={arguments.tokens},interval=0.02"
        settings = adminapi.config(
            Path(folder) / "state",
            engine_port,
            engines=[external("fake", engine_port, slots=1000)],
            models=[{"name": "m1", "pool": ["fake"], "upstream_model": script}],
            limits=[{"name": "tokens", "tokens": {"rate": arguments.rate, "per": "1m"}}],
        )
        gatehouse = Gatehouse(Path(folder), settings, arguments=["--workers", str(arguments.workers)] if arguments.workers else [])
        try:
            gatehouse.start()
            port = int(gatehouse.url.rpartition(":")[2])
            statuses, took = uvloop.run(run(arguments, port))
            until(lambda: gatehouse.metric("gatehouse_in_flight") == 0, 60, "the end of all requests")
            tokens, beyond = used(gatehouse)
        finally:
            gatehouse.stop()
            engine.terminate()
            engine.wait(60)
            engine.stdout.close()
    allowed = arguments.rate + arguments.rate * took / 60
    found: dict[str, Any] = {
        "streams": arguments.streams,
        "workers": arguments.workers,
        "seconds": round(took, 1),
        "statuses": dict(statuses),
    }
    found |= {"tokens": tokens, "allowed": round(allowed), "overshoot": max(0, round(tokens - allowed)), "most_beyond_reservation": beyond}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
