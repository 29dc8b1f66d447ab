"""The llama.cpp sidecar against its peers: tokens a second, the gap that a long prompt makes, what conversations reuse.

    python -m loadtests.llamacpp.bench [--xllamacpp PYTHON] [--llama-cpp-server PYTHON] [--tokens 64] [--rounds 2] [--only throughput,...]

Builds a 207M-parameter Q8_0 model with random weights once (in the system's temporary directory). Servers run one after the other,
never at the same time; with `--rounds` they alternate and the best of each is reported, beside the machine's load. On a machine with other
busy processes set GOMP_SPINCOUNT=2000 for all (the sidecar does so itself): threads that spin tell nothing about the server then; the
processor time of a token is the figure that depends least on the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.llamacpp.peers import Server, started
from loadtests.llamacpp.random_gguf import Shape, write

SHAPE = Shape(layers=12, width=1024, heads=16, kv_heads=8, feed_forward=2816, context=4096, extra_words=31600)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
"""Each is one token of the random vocabulary, and no two of them merge."""


ANSWER = "root ::= [A-Z0-9]{24}"
"""Answers of conversations: random weights write no text, and the next turn must repeat the very tokens."""


@dataclass
class Reply:
    """One streamed answer: when each chunk came (seconds, monotonic), its text, and the usage."""

    started: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens generated, by the server's count where it gives one."""
        return int(self.usage.get("completion_tokens") or len(self.times))


def prompt(seed: int, tokens: int) -> str:
    """A text of so many tokens that shares next to no beginning with another seed's."""
    generator = random.Random(seed)
    return "".join(generator.choice(LETTERS) for _ in range(tokens))


def ask(server: Server, path: str, body: dict[str, Any], stop: threading.Event | None = None) -> Reply:
    """POST and read the stream to its end, or until `stop`."""
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    reply = Reply(time.monotonic())
    with server.connect() as sock:
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}"
        sock.sendall(head.encode() + b"\r\n\r\n" + data)
        pending = b""
        while stop is None or not stop.is_set():
            read = sock.recv(65536)
            now = time.monotonic()
            if not read:
                break
            lines = (pending + read).split(b"\n")
            pending = lines.pop()
            for line in lines:
                _event(reply, line.strip(), now)
    return reply


def _event(reply: Reply, line: bytes, now: float) -> None:
    if not line.startswith(b"data: {"):
        return
    event = json.loads(line[6:])
    if "error" in event:
        raise RuntimeError(event["error"])
    reply.usage = event.get("usage") or reply.usage
    for choice in event.get("choices", []):
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        reply.text += text
        if choice.get("finish_reason") is None:
            reply.times.append(now)


