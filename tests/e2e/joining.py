"""Machines of a test: `gatehouse engines run --join` in processes of their own, on this machine as if each were another."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.core.joining import BEATS, JOIN, SIGNATURE, Joining, signed
from tests.e2e import adminapi
from tests.e2e.adminapi import admin
from tests.e2e.harness import DEMO_MODEL, ROOT, Gatehouse
from tests.plain import PLAIN
from tests.waiting import until

CHAT = {"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 2, "context": 256}


def gateway_config(state_dir: Path, lease: str = "3s", **joined: Any) -> dict[str, Any]:
    """A gateway whose engine `chat` machines bring. Test machines are busy, so a lease is longer where a test does not measure it."""
    engine = {
        "name": "chat",
        "runtime": "external",
        "joined": {"machines": ["gpu-*"], "networks": ["127.0.0.0/8"], **joined},
        "health": {"interval": 0.2, "slow_start": "200ms"},
    }
    made = adminapi.config(state_dir, 9, engines=[engine], machines={"lease": lease})
    made["models"] = [{"name": "m1", "pool": ["chat"], "routing": {"policy": "round_robin"}}]
    return made


def token(gatehouse: Gatehouse, **settings: Any) -> dict[str, Any]:
    """A join token, as it is shown when it is made."""
    with admin(gatehouse) as api:
        made = api.post("/join-tokens", json={"machines": ["gpu-*"], "engines": ["chat"], "uses": 10, **settings})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


class JoinedMachine:
    """One machine. `start` does not wait."""

    def __init__(self, directory: Path, name: str, engines: list[dict[str, Any]] | None = None, **settings: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.name = directory, name
        self.file = directory / f"{name}.yaml"
        self.file.write_text(
            yaml.safe_dump(
                {"version": 1, "state_dir": str(directory / name), "engines": [CHAT] if engines is None else engines, **settings}
            )
        )
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, url: str, join_token: str | None = None, *arguments: str) -> JoinedMachine:
        command = [sys.executable, "-m", "gateway", "engines", "run", "--join", url, "--config", str(self.file), "--name", self.name]
        given = [] if join_token is None else ["--token-file", "-"]
        self.lines = []
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *given, *arguments],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{join_token or ''}\n")
        self.process.stdin.close()
        threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True).start()
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        line = until(lambda: next((one for one in self.lines if one.startswith("machine: ")), None), what="the machine's line")
        host, _, port = line.rpartition(" ")[2].rpartition(":")
        return host, int(port)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def terminate(self) -> None:
        """Does not wait."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = 60.0) -> int:
        self.terminate()
        assert self.process is not None
        return self.process.wait(seconds)


def stop_all(machines: Iterable[JoinedMachine]) -> None:
    """All at once: each takes its time to end."""
    made = list(machines)
    for machine in made:
        machine.terminate()
    for machine in made:
        machine.stop()


def _read(out: IO[str], lines: list[str]) -> None:
    with out:
        for line in out:
            lines.append(line.rstrip("\n"))


class Pretender:
    """Says what a machine could say, with a key of its own."""

    def __init__(self, gatehouse: Gatehouse, name: str) -> None:
        self.name, self.key = name, Ed25519PrivateKey.generate()
        self._url = gatehouse.admin_url
        self.session, self.sequence = "", 0

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None, key: Ed25519PrivateKey | None = None) -> httpx.Response:
        signature = b64encode((key or self.key).sign(signed(path, body))).decode()
        given = {SIGNATURE: signature, **(headers or {})}
        return httpx.post(f"{self._url}{path}", content=body, headers=given, verify=PLAIN, trust_env=False, timeout=60)

    def join(self, text: str, name: str | None = None) -> httpx.Response:
        public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        body = msgspec.json.encode(Joining(name=name or self.name, public_key=b64encode(public).decode()))
        return self.post(JOIN, body, {"authorization": f"Bearer {text}"})

    def beat(self, **fields: Any) -> httpx.Response:
        """One beat, within a session; fields replace what is said."""
        for _ in range(2):
            self.sequence += 1
            said = {"session": self.session, "sequence": self.sequence, "address": "127.0.0.1:9", "engines": [UP], **fields}
            answer = self.post(f"{JOIN}/{self.name}/{BEATS}", msgspec.json.encode(said))
            if answer.status_code != 409 or answer.json()["code"] != "machine_session":
                return answer
            self.session, self.sequence = answer.json()["session"], 0
        return answer


UP = {"name": "chat", "state": "ready", "slots": 4}
