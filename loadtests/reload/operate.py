"""The operator of the reload benchmark, in a process of its own: changes one thing after the other over the admin API.

    python -m loadtests.reload.operate URL KEY PLAN

PLAN: JSON with `kinds` (what to do, in this order), `pause` (seconds from one beginning to the next), `urls` (of two scripted
engines). Prints `ready`; for each line with a number that comes it makes so many changes, prints a line of JSON for each as it is done
(kind, begin and end, both monotonic, in_force: seconds from the write's answer until it serves, where that can be seen), then `done`.

An operator sits at another machine. This one shares the processors with what is measured, so it is as small and as polite as it can
be: the standard library's client, a low priority.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

SIDECAR_SECONDS = 90.0
IN_FORCE_SECONDS = 10.0
NICE = 5


class Operator:
    def __init__(self, url: str, key: str, urls: list[str]) -> None:
        at = urlsplit(url)
        self._connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._urls = urls
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

    def close(self) -> None:
        """The gateway closes a connection that nobody uses for a while; the next change opens another."""
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, f"/admin/v1{path}", text, self._headers)
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {read.decode()}")
        return json.loads(read)

    def _key(self) -> None:
        """Made, and the one before revoked."""
        self._keys.append(self.ask("POST", "/keys", {"tenant": "acme", "models": ["*"]})["id"])
        if len(self._keys) > 1:
            self.ask("POST", f"/keys/{self._keys.pop(0)}/revoke")

    def _limit(self) -> None:
        self.ask("PATCH", "/limits/bench", {"requests": {"rate": 1_000_000 + self._count, "per": 1.0}})

    def _model(self) -> float:
        """Another alias, another order of the pool."""
        pool: list[Any] = ["one", "two"] if self._count % 2 else ["two", "one"]
        self.ask("PATCH", "/models/plain", {"aliases": [f"plain-{self._count}"], "pool": pool})
        return self._until("/models/plain", IN_FORCE_SECONDS)

    def _engine(self) -> float:
        """Another address: new connections, a new breaker; what is under way finishes on the old ones."""
        url = self._urls[self._count % 2]
        self.ask("PATCH", "/engines/one", {"url": url, "slots": 512 + self._count % 7})
        return self._until("/engines/one", IN_FORCE_SECONDS)

    def _sidecar(self) -> float:
        """Another version of a model in a process of ours: started, warmed up, shifted, the old one drained."""
        self.ask("PATCH", "/engines/sidecar", {"version": str(self._count)})
        return self._until("/engines/sidecar", SIDECAR_SECONDS)

    def _file(self) -> None:
        self.ask("POST", "/config/reload")

    def _until(self, path: str, seconds: float) -> float:
        begin = time.monotonic()
        while True:
            shown = self.ask("GET", path)
            if shown["in_force"]:
                return time.monotonic() - begin
            if shown["failed"] or time.monotonic() - begin > seconds:
                raise SystemExit(f"{path}: {shown['reason']}")
            time.sleep(0.02)


def main() -> None:
    url, key, text = sys.argv[1:]
    os.nice(NICE)
    plan = json.loads(text)
    operator = Operator(url, key, plan["urls"])
    operator.ask("GET", "/whoami")
    operator.close()
    print("ready", flush=True)
    kinds = iter(plan["kinds"])
    for line in sys.stdin:
        for _ in range(int(line)):
            kind, begin = next(kinds), time.monotonic()
            in_force = operator.do(kind)
            print(json.dumps({"kind": kind, "begin": begin, "end": time.monotonic(), "in_force": in_force}), flush=True)
            time.sleep(max(0.0, plan["pause"] - (time.monotonic() - begin)))
        operator.close()
        print("done", flush=True)


if __name__ == "__main__":
    main()