def together(server: Server, bodies: list[dict[str, Any]]) -> tuple[list[Reply], float]:
    """Send all at once; replies and the seconds from the first byte sent to the last received."""
    replies: list[Reply | None] = [None] * len(bodies)

    def run(number: int) -> None:
        replies[number] = ask(server, "/v1/completions", bodies[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    return [reply for reply in replies if reply is not None], seconds


def sampling(server: Server) -> dict[str, Any]:
    """The same work everywhere: draws over the whole vocabulary off, the end token banned."""
    greedy = {"model": "bench", "temperature": 0.0, "seed": 1}
    return greedy if server.name == "llama_cpp.server" else {**greedy, "ignore_eos": True}


def throughput(server: Server, tokens: int) -> dict[str, float]:
    """Tokens a second, and the processor time of a token, with 1, 4 and 8 requests at once, prompts of 16 tokens."""
    result = {}
    ask(server, "/v1/completions", {**sampling(server), "prompt": prompt(999, 16), "max_tokens": 4})
    for count in (1, 4, 8):
        bodies = [{**sampling(server), "prompt": prompt(count * 10 + n, 16), "max_tokens": tokens} for n in range(count)]
        used = server.cpu_seconds()
        replies, seconds = together(server, bodies)
        made = sum(reply.tokens for reply in replies)
        result[f"tok/s x{count}"] = round(made / seconds, 1)
        result[f"cpu ms/tok x{count}"] = round(1000 * (server.cpu_seconds() - used) / made, 2)
    return result


def gap(server: Server) -> dict[str, float]:
    """Seven streams run; a prompt of 1,500 tokens arrives: their longest gap against their usual (median) one."""
    stop = threading.Event()
    streams: list[Reply] = []
    bodies = [{**sampling(server), "prompt": prompt(n, 16), "max_tokens": 800} for n in range(7)]
    threads = [threading.Thread(target=lambda b=body: streams.append(ask(server, "/v1/completions", b, stop))) for body in bodies]
    for thread in threads:
        thread.start()
    time.sleep(3.0)
    long = ask(server, "/v1/completions", {**sampling(server), "prompt": prompt(77, 1500), "max_tokens": 4})
    end = time.monotonic()
    stop.set()
    for thread in threads:
        thread.join()
    before = [b - a for reply in streams for a, b in _pairs(reply.times) if b < long.started and a > long.started - 2.5]
    during = [b - a for reply in streams for a, b in _pairs(reply.times) if b > long.started and a < end]
    usual = sorted(before)[len(before) // 2]
    first = long.times[0] - long.started
    during.sort()
    return {"usual gap ms": round(usual * 1000, 1), "longest gap before ms": round(max(before) * 1000, 1),
            "median gap ms": round(during[len(during) // 2] * 1000, 1), "p95 gap ms": round(during[len(during) * 95 // 100] * 1000, 1),
            "longest gap ms": round(during[-1] * 1000, 1), "ratio": round(during[-1] / usual, 2),
            "ratio p95": round(during[len(during) * 95 // 100] / usual, 2), "long prompt's first token s": round(first, 2)}  # fmt: skip


def _pairs(times: list[float]) -> list[tuple[float, float]]:
    return list(itertools.pairwise(times))


def conversations(server: Server) -> dict[str, float]:
    """Four conversations of six turns at once, a shared system prompt of 200 words: share of prompt tokens from the cache, first tokens."""
    system = prompt(500, 200)
    first, sixth = [], []
    cached = total = 0
    lock = threading.Lock()

    def talk(number: int) -> None:
        nonlocal cached, total
        messages = [{"role": "system", "content": system}]
        for turn in range(6):
            messages.append({"role": "user", "content": prompt(number * 100 + turn, 40)})
            reply = ask(server, "/v1/chat/completions", {"model": "bench", "temperature": 0.0, "messages": messages, "max_tokens": 32,
                                                         "grammar": ANSWER})  # fmt: skip
            messages.append({"role": "assistant", "content": reply.text})
            with lock:
                details = reply.usage.get("prompt_tokens_details") or {}
                cached += int(details.get("cached_tokens") or 0)
                total += int(reply.usage.get("prompt_tokens") or 0)
                if turn in (0, 5) and reply.times:
                    (sixth if turn else first).append(reply.times[0] - reply.started)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"cached share": round(cached / max(total, 1), 3), "turn 1 first token ms": round(1000 * sum(first) / max(len(first), 1), 1),
            "turn 6 first token ms": round(1000 * sum(sixth) / max(len(sixth), 1), 1)}  # fmt: skip


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


def main() -> None:
    """Run and print a table as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xllamacpp", help="interpreter with the package xllamacpp")
    parser.add_argument("--llama-cpp-server", help="interpreter with llama-cpp-python[server]")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="throughput,gap,conversations")
    options = parser.parse_args()
    servers = {"gatehouse": "", "xllamacpp": options.xllamacpp, "llama_cpp.server": options.llama_cpp_server}
    best: dict[str, dict[str, float]] = {}
    for number in range(options.rounds):
        for name, python in servers.items():
            if python is None:
                continue
            with tempfile.TemporaryDirectory(prefix="ghb") as work:
                arguments = {"slots": 8, "context": 2048, "threads": options.threads, "python": python, "work": Path(work)}
                with started(name, model_file(), **arguments) as server:
                    result: dict[str, float] = {}
                    if "throughput" in options.only:
                        result |= throughput(server, options.tokens)
                    if "gap" in options.only and name != "llama_cpp.server":
                        result |= gap(server)
                    if "conversations" in options.only and name != "llama_cpp.server":
                        result |= conversations(server)
            load = round(os.getloadavg()[0], 1)
            print(json.dumps({"round": number, "server": name, **result, "load": load}), flush=True)
            for key, value in result.items():
                known = best.setdefault(name, {}).get(key, value)
                best[name][key] = max(value, known) if key.startswith("tok/s") or key.startswith("cached") else min(value, known)
    print(json.dumps({"best": best}))


if __name__ == "__main__":
    main()
