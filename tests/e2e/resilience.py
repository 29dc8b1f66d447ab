"""What the resilience tests share: many requests, load that goes on meanwhile, and what is to be read off the answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import yaml

from tests.e2e.adminapi import KEYS, admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, total
from tests.waiting import until


def many(
    gatehouse: Gatehouse, count: int, *, width: int = 8, key: str = KEY, stream: bool = False, text: str = "question"
) -> list[httpx.Response]:
    """So many requests, `width` at a time, each a conversation of its own."""
    with gatehouse.client(key) as client, ThreadPoolExecutor(width) as threads:

        def ask(number: int) -> httpx.Response:
            messages = [{"role": "user", "content": f"{text} {number}"}]
            return client.post("/v1/chat/completions", json={"model": "m1", "messages": messages, "stream": stream})

        return list(threads.map(ask, range(count)))


class Load:
    """Clients that ask one question after the other until told to stop. answers: when each was asked for, and what came."""

    def __init__(self, gatehouse: Gatehouse, model: str, width: int, *, key: str = KEY, **fields: Any) -> None:
        self.answers: list[tuple[float, httpx.Response]] = []
        self.lost: list[httpx.HTTPError] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(gatehouse, model, key, n, fields)) for n in range(width)]
        for thread in self._threads:
            thread.start()

    def _run(self, gatehouse: Gatehouse, model: str, key: str, number: int, fields: dict[str, Any]) -> None:
        with gatehouse.client(key) as client:
            count = 0
            while not self._stop.is_set():
                count, asked = count + 1, time.monotonic()
                messages = [{"role": "user", "content": f"client {number} asks {count}"}]
                try:
                    answer = client.post("/v1/chat/completions", json={"model": model, "messages": messages, **fields})
                except httpx.HTTPError as error:
                    self.lost.append(error)
                else:
                    self.answers.append((asked, answer))

    def more(self, count: int, seconds: float = 120.0) -> None:
        """Waits until so many more answers have come."""
        goal = len(self.answers) + count
        until(lambda: len(self.answers) >= goal, seconds, f"{count} more answers")

    def places(self, since: float) -> Counter[str]:
        """Which endpoints gave the answers to what was asked after this time."""
        return places([answer for at, answer in self.answers if at > since])

    def stop(self) -> Counter[int]:
        """Ends the load; the answers' statuses. Every question has an answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        assert not self.lost
        answers = [answer for _, answer in self.answers]
        for answer in answers:
            if answer.is_error:
                print(answer.status_code, dict(answer.headers), answer.text)  # shown where the test fails
        return statuses(answers)


def uncut(load: Load) -> bool:
    """Whether every stream of a load went to its regular end."""
    return all(
        answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text and '"finish_reason":"' in answer.text.replace(" ", "")
        for _, answer in load.answers
    )


def changes(gatehouse: Gatehouse, endpoint: str) -> list[str]:
    """The states that an endpoint went through, from the audit log."""
    records = [r for r in gatehouse.audit() if r.get("event") == "endpoint_changed" and r.get("target") == endpoint]
    return [r["detail"]["to"] for r in records]


def changed(gatehouse: Gatehouse, endpoint: str, *states: str) -> None:
    """Waits until these are the last states that an endpoint went through: the audit log is written a moment after."""
    until(lambda: changes(gatehouse, endpoint)[-len(states) :] == list(states), what=f"{states} of {endpoint}")


@contextmanager
def asking(gatehouse: Gatehouse, count: int, **options: Any) -> Iterator[list[httpx.Response]]:
    """So many requests at once, from threads of their own; at the end of the block they are waited for and the list is filled."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.extend(many(gatehouse, count, width=count, **options)))
    thread.start()
    yield answers
    thread.join(120)
    assert len(answers) == count


def with_operator(config: dict[str, Any]) -> dict[str, Any]:
    """With keys of an operator and of an administrator."""
    for role in ("operator", "admin"):
        entry = {"id": f"a-{role}", "key": KEYS[role], "tenant": "acme", "models": ["*"], "roles": [role]}
        config["identity"]["api_keys"]["static"].append(entry)
    return config


class Since(Gatehouse):
    """A gateway that earlier tests have used, put to these settings: for this test its counters begin at 0 and its audit log is empty."""

    def __init__(self, running: Gatehouse, config: dict[str, Any]) -> None:
        vars(self).update(vars(running))
        self.config = config
        self.file.write_text(yaml.safe_dump(config))
        before = len(self._applied())
        with admin(running) as client:
            answer = client.put("/config", content=self.file.read_bytes(), headers={"content-type": "application/yaml"})
        assert answer.status_code == 200, answer.text
        until(lambda: len(self._applied()) > before, what="the record of the settings")
        self._skipped, self._scraped = self._applied()[before], running.metrics()

    def _applied(self) -> list[int]:
        """How many records there were each time that settings came into force."""
        return [number for number, record in enumerate(super().audit(), 1) if record.get("event") == "config_applied"]

    def audit(self) -> list[dict[str, Any]]:
        return super().audit()[self._skipped :]

    def metric(self, name: str, **labels: str) -> float:
        return super().metric(name, **labels) - (total(self._scraped, name, **labels) if name.endswith("_total") else 0)


def queued(gatehouse: Gatehouse, count: int) -> None:
    """Waits until so many requests wait for an engine of m1; its operator has a key."""
    with admin(gatehouse, "operator") as client:
        until(lambda: client.get("/models/m1").json()["queued"] == count, what=f"{count} waiting requests")


def busiest(engine: EngineThread) -> int:
    """The most requests that an engine had at a time."""
    return max(sum(other.time <= one.time < (other.done or 1e99) for other in engine.received) for one in engine.received)


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def places(answers: list[httpx.Response]) -> Counter[str]:
    return Counter(answer.headers["x-gatehouse-endpoint"] for answer in answers)


def reload(gatehouse: Gatehouse, config: dict[str, Any]) -> None:
    """Asks for another configuration; it is in force some time later."""
    assert gatehouse.process is not None
    gatehouse.file.write_text(yaml.safe_dump(config))
    os.kill(gatehouse.process.pid, signal.SIGHUP)
