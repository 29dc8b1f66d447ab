"""Starts the servers that are compared: this project's sidecar and its peers, each as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0

XLLAMACPP = """
import sys, time, xllamacpp
model, port, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path = model
params.port, params.n_parallel, params.n_ctx = port, slots, slots * context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_gpu_layers = 0
params.warmup = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Server:
    """A running server: `socket` (a Unix socket path) or `port` on the loopback, and its process."""

    name: str
    process: subprocess.Popen[bytes]
    path: str | None = None
    port: int = 0

    def connect(self) -> socket.socket:
        """A fresh connection."""
        if self.path is not None:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.path)
            return sock
        return socket.create_connection(("127.0.0.1", self.port))

    def cpu_seconds(self) -> float:
        """Processor time the process has used so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait(server: Server, path: str) -> Server:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} ended with {server.process.returncode}")
        try:
            with server.connect() as sock:
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                answer = b"".join(iter(lambda: sock.recv(65536), b""))
                if b" 200 " in answer.split(b"\r\n")[0] and b'"loading"' not in answer:
                    return server
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{server.name} did not start")


@contextlib.contextmanager
def started(name: str, model: Path, *, slots: int, context: int, threads: int, python: str, work: Path) -> Iterator[Server]:
    """Run one server: `gatehouse`, `xllamacpp` or `llama_cpp.server` (their interpreter: `python`)."""
    port = free_port()
    path = str(work / f"{name}.sock") if name == "gatehouse" else None
    with (work / f"{name}.log").open("wb") as log:
        if name == "gatehouse":
            command = [sys.executable, "-m", "engines.llamacpp"]
        elif name == "xllamacpp":
            command = [python, "-c", XLLAMACPP, str(model), str(port), str(slots), str(context), str(threads)]
        else:
            command = [python, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port), "--n_ctx", str(context),
                       "--n_threads", str(threads), "--n_threads_batch", str(threads)]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            if path is not None and process.stdin is not None:
                spec = {"name": "bench", "runtime": "llama.cpp", "model": str(model), "socket": path, "state_dir": str(work),
                        "slots": slots, "context": context, "threads": threads}  # fmt: skip
                process.stdin.write(json.dumps(spec).encode() + b"\n")
                process.stdin.flush()
            yield _wait(Server(name, process, path, port), "/v1/models" if name != "gatehouse" else "/health")
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
