"""Runs the real console script on free ports, in a process of its own, and talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import yaml

from tests.plain import PLAIN
from tests.stores import migrated
from tests.waiting import SECONDS, until

ROOT = Path(__file__).parents[2]
KEY = "test-key-0123456789abcdef0123456789abcdef"
OTHER_KEY = "other-key-0123456789abcdef0123456789abcde"
NARROW_KEY = "narrow-key-0123456789abcdef0123456789abcd"
DEMO_MODEL = "demo-chat.gguf"
HEARD_SECONDS = 10.0
"""For the last words of a process that has ended, where a successor or a child goes on writing to the same pipe."""
STARTED: deque[Gatehouse] = deque(maxlen=8)
"""The gateways that were started last: a test that fails shows what they said."""


def configuration(state_dir: Path, **parts: Any) -> dict[str, Any]:
    """A small configuration with two keys; `parts` replace its top-level settings."""
    return {
        "version": 1,
        "listen": {"data": "127.0.0.1:0", "admin": "127.0.0.1:0", **parts.pop("listen", {})},
        "state_dir": str(state_dir),
        "identity": {
            "api_keys": {
                "static": [
                    {"id": "test", "key": KEY, "tenant": "acme", "models": ["*"]},
                    {"id": "other", "key": OTHER_KEY, "tenant": "globex", "models": ["*"]},
                    {"id": "narrow", "key": NARROW_KEY, "tenant": "acme", "models": ["nothing-*"]},
                ]
            }
        },
        **parts,
    }


def external(name: str, port: int, **settings: Any) -> dict[str, Any]:
    """An engine entry for a server on this machine, whose health may be late: the machine may stand still for longer than the usual 2 s."""
    health = {"timeout": 30, **settings.pop("health", {})}
    return {"name": name, "runtime": "external", "url": f"http://127.0.0.1:{port}", "health": health, **settings}


class Gatehouse:
    """One `gatehouse serve`. Use as a context manager; leaving it sends SIGTERM and insists on a clean end."""

    own_session = False
    prepared = True
    """Whether the store of a new state directory is migrated before the start, which takes the process half a second otherwise."""

    def __init__(
        self, directory: Path, config: dict[str, Any], environ: dict[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        """arguments: further ones of `serve`."""
        self.directory = directory
        self.config = config
        self.arguments = list(arguments)
        if (workers := os.environ.get("GATEHOUSE_TEST_WORKERS")) and "--workers" not in self.arguments:
            self.arguments += ["--workers", workers]
        self.file = directory / "gatehouse.yaml"
        self.file.write_text(yaml.safe_dump(config))
        self.environ = {**os.environ, **(environ or {})}
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.url = self.admin_url = ""

    @property
    def state_dir(self) -> Path:
        return Path(self.config["state_dir"])

    def launch(self) -> Gatehouse:
        """Starts the process without waiting."""
        self.lines = []
        STARTED.append(self)
        if self.prepared and not self.state_dir.exists() and self.directory in self.state_dir.parents and "url" not in self._store():
            migrated(self.state_dir)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(self.file), *self.arguments],
            cwd=ROOT,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=self.own_session,
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True)
        self._reader.start()
        return self

    def _store(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config.get("store") or {}
        return found

    def start(self, seconds: float = 120.0) -> Gatehouse:
        """Starts the process and waits until it says where it listens (then every sidecar is ready)."""
        return self.launch().await_start(seconds)

    def await_start(self, seconds: float = 120.0) -> Gatehouse:
        """Waits until a process that was launched says where it listens."""

        def listening() -> bool:
            if self.process is not None and self.process.poll() is not None:
                self._heard()
                raise AssertionError("gatehouse ended:\n" + "\n".join(self.lines))
            return any(line.startswith("admin: ") for line in self.lines)

        until(listening, seconds, "the start")
        self.url = self._line("gateway: ")
        self.admin_url = self._line("admin: ")
        return self

    def _line(self, prefix: str) -> str:
        return next(line[len(prefix) :] for line in self.lines if line.startswith(prefix))

    def __enter__(self) -> Gatehouse:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        code = self.stop()
        if exc[0] is None:
            assert code == 0, "\n".join(self.lines)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 90.0) -> int:
        """Sends a signal and returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)
                raise AssertionError("gatehouse did not end:\n" + "\n".join(self.lines)) from None
            if number != signal.SIGKILL:
                self._heard()
        return self.process.returncode

    def ended(self, seconds: float = SECONDS) -> int:
        """Waits for the process to end by itself; its exit code."""
        assert self.process is not None
        code = self.process.wait(seconds)
        self._heard()
        return code

    def _heard(self) -> None:
        """Waits until `lines` has all that a process said that has ended, unless another one still has its output."""
        if self._reader is not None:
            self._reader.join(HEARD_SECONDS)

    def contents(self) -> dict[Path, bytes]:
        """Every file below the state directory with what is in it; without those that go while they are looked at."""
        found: dict[Path, bytes] = {}
        for folder, _, names in os.walk(self.state_dir):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        found[path] = path.read_bytes()
        return found

    # --- talking to it

    def client(self, key: str | None = KEY, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, **{"timeout": 90, "trust_env": False, "verify": PLAIN, **options})

    def chat(self, text: str = "Hello!", key: str | None = KEY, **fields: Any) -> httpx.Response:
        body = {"model": "m1", "messages": [{"role": "user", "content": text}], **fields}
        with self.client(key) as client:
            return client.post("/v1/chat/completions", json=body)

    def raw(self, data: bytes, seconds: float = 60.0) -> bytes:
        """Sends bytes on a connection of their own and returns everything that comes back until it closes."""
        host, port = self.url.removeprefix("http://").split(":")
        answer = b""
        with socket.create_connection((host, int(port)), timeout=seconds) as sock:
            sock.sendall(data)
            while part := sock.recv(65536):
                answer += part
        return answer

    def metrics(self) -> str:
        return httpx.get(f"{self.admin_url}/metrics", verify=PLAIN, trust_env=False, timeout=60).text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return total(self.metrics(), name, **labels)

    def audit(self) -> list[dict[str, Any]]:
        """Every whole record of the audit log so far."""
        records = []
        for file in sorted((self.state_dir / "audit").glob("audit-*.jsonl")):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # the last one may be under way
                    records.append(json.loads(line))
        return records

    def noted(self, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """The records that have these fields, once there are so many: a record comes a moment after what it tells of."""

        def found() -> list[dict[str, Any]]:
            records = [r for r in self.audit() if all(r.get(name) == value for name, value in fields.items())]
            return records if len(records) >= count else []

        there: list[dict[str, Any]] = until(found, what=f"{count} records with {fields}")
        return there

    def outcome(self, request_id: str) -> dict[str, Any]:
        """The outcome record of a request, waited for."""
        return self.noted(kind="outcome", request_id=request_id)[0]

    def engines(self) -> list[int]:
        """Process ids of the sidecars."""
        assert self.process is not None
        found: list[int] = []
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():  # a child belongs to the thread that started it
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended: its children are another's now
                found += map(int, (thread / "children").read_text().split())
        return sorted(set(found))


def total(scrape: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples in a scrape that have these labels."""
    found = 0.0
    for line in scrape.splitlines():
        match = re.match(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", line)
        if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
            found += float(match[2])
    return found


def _read(out: IO[str], lines: list[str]) -> None:
    with out:
        for line in out:
            lines.append(line.rstrip("\n"))


def first_keys(gatehouse: Gatehouse) -> list[str]:
    """The first administrator's key, from the file that the start named; empty when it named none."""
    start = "admin key file: "
    paths = [Path(line.removeprefix(start).rpartition(" (")[0]) for line in gatehouse.lines if line.startswith(start)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
    return [path.read_text().strip() for path in paths]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def errors_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, checked for the contract's shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    return error
