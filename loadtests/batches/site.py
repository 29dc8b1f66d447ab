"""A cluster (tests/cluster) with files and batches, and a client that finds one replica when the other is gone."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.cluster.cluster import Cluster, Replica
from tests.e2e.harness import KEY, external

OVER = ("completed", "failed", "expired", "cancelled")
SLOTS = 32


def cluster(workers: int | None, directory: Path, *, seconds: float, parallel: int, spare: float = 0.25) -> Cluster:
    """seconds: what the engine takes for a line of the model `line`."""
    made = Cluster(
        workers,
        files={"enabled": True, "directory": str(directory), "reserve_bytes": 0},
        batches={"enabled": True, "lease": "3s", "parallel": parallel, "spare": spare, "attempts": 10},
    )
    for replica in made.replicas.values():
        engine = external("shared", made.engine.port, slots=SLOTS)
        models = [
            {"name": name, "pool": [{"engine": "shared", "model": theirs}]}
            for name, theirs in (("line", f"slow-{seconds}"), ("static", f"slow-{seconds}"), ("stream", "stream"))
        ]
        replica.config["engines"], replica.config["models"] = [engine], models
        replica.file.write_text(yaml.safe_dump(replica.config))
    return made


class Client:
    """Asks the replicas in turns until one answers, for a minute."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        end = time.monotonic() + 60
        headers = {"authorization": f"Bearer {KEY}"}
        while True:
            for replica in self._cluster.replicas.values():
                try:
                    answer = httpx.request(
                        method, f"http://127.0.0.1:{replica.port}/v1{path}", headers=headers, timeout=120, trust_env=False, **options
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code < 500:
                    return answer.raise_for_status()
            if time.monotonic() > end:
                raise TimeoutError(f"no replica answers {method} {path}")
            time.sleep(0.05)

    def begin(self, lines: int) -> str:
        """Sends a file of so many lines and makes a batch of it."""
        content = "\n".join(line(number) for number in range(lines)).encode()
        file = self("POST", "/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return str(self("POST", "/batches", json=wanted).json()["id"])

    def batch(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self("GET", f"/batches/{id}").json()
        return found

    def results(self, id: str | None) -> list[dict[str, Any]]:
        return [] if id is None else [json.loads(one) for one in self("GET", f"/files/{id}/content").text.splitlines()]


def line(number: int) -> str:
    body = {"model": "line", "messages": [{"role": "user", "content": f"Say something about {number}."}]}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


def holder(cluster: Cluster, id: str) -> Replica | None:
    """The replica that works on the batch, as its own log names it."""
    for replica in cluster.replicas.values():
        try:
            with replica.admin() as client:
                held = client.get(f"/batches/{id}").raise_for_status().json()["holder"].partition(":")[0]
        except httpx.HTTPError:
            continue
        return next((one for one in cluster.replicas.values() if held and named(one) == held), None)
    return None


def named(replica: Replica) -> str:
    found = [match[1] for one in list(replica.lines) if (match := re.search(r"this is the replica (\S+)", one))]
    return found[-1] if found else ""
