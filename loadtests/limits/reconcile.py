"""Usage against the audit log under kills: 100,000 requests with cancels and engine failures, while processes are killed.

    python -m loadtests.limits.reconcile [--requests 100000] [--width 48] [--kills 6] [--workers 0] [--redis] [--stalls 6]
                                          [--on-failure closed]

A real `gatehouse serve` over a scripted engine (tests/fakes/engine.py). Of the requests, one in seven is a stream, one in ten is given up
by its client after a random time, one in twenty meets an engine that breaks off. While they run, the gateway (with workers: one of them
and, every third time, all processes) is killed with SIGKILL and comes back. In the end `limits reconcile` must print 0, and so it must
after a restart. Independently of both sides of that comparison, what clients got is compared: every whole answer was counted, and
nothing was counted that nobody sent. Prints one line of JSON; exits with 1 when something differs.

Budgets (of the calendar and rolling, in tokens, requests and money, by tenant, key and user, enforced and not) are compared, too:
`budgets_off` are those of which the counter does not say what the log says, before and after a restart.

With --redis, limits and budgets are in a Redis that this script starts, and stops now and then (SIGSTOP for up to two seconds). What killed
processes had reserved there comes back when the reconciliation looks a second time; `redis_more` is what the budget of tokens has too much.
(With `--on-failure local` it is less by what a process has admitted by itself and was killed before Redis was back.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvloop

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.harness import KEY, ROOT, Gatehouse, alive, external
from tests.fakes.ports import empty_port
from tests.waiting import until

MODELS = {
    "plain": "fake:normal",
    "stream": "fake:normal:chunks=8,interval=0.005",
    "slow": "fake:normal:delay=0.05",
    "broken": "fake:reset:at=mid",
}
LIMITS = [
    {"name": "budget", "per": "tenant", "budget": {"amount": 1_000_000_000, "window": "month"}},
    {"name": "rate", "requests": {"rate": 100_000}, "concurrent": 10_000, "on_failure": "open"},
    {"name": "calls", "per": "global", "budget": {"amount": 1_000_000, "unit": "requests", "window": "day"}},
    {"name": "money", "budget": {"amount": 1_000_000, "unit": "usd", "window": "week"}},
    {"name": "rolling", "per": "tenant", "budget": {"amount": 1_000_000_000, "window": {"rolling": "7d"}}},
    {"name": "watched", "per": "user", "budget": {"amount": 1_000_000_000, "window": "month"}, "enforce": False},
]
PRICES = [{"model": "*", "prompt": 0.0375, "completion": 1.5, "request": 0.00001}]


RECOVERED = 8.0
"""Seconds without a change after which every killed writer's log has been recovered: three looks, and a start of a worker."""


class Clients:
    """What was sent, and what came back whole."""

    def __init__(self, port: int, total: int, width: int) -> None:
        self.port, self.left, self.width = port, total, width
        self.sent = self.answered = self.gave_up = self.broken = 0
        self.random = random.Random(18)

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self.width)))

    async def _client(self) -> None:
        while self.left > 0:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)  # it was killed and comes back
                continue
            try:
                while self.left > 0:
                    self.left -= 1
                    if not await self._ask(reader, writer):
                        break
            except (OSError, EOFError, ValueError):
                self.broken += 1
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection may take another one."""
        choice = self.random.random()
        kind = "stream" if choice < 1 / 7 else "broken" if choice < 0.2 else "slow" if choice < 0.3 else "plain"
        body = {"model": kind, "max_tokens": 50, "messages": [{"role": "user", "content": "x" * self.random.randrange(1, 200)}]}
        data = json.dumps({**body, "stream": True} if kind == "stream" else body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
        self.sent += 1
        writer.write(head.encode() + data)
        if kind in ("slow", "stream") and self.random.random() < 0.42:
            await asyncio.sleep(self.random.random() * 0.06)
            self.gave_up += 1
            return False
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        lines = answer.lower()
        if b"transfer-encoding: chunked" in lines:
            text = await reader.readuntil(b"\r\n0\r\n\r\n")
            self.answered += b"[DONE]" in text and b'"error"' not in text
        else:
            length = int(lines.split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            self.answered += status == 200
        return b"connection: close" not in lines


def reconciled(gatehouse: Gatehouse) -> dict[str, Any]:
    """The reconciliation once all requests have ended and the whole log is counted."""
    until(lambda: gatehouse.metric("gatehouse_in_flight") == 0, 120, "the end of all requests")

    def settled() -> Any:
        headers = {"authorization": f"Bearer {adminapi.KEYS['admin']}"}
        found = httpx.get(f"{gatehouse.admin_url}/admin/v1/usage:reconcile", headers=headers, trust_env=False, timeout=120).json()
        return found if found["difference"] or gatehouse.metric("gatehouse_usage_behind_bytes") == 0 else None

    found: dict[str, Any] = until(settled, 120, "everything to be counted")
    while True:  # a killed writer's log is recovered by its successor, or some seconds later by the control process
        time.sleep(RECOVERED)
        again: dict[str, Any] = until(settled, 120, "everything to be counted")
        if again["scopes"] == found["scopes"]:
            return again
        found = again


def budgets_off(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Budgets whose counter and log differ; those of which a killed worker's part is known are told apart."""
    return [line for line in found["budgets"] if line["difference"]]


