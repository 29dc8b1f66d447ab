"""How fast a GGUF model is: a sidecar of its own in a process beside this one, with the same bounds, asked over its Unix socket.

The sidecar is forked, not started: so this process may start no program, and needs no more to read than the model.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import queue
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from engines.jobs.order import PROGRESS, Order, Outcome, Progress, put
from engines.jobs.watch import Watch
from engines.llamacpp.app import main as sidecar
from gateway.core.specs import SidecarSpec

LOAD_SECONDS: Final = 600.0
ASK_SECONDS: Final = 600.0
HEALTH_SECONDS: Final = 5.0
WORD: Final = "time "
NAME: Final = "model"
_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class Shot(NamedTuple):
    """One request. first: seconds to the first text; whole: to the end. tokens: of the answer, as the engine counts."""

    first: float
    whole: float
    tokens: int


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float = ASK_SECONDS) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def run(order: Order) -> Outcome:
    folder, options = Path(order.folder), order.options
    os.chdir(folder)
    path = "s"  # relative: the path of a socket is short, and the folder's may be long
    settings = SidecarSpec(
        name=NAME, runtime="llama.cpp", model=order.source, socket=path, state_dir=str(folder), slots=options["streams"],
        context=options["context"], queue=options["streams"], threads=order.threads, drain_timeout=1.0,
    )  # fmt: skip
    began = time.monotonic()
    process, lifeline = _start(msgspec.json.encode(settings) + b"\n")
    try:
        watch = Watch(process, order.memory_bytes)
        if (problem := _ready(path, watch)) is not None:
            return Outcome(problem=f"the engine does not load the model: {problem[:500]}")
        loaded = time.monotonic() - began
        shots = _fire(path, folder, options, watch)
        took = time.monotonic() - began - loaded
    finally:
        os.close(lifeline)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if isinstance(shots, str):
        return Outcome(problem=shots)
    return Outcome(result={"load_seconds": round(loaded, 3), **figures(shots, took, options["streams"])})


def _start(line: bytes) -> tuple[int, int]:
    """A sidecar: its process, and the end of the pipe that keeps it alive."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            _LIBC.prctl(_PDEATHSIG, signal.SIGKILL)  # also where it hangs, short of memory, before it could hear of its parent's end
            os.close(writing)
            os.dup2(reading, 0)
            os._exit(sidecar())
        finally:
            os._exit(70)
    os.close(reading)
    os.write(writing, line)
    return process, writing


def _ready(path: str, watch: Watch) -> str | None:
    """Why not."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < LOAD_SECONDS:
        pause = 0.05 if passed < 5.0 else 0.5
        if (problem := watch.problem()) is not None:
            return problem
        try:
            health = _json(path, "GET", "/health")
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(pause)
            continue
        if health.get("state") == "ready":
            return None
        if health.get("state") == "failed":
            return str(health.get("reason"))
        time.sleep(pause)
    return "it was not ready in time"


def _json(path: str, method: str, where: str) -> dict[str, Any]:
    connection = Connection(path, HEALTH_SECONDS)
    try:
        connection.request(method, where)
        found = json.loads(connection.getresponse().read())
        return found if isinstance(found, dict) else {}
    finally:
        connection.close()


def _fire(path: str, folder: Path, options: dict[str, Any], watch: Watch) -> list[Shot] | str:
    """All requests, some at once; or what went wrong with the first that failed, or with the engine."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(options["requests"]):
        todo.put(number)
    shots: list[Shot] = []
    problems: list[str] = []

    def work() -> None:
        while not problems:
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            try:
                shots.append(_ask(path, number, options))
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems.append(f"request {number + 1} failed: {error}"[:500])

    threads = [threading.Thread(target=work, daemon=True) for _ in range(options["streams"])]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.5) if threads[0].is_alive() else time.sleep(0.05)
        put(folder, PROGRESS, Progress(len(shots) / options["requests"]))
        if (problem := watch.problem()) is not None:
            return f"the engine gives no more answers: {problem}"
    return problems[0] if problems else shots


def _ask(path: str, number: int, options: dict[str, Any]) -> Shot:
    """The number stands first in the prompt: nothing of it is known to the engine from the one before."""
    body = {
        "model": NAME, "prompt": f"{number} " + WORD * options["prompt_words"], "max_tokens": options["max_tokens"], "stream": True,
        "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection, began, first, tokens = Connection(path), time.monotonic(), 0.0, 0
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{answer.status} {answer.read(500).decode('utf-8', 'replace')}")
        for line in iter(answer.readline, b""):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(str(event["error"])[:300])
            if not first and any(choice.get("text") for choice in event.get("choices", ())):
                first = time.monotonic() - began
            if event.get("usage"):
                tokens = int(event["usage"]["completion_tokens"])
        whole = time.monotonic() - began
        return Shot(first or whole, whole, tokens)
    finally:
        connection.close()


def figures(shots: list[Shot], took: float, streams: int) -> dict[str, Any]:
    """Milliseconds and tokens a second; took: seconds of all together."""
    firsts = sorted(shot.first for shot in shots)
    speeds = sorted(shot.tokens / shot.whole for shot in shots if shot.whole > 0)
    tokens = sum(shot.tokens for shot in shots)
    return {
        "streams": streams,
        "requests": len(shots),
        "tokens": tokens,
        "seconds": round(took, 3),
        "tokens_per_second": round(tokens / took, 2) if took > 0 else 0.0,
        "stream_tokens_per_second": round(_at(speeds, 0.5), 2),
        "first_token_ms": {name: round(_at(firsts, share) * 1000, 1) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))},
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
