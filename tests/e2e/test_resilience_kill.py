"""Processes that die under load: engines of the fault bench, and real sidecars."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.audit.crypto import load_verifier
from gateway.audit.verify import verify_log
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, ROOT, Gatehouse, configuration, external
from tests.e2e.resilience import Load, changed
from tests.fakes.ports import empty_port
from tests.waiting import until

Launch = Callable[..., Gatehouse]


class EngineProcess:
    """A scripted engine as a process of its own, which can be killed and started again at its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.start()

    def start(self) -> None:
        # Whole answers: what an engine began to answer is not asked for again, and a kill could fall between head and body.
        command = [sys.executable, "-m", "tests.fakes.engine", "--port", str(self.port), "--whole"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready ")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def three() -> Iterator[list[EngineProcess]]:
    with ExitStack() as ports:
        made = [EngineProcess(ports.enter_context(empty_port())) for _ in range(3)]
        yield made
        for engine in made:
            engine.kill()


def test_one_of_three_killed_costs_nobody_an_answer_and_comes_back(three: list[EngineProcess], launch: Launch, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    engines = [external(n, e.port, health={"interval": 0.2, "timeout": 30}) for n, e in zip(names, three, strict=True)]
    gatehouse = launch(configuration(tmp_path / "state", engines=engines, models=[{"name": "m1", "pool": names}])).start()
    load = Load(gatehouse, "m1", width=6)
    load.more(60)
    killed = time.monotonic()
    three[0].kill()
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 0, what="the ejection")
    load.more(60)
    three[0].start()
    until(lambda: gatehouse.metric("gatehouse_endpoint_up", endpoint="a") == 1, what="the return")
    load.more(60)
    assert load.stop() == {200: len(load.answers)}
    after = [answer.headers["x-gatehouse-endpoint"] for at, answer in load.answers if at > killed]
    assert set(after) == {"a", "b", "c"}
    changed(gatehouse, "a", "half_open", "ready")


def test_a_sidecar_killed_under_load_costs_no_retry_safe_request(launch: Launch, tmp_path: Path) -> None:
    engines = [{"name": n, "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 512, "threads": 1} for n in ("one", "two")]
    gatehouse = launch(configuration(tmp_path / "state", engines=engines, models=[{"name": "m1", "pool": ["one", "two"]}])).start()
    load = Load(gatehouse, "m1", width=6, max_tokens=8)
    load.more(12)
    victim = gatehouse.engines()[0]
    os.kill(victim, signal.SIGSTOP)
    until(lambda: all(gatehouse.metric("gatehouse_endpoint_in_flight", endpoint=n) > 0 for n in ("one", "two")), what="its requests")
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in gatehouse.engines(), what="the end of the sidecar")
    load.more(12)
    until(lambda: len(gatehouse.engines()) == 2, what="the restart")
    until(lambda: all(gatehouse.metric("gatehouse_endpoint_up", endpoint=n) == 1 for n in ("one", "two")), what="the return")
    load.more(12)
    assert load.stop() == {200: len(load.answers)}
    assert gatehouse.metric("gatehouse_retries_total") >= 1


def test_a_gateway_that_is_killed_starts_anew_while_its_workers_finish(
    launch: Launch, engines: Callable[..., EngineThread], tmp_path: Path
) -> None:
    """They still have their ids in the audit log; the new ones take others."""
    engine = engines()
    config = configuration(tmp_path / "state", engines=[external("e", engine.port)], models=[{"name": "m1", "pool": ["e"]}])
    gatehouse = launch(config)
    gatehouse.arguments = ["--workers", "2"]
    gatehouse.start()
    assert gatehouse.process is not None
    engine.play("hold:at=mid")
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with gatehouse.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        engine.holds(1)
        gatehouse.process.kill()
        gatehouse.process.wait(60)
        gatehouse.start()
        assert gatehouse.chat().status_code == 200
        engine.release()
        assert [line for line in lines if line][-1] == "data: [DONE]"

    def serving() -> set[str]:
        return {line.split("worker ")[1].split()[0].rpartition("-")[2] for line in list(gatehouse.lines) if " serves (process " in line}

    until(lambda: len(serving()) == 2, what="both workers in the log")
    assert serving() != {"1", "2"}
    assert gatehouse.stop() == 0
    found = verify_log(gatehouse.state_dir / "audit", load_verifier(gatehouse.state_dir / "keys" / "audit-signing.pub.pem"))
    assert found.ok, found