async def kill_now_and_then(gatehouse: Gatehouse, clients: Clients, total: int, kills: int, workers: int) -> int:
    done = 0
    for number in range(1, kills + 1):
        while clients.left > total * (1 - number / (kills + 1)):
            await asyncio.sleep(0.02)
        assert gatehouse.process is not None
        serving = [int(line.split()[-1].rstrip(")")) for line in list(gatehouse.lines) if " serves (process " in line]
        serving = [pid for pid in serving if alive(pid)]
        everything = not workers or number % 3 == 0
        for pid in [gatehouse.process.pid, *serving] if everything else serving[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        done += 1
        if everything:
            await asyncio.to_thread(gatehouse.process.wait, 60)
            await asyncio.to_thread(gatehouse.start)
    return done


async def stall_now_and_then(redis: RedisServer | None, clients: Clients, total: int, stalls: int) -> int:
    """Stops Redis between the kills, for as long as two seconds."""
    if redis is None:
        return 0
    for number in range(stalls):
        while clients.left > total * (1 - (number + 0.5) / stalls):
            await asyncio.sleep(0.02)
        redis.freeze()
        await asyncio.sleep(clients.random.random() * 2)
        redis.thaw()
    return stalls


def budget_in_redis(gatehouse: Gatehouse) -> int:
    """Tokens that are charged to the budget there."""
    headers = {"authorization": f"Bearer {adminapi.KEYS['admin']}"}
    found = httpx.get(f"{gatehouse.admin_url}/admin/v1/limits/budget/state", headers=headers, trust_env=False, timeout=60).json()
    return int(sum(one["amounts"][0]["used"] for one in found["items"]))


async def run(arguments: argparse.Namespace, directory: Path, gatehouse: Gatehouse, port: int, redis: RedisServer | None) -> dict[str, Any]:
    clients = Clients(port, arguments.requests, arguments.width)
    begun = time.monotonic()
    _, killed, stalled = await asyncio.gather(
        clients.run(),
        kill_now_and_then(gatehouse, clients, arguments.requests, arguments.kills, arguments.workers),
        stall_now_and_then(redis, clients, arguments.requests, arguments.stalls),
    )
    took = time.monotonic() - begun
    first = await asyncio.to_thread(reconciled, gatehouse)
    in_redis = 0 if redis is None else await asyncio.to_thread(budget_in_redis, gatehouse)
    await asyncio.to_thread(gatehouse.stop)
    await asyncio.to_thread(gatehouse.start)
    second = await asyncio.to_thread(reconciled, gatehouse)
    charged = {line["unit"]: line["charged"] for line in first["scopes"] if line["scope"] == "all"}
    return {
        "sent": clients.sent,
        "answered": clients.answered,
        "gave_up": clients.gave_up,
        "broken": clients.broken,
        "kills": killed,
        "stalls": stalled,
        "workers": arguments.workers,
        "redis_more": in_redis - charged.get("prompt_tokens", 0) - charged.get("completion_tokens", 0) if redis is not None else 0,
        "seconds": round(took, 1),
        "charged": charged,
        "difference": first["difference"],
        "after_restart": second["difference"],
        "same_after_restart": first["scopes"] == second["scopes"],
        "changed": [line for line in second["scopes"] if line not in first["scopes"] and line["scope"] == "all"],
        "budgets": len(second["budgets"]),
        "budgets_off": budgets_off(first),
        "budgets_off_after_restart": budgets_off(second),
        "not_compared": len(second["not_compared"]),
        "possible": clients.answered <= charged["requests"] <= clients.sent,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("requests", 100_000), ("width", 48), ("kills", 6), ("workers", 0), ("stalls", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--on-failure", choices=("closed", "local"), default="closed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, empty_port() as engine_port:
        directory = Path(folder)
        command = [sys.executable, "-m", "tests.fakes.engine", "--port", str(engine_port)]
        engine = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert engine.stdout is not None and engine.stdout.readline().startswith("ready ")
        redis = RedisServer(directory).start() if arguments.redis else None
        limits = [limit if "on_failure" in limit else {**limit, "on_failure": arguments.on_failure} for limit in LIMITS]
        shared = {} if redis is None else {"redis": {"url": f"unix://{redis.socket}"}}
        with empty_port() as port:
            pass
        settings = adminapi.config(
            directory / "state",
            engine_port,
            listen={"data": f"127.0.0.1:{port}"},
            engines=[external("fake", engine_port, slots=256)],
            models=[
                {"name": name, "pool": ["fake"], "upstream_model": step, "routing": {"breaker": {"open_for": 0.01}}}
                for name, step in MODELS.items()
            ],
            prices=PRICES,
            limits=limits,
            **shared,
        )
        gatehouse = Gatehouse(directory, settings, arguments=["--workers", str(arguments.workers)] if arguments.workers else [])
        try:
            gatehouse.start()
            found = uvloop.run(run(arguments, directory, gatehouse, port, redis))
        finally:
            gatehouse.stop()
            if redis is not None:
                redis.stop()
            engine.terminate()
            engine.wait(60)
            engine.stdout.close()
    print(json.dumps(found))
    agrees = found["same_after_restart"] and not found["difference"] and not found["after_restart"]
    exact = not arguments.redis or arguments.on_failure == "closed"
    if exact and (found["redis_more"] or found["budgets_off"] or found["budgets_off_after_restart"]):
        agrees = False
    return 0 if found["possible"] and agrees else 1


if __name__ == "__main__":
    sys.exit(main())
