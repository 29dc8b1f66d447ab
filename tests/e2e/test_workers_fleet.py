"""Engines of a gateway with workers: loaded once, replaced and drained without losing a request, and never given more than their slots."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, alive, configuration, errors_of, external
from tests.e2e.resilience import Load, busiest, uncut, with_operator
from tests.fakes.answers import Step
from tests.waiting import until

PROBED = {"health": {"interval": 0.2, "timeout": 30, "path": "/v1/models"}}
"""An engine whose probes tell nothing of slots: the configuration's count."""
BODY = {"messages": [{"role": "user", "content": "question"}], "max_tokens": 4}


class Farm(Gatehouse):
    """A gateway with two workers, and an operator's key."""

    def __init__(self, directory: Path, engines: list[dict[str, Any]]) -> None:
        breaker = {"breaker": {"open_for": 600, "open_max": 600}}
        models = [{"name": engine["name"], "pool": [engine["name"]], "routing": breaker} for engine in engines]
        config = with_operator(configuration(directory / "state", engines=engines, models=models))
        super().__init__(directory, config, arguments=["--workers", "2"])

    def workers(self) -> list[int]:
        """Processes of the workers that have said in the log that they serve, the oldest first."""
        lines = [line for line in list(self.lines) if " serves (process " in line]
        return [pid for line in lines if alive(pid := int(line.split()[-1].rstrip(")")))]

    def ask(self, model: str) -> httpx.Response:
        """One request on a connection of its own."""
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json={**BODY, "model": model}, headers=headers, trust_env=False, timeout=120)

    def endpoint(self, name: str) -> dict[str, Any]:
        with admin(self, "operator") as client:
            return next(view for view in client.get("/endpoints").json()["items"] if view["name"] == name)

    def events(self, kind: str) -> int:
        return sum(record.get("event") == kind for record in self.audit())


@contextmanager
def only(farm: Farm, serving: int) -> Iterator[None]:
    """Stops all workers but this one, so that it serves."""
    until(lambda: len(farm.workers()) == 2, what="two workers")
    others = [pid for pid in farm.workers() if pid != serving]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            with suppress(ProcessLookupError):  # it stood still for so long that it was replaced
                os.kill(pid, signal.SIGCONT)


@contextmanager
def under(farm: Farm, model: str, width: int, **fields: Any) -> Iterator[Load]:
    """So many clients ask all the time; every one gets its answers."""
    load = Load(farm, model, width, max_tokens=4, **fields)
    try:
        yield load
    finally:
        found = load.stop()
    assert found == Counter({200: len(load.answers)})


def sidecar(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "runtime": "llama.cpp", "model": str(DEMO_MODEL), "slots": 2, "context": 256, **settings}


@pytest.fixture(scope="module")
def fakes() -> Iterator[dict[str, EngineThread]]:
    made = {name: EngineThread(default=Step(delay=0.005)) for name in ("one", "three", "broken")}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, fakes: dict[str, EngineThread]) -> Iterator[Farm]:
    slots = {"one": 1, "three": 3, "broken": 8}
    engines = [
        sidecar("chat", rollout={"steps": [0.5], "step_seconds": 0.3}),
        sidecar("lazy", lifecycle={"load": "lazy", "idle_ttl": 1.0}),
        *(external(name, engine.port, slots=slots[name], **PROBED) for name, engine in fakes.items()),
    ]
    with Farm(tmp_path_factory.mktemp("farm"), engines) as running:
        yield running
        assert running.stop() == 0


def test_a_lazy_engine_is_loaded_once_for_all_workers_and_unloaded_when_idle(farm: Farm) -> None:
    assert farm.endpoint("lazy")["state"] == "unloaded"
    with under(farm, "lazy", 8) as load:
        load.more(8)
    until(lambda: farm.endpoint("lazy")["state"] == "unloaded", what="the unloading")

    def wished_once() -> bool:
        """Whether each wish was followed by an unloading; clients that stand still for a second let it be unloaded in between."""
        told = [record for record in farm.audit() if record.get("event") in ("engine_wanted", "engine_unloaded")]
        found = [record["event"] for record in sorted(told, key=lambda record: float(record["time"]))]
        return len(found) > 0 and found == ["engine_wanted", "engine_unloaded"] * (len(found) // 2)

    until(wished_once, what="one wish for all workers each time")
    for pid in farm.workers():
        until(lambda: farm.endpoint("lazy")["state"] == "unloaded", what="the unloading")
        count = farm.events("engine_wanted") + 1
        with ThreadPoolExecutor(1) as asking:
            with only(farm, pid):  # not for long: a worker that is stopped for ten seconds is replaced
                answer = asking.submit(farm.ask, "lazy")
                until(lambda count=count: farm.events("engine_wanted") == count, what="the wish for it")
            assert answer.result().status_code == 200


def test_an_engine_is_replaced_and_drained_without_losing_a_request_and_survives_its_death(farm: Farm) -> None:
    with admin(farm, "operator") as client:
        with under(farm, "chat", 6, stream=True) as load:
            for _ in range(2):
                assert client.post("/models/chat/reload", timeout=120).status_code == 200
                load.more(12)
        assert uncut(load)
        until(lambda: farm.events("engine_replaced") == 2, what="the events")
        for act, status in (("drain", 503), ("resume", 200)):
            assert client.post(f"/engines/chat/{act}").status_code == 200
            for pid in farm.workers():
                with only(farm, pid):
                    until(lambda status=status: farm.ask("chat").status_code == status, what=f"{status} of this worker, too")

    engines = set(farm.engines()) - set(farm.workers())
    for engine in engines:
        os.kill(engine, signal.SIGKILL)
    until(lambda: not any(alive(engine) for engine in engines))
    until(lambda: farm.ask("chat").status_code == 200, what="the engine's restart")
    for pid in farm.workers():
        with only(farm, pid):
            until(lambda: farm.ask("chat").status_code == 200, what="the news in this worker, too")


def test_a_breaker_that_opens_in_one_worker_opens_in_the_other(farm: Farm, fakes: dict[str, EngineThread]) -> None:
    until(lambda: len(farm.workers()) == 2, what="two workers")
    first, second = farm.workers()
    fakes["broken"].play("status:code=500*5")
    with only(farm, first):
        assert [farm.ask("broken").status_code for _ in range(5)] == [502] * 5
    answers: list[httpx.Response] = []

    def refused() -> bool:
        answers.append(farm.ask("broken"))
        return answers[-1].status_code == 503

    with only(farm, second):
        until(refused, what="the other worker's refusal")
    refusal = answers[-1]
    assert (refusal.status_code, errors_of(refusal)["code"]) == (503, "no_healthy_endpoint")
    assert len(fakes["broken"].received) == 5 + len(answers) - 1, "the engine saw no other request than those it answered"
    assert farm.endpoint("broken")["breaker"]["state"] == "open"
    until(lambda: farm.metric("gatehouse_breaker_open", endpoint="broken") == 1, what="the gauge")


@pytest.mark.parametrize(("model", "slots"), [("one", 1), ("three", 3)])
def test_an_engine_never_gets_more_than_its_slots_from_all_workers_together(
    model: str, slots: int, farm: Farm, fakes: dict[str, EngineThread]
) -> None:
    with under(farm, model, 12) as load:
        load.more(150)
    assert busiest(fakes[model]) == slots
    until(lambda: farm.endpoint(model)["in_flight"] == 0)
