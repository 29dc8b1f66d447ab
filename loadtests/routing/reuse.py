"""Prefix affinity and KV reuse over two real sidecars: `python -m loadtests.routing.reuse [--conversations 40] [--peer BINARY]`.

The same conversations of six turns, eight at a time, in one run: through Gatehouse with `consistent_hash` over `prefix`, through
Gatehouse with `round_robin`, and (with --peer, the path of sglang-router) through its `cache_aware` policy in front of the same
two sidecars. Each phase has texts of its own, so that no phase finds the cache of another. Reported: the share of prompt
tokens that came from the cache, and the mean TTFT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import yaml

from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, configuration
from tests.waiting import until

WIDTH = 8
FIELDS = ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "stream", "stream_options")
"""What the requests of this benchmark say (the peer renames max_tokens)."""
SYSTEM = (
    "You are the assistant of a company's platform team and you answer questions about the gateway that stands in front of its models: "
    "keys, tenants, limits, guardrails, routing, health, audit. Answer in one or two short sentences. Project {tag}."
)
QUESTIONS = (
    "What is a circuit breaker?",
    "How do I create a key?",
    "And what happens when an engine is slow?",
    "Who may see the audit log?",
    "How are limits counted?",
    "Thank you, what should I read next?",
)


class Figures:
    """What the answers of one phase said."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.completion = self.failed = 0
        self.first: list[float] = []
        self.failure = ""

    def __str__(self) -> str:
        if not self.first:
            return f"every request failed: {self.failure}"
        share = self.cached / max(1, self.prompt)
        tokens = f"{share:6.1%} of {self.prompt} prompt tokens cached, {self.completion} generated"
        return f"{tokens}, mean TTFT {mean(self.first) * 1000:6.1f} ms, failed {self.failed}"


def turn(client: httpx.Client, model: str, messages: list[dict[str, str]], figures: Figures) -> str:
    """One streamed answer; its text."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first, text = time.perf_counter(), 0.0, ""
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            figures.failure = f"{response.status_code} {response.read().decode()}"
            figures.failed += 1
            return "-"
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event: dict[str, Any] = json.loads(line[6:])
            content = event["choices"][0]["delta"].get("content") if event.get("choices") else None
            if content:
                first, text = first or time.perf_counter() - start, text + content
            if event.get("usage"):
                figures.prompt += event["usage"]["prompt_tokens"]
                figures.completion += event["usage"]["completion_tokens"]
                figures.cached += (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    figures.first.append(first or time.perf_counter() - start)
    return text or "-"


def phase(url: str, model: str, tag: str, conversations: int, turns: int) -> Figures:
    figures = Figures()

    def talk(number: int) -> None:
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False) as client:
            messages = [{"role": "system", "content": SYSTEM.format(tag=f"{tag}-{number}")}]
            for question in range(turns):
                messages.append({"role": "user", "content": QUESTIONS[question % len(QUESTIONS)]})
                messages.append({"role": "assistant", "content": turn(client, model, messages, figures)})

    with ThreadPoolExecutor(WIDTH) as threads:
        list(threads.map(talk, range(conversations)))
    return figures


@contextmanager
def bridge(path: Path) -> Iterator[int]:
    """A TCP port on loopback in front of a sidecar's Unix socket, for a peer that speaks only TCP.

    It takes out of each body the fields that the peer adds for its own engines (the sidecar refuses what it does not support).
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.strip().split("\r\n")
            length = next((int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length:")), 0)
            body = await reader.readexactly(length)
            if body:
                body = json.dumps({key: value for key, value in json.loads(body).items() if key in FIELDS}).encode()
            engine_reader, engine_writer = await asyncio.open_unix_connection(str(path))
            common = f"host: engine\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            engine_writer.write(f"{line}\r\n{common}".encode() + body)
            while data := await engine_reader.read(65536):
                writer.write(data)
                await writer.drain()
            engine_writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result(5)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


@contextmanager
def peer(binary: str, sockets: list[Path], folder: Path) -> Iterator[str]:
    """sglang-router, cache_aware, over the sidecars' sockets; yields its URL."""
    with ExitStack() as stack:
        workers = [f"http://127.0.0.1:{stack.enter_context(bridge(path))}" for path in sockets]
        port, extra = 31991, 31992
        command = [binary, "launch", "--worker-urls", *workers, "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
        log = stack.enter_context((folder / "peer.log").open("wb"))
        process = subprocess.Popen([*command, "--log-level", "warn", "--prometheus-port", str(extra)], stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError((folder / "peer.log").read_text())
            try:
                body = {"model": DEMO_MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
                return httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=10).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            try:
                until(answers, 60, "the peer")
            except AssertionError as error:
                raise AssertionError((folder / "peer.log").read_text()) from error
            yield url
        finally:
            process.terminate()
            process.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--peer", help="path of sglang-router")
    options = parser.parse_args()
    size = (options.conversations, options.turns)
    sidecar = {"runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 8, "context": 1024, "threads": 1}
    names = ["one", "two"]

    def models(policy: str) -> list[dict[str, Any]]:
        return [{"name": DEMO_MODEL, "pool": names, "routing": {"policy": policy}}]

    with tempfile.TemporaryDirectory(prefix="gh") as place:
        folder = Path(place)
        config = configuration(folder / "s", engines=[{"name": name, **sidecar} for name in names], models=models("consistent_hash"))
        with Gatehouse(folder, config) as gatehouse:
            assert gatehouse.process is not None
            phase(gatehouse.url, DEMO_MODEL, "warm", 8, 2)
            print("gatehouse, prefix:         ", phase(gatehouse.url, DEMO_MODEL, "alpha", *size))
            gatehouse.file.write_text(yaml.safe_dump({**config, "models": models("round_robin")}))
            os.kill(gatehouse.process.pid, signal.SIGHUP)
            until(lambda: gatehouse.metric("gatehouse_config_version") == 2, what="the reload")
            print("gatehouse, round robin:    ", phase(gatehouse.url, DEMO_MODEL, "gamma", *size))
            if options.peer:
                sockets = sorted((folder / "s" / "run").glob("*/s.sock"))
                with peer(options.peer, sockets, folder) as url:
                    print("sglang-router, cache_aware:", phase(url, DEMO_MODEL, "delta", *size))


if __name__ == "__main__":
    main()
