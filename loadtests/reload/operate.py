"""The operator of the reload benchmark, in a process of its own: changes one thing after the other over the admin API.

    python -m loadtests.reload.operate URL KEY PLAN

PLAN: JSON with `kinds` (what to do, in this order), `pause` (seconds from one beginning to the next), `urls` (of two scripted
engines). Prints `ready`, waits for a line, then prints a line of JSON for each change as it is done: kind, begin and end
(monotonic), in_force (seconds from the write's answer until it serves, where that can be seen).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

SIDECAR_SECONDS = 90.0
IN_FORCE_SECONDS = 10.0


class Operator:
    def __init__(self, client: httpx.Client, urls: list[str]) -> None:
        self._client, self._urls = client, urls
        self._keys: list[str] = []
        self._count = 0

    def do(self, kind: str) -> float | None:
        """One change. Returns the seconds until it was in force, or None."""
        self._count += 1
        acts: dict[str, Callable[[], float | None]] = {
            "key": self._key,
            "limit": self._limit,
            "model": self._model,
            "engine": self._engine,
            "sidecar": self._sidecar,
            "file": self._file,
        }
        return acts[kind]()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()

    def _key(self) -> None:
        """Made, and the one before revoked."""
        self._keys.append(self._ask("POST", "/keys", {"tenant": "acme", "models": ["*"]})["id"])
        if len(self._keys) > 1:
            self._ask("POST", f"/keys/{self._keys.pop(0)}/revoke")

    def _limit(self) -> None:
        self._ask("PATCH", "/limits/bench", {"requests": {"rate": 1_000_000 + self._count, "per": 1.0}})

    def _model(self) -> float:
        """Another alias, another order of the pool."""
        pool: list[Any] = ["one", "two"] if self._count % 2 else ["two", "one"]
        self._ask("PATCH", "/models/plain", {"aliases": [f"plain-{self._count}"], "pool": pool})
        return self._until("/models/plain", IN_FORCE_SECONDS)

    def _engine(self) -> float:
        """Another address: new connections, a new breaker; what is under way finishes on the old ones."""
        url = self._urls[self._count % 2]
        self._ask("PATCH", "/engines/one", {"url": url, "slots": 512 + self._count % 7})
        return self._until("/engines/one", IN_FORCE_SECONDS)

    def _sidecar(self) -> float:
        """Another version of a model in a process of ours: started, warmed up, shifted, the old one drained."""
        self._ask("PATCH", "/engines/sidecar", {"version": str(self._count)})
        return self._until("/engines/sidecar", SIDECAR_SECONDS)

    def _file(self) -> None:
        self._ask("POST", "/config/reload")

    def _until(self, path: str, seconds: float) -> float:
        begin = time.monotonic()
        while True:
            shown = self._ask("GET", path)
            if shown["in_force"]:
                return time.monotonic() - begin
            if shown["failed"] or time.monotonic() - begin > seconds:
                raise SystemExit(f"{path}: {shown['reason']}")
            time.sleep(0.01)


def main() -> None:
    url, key, text = sys.argv[1:]
    plan = json.loads(text)
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"{url}/admin/v1", headers=headers, trust_env=False, timeout=60) as client:
        operator = Operator(client, plan["urls"])
        client.get("/whoami").raise_for_status()
        print("ready", flush=True)
        sys.stdin.readline()  # whoever measures says when: starting this process has cost something
        for kind in plan["kinds"]:
            begin = time.monotonic()
            in_force = operator.do(kind)
            print(json.dumps({"kind": kind, "begin": begin, "end": time.monotonic(), "in_force": in_force}), flush=True)
            time.sleep(max(0.0, plan["pause"] - (time.monotonic() - begin)))


if __name__ == "__main__":
    main()
