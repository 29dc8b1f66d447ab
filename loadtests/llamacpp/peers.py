"""Starts the servers that are compared: this project's sidecar behind its gateway, and its peers, each as a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.harness import KEY, Gatehouse, configuration

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
DIRECT, GATEWAY, XLLAMACPP, LLAMA_SERVER, LOOP = "sidecar", "gateway", "xllamacpp", "llama_cpp.server", "low-level loop"

XLLAMACPP_SERVER = """
import sys, time, xllamacpp
model, port, slots, context, threads, variant = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
params = xllamacpp.CommonParams()
params.model.path = model
params.port, params.n_parallel, params.n_ctx = port, slots, slots * context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_gpu_layers = 0
params.warmup = False
if variant == "q8":
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
elif variant == "ngram":
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""

VARIANTS: dict[str, dict[str, object]] = {"q8": {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, "ngram": {"speculation": {}}}
"""The sidecar's options for what both it and xllamacpp can do: keys and values in Q8, guesses by repetition."""


def cpu_of(pid: int) -> float:
    """Processor seconds of a process, all its threads; what other machines took of the processor meanwhile is not in it."""
    return time.clock_gettime(~pid << 3 | 2)  # the number of a process's clock: clock_getcpuclockid(3), Linux


@dataclass(frozen=True)
class Server:
    """A running server: where it is asked (`path` of a Unix socket, or `port` on the loopback), and the processes that it is."""

    name: str
    pids: tuple[int, ...]
    path: str | None = None
    port: int = 0
    headers: str = ""
    """Further header lines of every request."""

    def connect(self) -> socket.socket:
        """A fresh connection."""
        if self.path is not None:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.path)
            return sock
        return socket.create_connection(("127.0.0.1", self.port))

    def cpu_seconds(self) -> float:
        """Processor time the processes have used so far, all threads."""
        return sum(map(cpu_of, self.pids))


@dataclass(frozen=True)
class Setting:
    """What all servers are given: the model, sequences at once, tokens of each, threads."""

    model: Path
    slots: int = 8
    context: int = 2048
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def arguments(self) -> list[str]:
        """As strings, without the model."""
        return [str(self.slots), str(self.context), str(self.threads)]


@dataclass(frozen=True)
class Loop:
    """The low-level loop, as a process that is told what to generate."""

    process: subprocess.Popen[str]

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process."""
        return (self.process.pid,)

    def generate(self, sequences: int, tokens: int) -> float:
        """Seconds for so many tokens in each of so many sequences."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{sequences} {tokens}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def gatehouse(setting: Setting, work: Path, options: dict[str, object] | None = None) -> Iterator[tuple[Server, Server]]:
    """`gatehouse serve` with a key, limits and the audit log, and one sidecar: (the gateway, the sidecar asked directly)."""
    engine = {"name": "bench", "runtime": "llama.cpp", "model": str(setting.model), "slots": setting.slots, "context": setting.context,
              "threads": setting.threads, "options": options or {}}  # fmt: skip
    limit = {"name": "per-key", "per": "key", "requests": {"rate": 1000, "per": "1s"}, "tokens": {"rate": 10**8, "per": "1s"},
             "concurrent": 64}  # fmt: skip
    config = configuration(
        work / "state", engines=[engine], models=[{"name": "bench", "pool": ["bench"]}], limits=[limit],
        audit={"durability": "write", "sinks": [{"type": "file"}]}, telemetry={"log_level": "warning"},
    )  # fmt: skip
    with Gatehouse(work, config) as running:
        assert running.process is not None
        (child,) = running.engines()
        port = int(running.url.rpartition(":")[2])
        path = str(next((work / "state").rglob("bench*/s.sock")))
        yield (
            Server(GATEWAY, (running.process.pid, child), port=port, headers=f"Authorization: Bearer {KEY}\r\n"),
            Server(DIRECT, (child,), path=path),
        )


@contextlib.contextmanager
def loop(setting: Setting) -> Iterator[Loop]:
    """The low-level loop under this interpreter, its threads spinning as the sidecar's do."""
    command = [sys.executable, "-m", "loadtests.llamacpp.lowlevel", str(setting.model), *setting.arguments()]
    environ = {"GOMP_SPINCOUNT": "2000", **os.environ}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the low-level loop did not start")
        yield Loop(process)
    finally:
        _end(process)


@contextlib.contextmanager
def peer(name: str, setting: Setting, python: str, work: Path, variant: str = "") -> Iterator[Server]:
    """`xllamacpp`, also one of `VARIANTS` of it, or `llama_cpp.server` under an interpreter that has it."""
    port = free_port()
    if name == XLLAMACPP:
        command = [python, "-c", XLLAMACPP_SERVER, str(setting.model), str(port), *setting.arguments(), variant]
    else:
        threads = str(setting.threads)
        command = [python, "-m", "llama_cpp.server", "--model", str(setting.model), "--port", str(port), "--n_ctx", str(setting.context),
                   "--n_threads", threads, "--n_threads_batch", threads]  # fmt: skip
    with (work / f"{name}{variant}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            yield _wait(Server(f"{name} {variant}".strip(), (process.pid,), port=port), process)
        finally:
            _end(process)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> Server:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{server.name} ended with {process.returncode}")
        try:
            with server.connect() as sock:
                sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda: sock.recv(65536), b""))
                if b" 200 " in answer.split(b"\r\n")[0] and b'"loading"' not in answer:
                    return server
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{server.name} did not start")


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
