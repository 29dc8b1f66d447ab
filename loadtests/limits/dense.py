"""By how many tokens prompts that have a token for nearly each of their bytes go beyond a budget, and what counting them costs.

    python -m loadtests.limits.dense [--count auto|false|true] [--clients 40] [--budget 20000] [--unit tokens|usd] [--workers 0] [--redis]
                                     [--apis chat completions lists ids messages responses embeddings rerank cancels sockets]
    python -m loadtests.limits.dense --cost [--requests 400] [--bytes 1000]

A real `gatehouse serve` over the demo models on llama.cpp and ONNX Runtime. For each API so many clients send such prompts (base64 of
random bytes) at once until a budget of its own is used up. `overshoot` is what was used beyond the budget (the audit log says), `most`
the most that one request used: the bound is one of these. `refused_early` says how much was left in the end. With `cancels` each client
gives up its stream after the first event. --cost: the processor's time of the gateway and the latency of a request whose prompt is
counted, against one that is not, in the same run. Prints one line of JSON for each; exits with 1 where the overshoot is more than one
request.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from websockets.asyncio.client import connect

from engines.demo import embed, rank
from tests.cluster.servers import RedisServer
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, configuration
from tests.waiting import until

MODELS: Final = {"embeddings": "embed", "rerank": "rank"}
APIS: Final = ("chat", "completions", "lists", "ids", "messages", "responses", "embeddings", "rerank", "cancels", "sockets")
PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "lists": "/v1/completions",
    "ids": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "cancels": "/v1/chat/completions",
    "sockets": "/v1/chat/completions",
}


def dense(size: int) -> str:
    return base64.b64encode(random.randbytes(size)).decode()[:size]


def body(api: str, model: str, size: int) -> dict[str, Any]:
    made: dict[str, Any] = {"model": model}
    message = [{"role": "user", "content": dense(size)}]
    if api in ("chat", "cancels", "sockets"):
        made |= {"messages": message, "max_tokens": 20 if api == "cancels" else 1}
        if api == "cancels":
            made["stream"] = True
    elif api == "messages":
        made |= {"messages": message, "max_tokens": 1}
    elif api == "responses":
        made |= {"input": dense(size), "max_output_tokens": 16}
    elif api == "embeddings":
        made |= {"input": [dense(200) for _ in range(max(1, size // 200))]}
    elif api == "rerank":
        made |= {"query": dense(100), "documents": ["a"] * max(1, size // 100)}
    else:
        prompt: Any = dense(size)
        if api == "lists":
            prompt = [dense(size // 4) for _ in range(4)]
        elif api == "ids":
            prompt = [random.randint(3, 9) for _ in range(size)]
        made |= {"prompt": prompt, "max_tokens": 1}
    return made


async def one(client: httpx.AsyncClient, api: str, model: str, size: int) -> int:
    asked = body(api, model, size)
    if api == "cancels":
        async with client.stream("POST", PATHS[api], json=asked) as answer:
            async for _ in answer.aiter_bytes():
                break
        return answer.status_code
    return (await client.post(PATHS[api], json=asked)).status_code


async def hammer(gatehouse: Gatehouse, api: str, model: str, clients: int, size: int) -> Counter[int]:
    found: Counter[int] = Counter()

    async def over_http() -> None:
        refused = 0
        async with httpx.AsyncClient(
            base_url=gatehouse.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False
        ) as client:
            while refused < 3:
                status = await one(client, api, model, size)
                found[status] += 1
                refused += status == 429
                if status not in (200, 429):
                    break

    async def over_socket() -> None:
        refused, number = 0, 0
        url = gatehouse.url.replace("http://", "ws://") + "/v1/stream"
        async with connect(url, additional_headers={"authorization": f"Bearer {KEY}"}, proxy=None) as socket:
            while refused < 3:
                number += 1
                await socket.send(json.dumps({"type": "request", "id": f"r{number}", "path": PATHS[api], "body": body(api, model, size)}))
                status, said = 0, {}
                while said.get("type") != "done":
                    said = json.loads(await socket.recv())
                    status = status or int(said.get("status", 0))
                found[status] += 1
                refused += status == 429
                if status not in (200, 429):
                    break

    await asyncio.gather(*[over_socket() if api == "sockets" else over_http() for _ in range(clients)])
    return found


def settings(arguments: argparse.Namespace, folder: Path, redis: str, limits: list[dict[str, Any]]) -> dict[str, Any]:
    engines: list[dict[str, Any]] = [
        {"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 16, "context": 2048},
        {"name": "embed", "runtime": "onnx", "model": str(embed.OUT), "slots": 8},
        {"name": "rank", "runtime": "onnx", "model": str(rank.OUT), "slots": 8},
    ]
    count = {"auto": "auto", "false": False, "true": True}[arguments.count]
    models = []
    for api in (*APIS, "asked", "plenty"):
        models.append({"name": api, "pool": [MODELS.get(api, "chat")], "count_prompts": count})
    more: dict[str, Any] = {"redis": {"url": redis, "timeout": 1}} if redis else {}
    prices = [{"model": "*", "prompt": 1, "completion": 1}]
    return configuration(folder / "state", engines=engines, models=models, limits=limits, prices=prices, **more)


def use(gatehouse: Gatehouse, model: str) -> tuple[int, int]:
    """Tokens that were used, and the most of one request."""
    mine = {one["request_id"] for one in gatehouse.audit() if one["kind"] == "intent" and one["model"] == model}
    used = [
        one.get("prompt_tokens", 0) + one.get("completion_tokens", 0)
        for one in gatehouse.audit()
        if one["kind"] == "outcome" and one["request_id"] in mine
    ]
    return sum(used), max(used, default=0)


def attack(arguments: argparse.Namespace, folder: Path, redis: str) -> int:
    amount = arguments.budget if arguments.unit == "tokens" else arguments.budget / 1e6
    limits = [
        {"name": api, "per": "model", "match": {"model": api}, "budget": {"amount": amount, "unit": arguments.unit, "window": "day"}}
        for api in APIS
    ]
    workers = ["--workers", str(arguments.workers)] if arguments.workers else []
    wrong = 0
    with Gatehouse(folder, settings(arguments, folder, redis, limits), arguments=workers) as gatehouse:
        for api in arguments.apis:
            size = {"embeddings": 2000, "rerank": 3000}.get(api, 1500)
            statuses = asyncio.run(hammer(gatehouse, api, api, arguments.clients, size))
            until(lambda: gatehouse.metric("gatehouse_in_flight") == 0, 120, "the end of all requests")
            used, most = use(gatehouse, api)
            over = max(0, used - arguments.budget)
            wrong += over > most
            found = {"api": api, "count": arguments.count, "unit": arguments.unit, "workers": arguments.workers, "redis": bool(redis)}
            found |= {
                "statuses": dict(statuses),
                "used": used,
                "most": most,
                "overshoot": over,
                "refused_early": max(0, arguments.budget - used),
            }
            print(json.dumps(found), flush=True)
    return 1 if wrong and arguments.count != "false" else 0


async def timed(gatehouse: Gatehouse, model: str, requests: int, size: int) -> tuple[float, float]:
    """Microseconds of the gateway's processor time a request, and the median latency in milliseconds; one at a time."""
    assert gatehouse.process is not None
    process = psutil.Process(gatehouse.process.pid)
    text = ("The quick brown fox jumps over the lazy dog. " * (size // 45 + 1))[:size]
    asked = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    took = []
    async with httpx.AsyncClient(base_url=gatehouse.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False) as client:
        for number in range(requests + 20):
            if number == 20:
                before = process.cpu_times()
            begun = time.perf_counter()
            assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
            took.append(time.perf_counter() - begun)
        after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return spent / requests * 1e6, statistics.median(took[20:]) * 1e3


def cost(arguments: argparse.Namespace, folder: Path, redis: str) -> int:
    """`asked`: a limit that is never half full even when nothing is used, as the prompt and 256 tokens more are over half of it."""
    text = arguments.bytes + 256
    limits = [
        {"name": "asked", "per": "model", "match": {"model": "asked"}, "tokens": {"rate": 10**9, "per": "1s", "burst": int(1.5 * text)}},
        {"name": "plenty", "per": "model", "match": {"model": "plenty"}, "tokens": {"rate": 10**9, "per": "1s"}},
    ]
    with Gatehouse(folder, settings(arguments, folder, redis, limits)) as gatehouse:
        found: dict[str, list[tuple[float, float]]] = {"plenty": [], "asked": []}
        for _ in range(3):
            for model, runs in found.items():
                runs.append(asyncio.run(timed(gatehouse, model, arguments.requests, arguments.bytes)))
    for model, runs in found.items():
        cpu, latency = min(run[0] for run in runs), min(run[1] for run in runs)
        print(json.dumps({"model": model, "bytes": arguments.bytes, "gateway_cpu_us": round(cpu), "median_ms": round(latency, 2)}))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", choices=("auto", "false", "true"), default="auto")
    parser.add_argument("--unit", choices=("tokens", "usd"), default="tokens")
    for name, default in (("clients", 40), ("budget", 20_000), ("workers", 0), ("requests", 400), ("bytes", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--apis", nargs="+", choices=APIS, default=APIS)
    for flag in ("redis", "cost"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name, ExitStack() as stack:
        url = ""
        if arguments.redis:
            server = RedisServer(Path(name)).start()
            stack.callback(server.stop)
            url = f"unix://{server.socket}"
        (Path(name) / "gateway").mkdir()
        return (cost if arguments.cost else attack)(arguments, Path(name) / "gateway", url)


if __name__ == "__main__":
    sys.exit(main())
