"""A real ONNX sidecar process for the tests: started as a supervisor starts it, reached over its socket or a TCP relay."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.core.specs import SidecarSpec

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE = 120.0
CHUNK = 1 << 16


class Relay:
    """Listens on a TCP port of the loopback and passes bytes to and from a Unix socket: clients that know TCP only."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        ends: dict[socket.socket, socket.socket] = {}
        while True:
            ready, _, _ = select.select([self._stop_read, self._listener, *ends], [], [])
            if self._stop_read in ready:
                break
            for one in ready:
                if one is self._listener:
                    client, _ = self._listener.accept()
                    engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    engine.connect(self._target)
                    ends[client], ends[engine] = engine, client
                elif one in ends:
                    self._pass(one, ends)
        for end in (*ends, self._listener):
            end.close()

    @staticmethod
    def _pass(one: socket.socket, ends: dict[socket.socket, socket.socket]) -> None:
        other = ends[one]
        try:
            data = one.recv(CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (one, other):
            ends.pop(end)
            end.close()

    def close(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._stop_write)


class OnnxProcess:
    """`python -m engines.onnx` with one model; a context manager that leaves no process behind."""

    def __init__(self, model: Path, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gh-onnx-")
        self.socket = f"{self._folder.name}/s"
        state = settings.pop("state_dir", self._folder.name)
        self.spec = SidecarSpec(name="onnx", runtime="onnx", model=str(model), socket=self.socket, state_dir=str(state), **settings)
        self.process: subprocess.Popen[bytes]
        self.relay: Relay

    def __enter__(self) -> OnnxProcess:
        self.process = subprocess.Popen([sys.executable, "-m", "engines.onnx"], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self.spec) + b"\n")
        self.process.stdin.flush()
        try:
            self.wait_state("ready", "failed")
        except BaseException:
            self._end()
            raise
        self.relay = Relay(self.socket)
        return self

    def __exit__(self, *exc: object) -> None:
        self.relay.close()
        self._end()

    def _end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()  # the lifeline: the process ends with it
        self.process.wait(timeout=90)
        self.process.stderr.close()
        self._folder.cleanup()

    def wait_state(self, *states: str) -> dict[str, Any]:
        """`/health` once it shows one of the states."""
        end = time.monotonic() + START_DEADLINE
        while time.monotonic() < end:
            if self._listens():
                with self.client() as client:
                    report: dict[str, Any] = client.get("/health").json()
                if report["state"] in states:
                    return report
            if self.process.poll() is not None:
                raise AssertionError(f"the sidecar ended with {self.process.returncode}: {self.process.stderr.read()!r}")  # type: ignore[union-attr]
            select.select([], [], [], 0.02)
        raise AssertionError(f"no state of {states} within {START_DEADLINE} s")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(self.socket) == 0

    def client(self) -> httpx.Client:
        """A client over the Unix socket."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.socket), base_url="http://sidecar", timeout=60)

    @property
    def address(self) -> str:
        """host:port of the TCP relay."""
        return f"127.0.0.1:{self.relay.port}"
