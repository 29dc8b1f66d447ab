"""A llama.cpp sidecar as a process, asked over its socket."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from loadtests.llamacpp.random_gguf import CHATML, Shape
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 150.0
SHAPE = Shape()
TOOLS_TEMPLATE = CHATML.replace(
    "{% for message in messages %}",
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<tool_call><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}",
)  # fmt: skip


class Sidecar:
    module, runtime, metrics = "engines.llamacpp", "llama.cpp", "gatehouse_llamacpp"

    def __init__(self, directory: Path, model: Path, **settings: Any) -> None:
        self.socket = directory / "s.sock"
        spec = {
            "name": "tiny", "runtime": self.runtime, "model": str(model), "socket": str(self.socket), "state_dir": str(directory),
            "slots": 4, "context": 512, "threads": 1, **settings,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(spec).encode() + b"\n")
        self.process.stdin.flush()
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://sidecar", timeout=DEADLINE)
        self.openai = OpenAI(base_url="http://sidecar/v1", api_key="none", http_client=self.http, max_retries=0)

    def health(self) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)) != 0:
                return {"state": "unreachable"}
        return dict(self.http.get("/health").json())

    def wait(self, *states: str) -> dict[str, Any]:
        until(lambda: self.health()["state"] in states)
        return self.health()

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{self.metrics}_{name} "))

    def complete(self, prompt: Any = "hello world", **settings: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8, "seed": 7, **settings})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def error(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return dict(answer.json()["error"])

    def close(self) -> None:
        self.openai.close()
        self.http.close()
        self.process.kill()
        self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                pipe.close()
