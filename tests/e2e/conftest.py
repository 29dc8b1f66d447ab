"""Fixtures of the end-to-end tests: a gateway over scripted engines, and one over real sidecars with the demo model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import DEMO_MODEL, STARTED, Gatehouse, configuration, external
from tests.fakes.answers import parse_script
from tests.fakes.engine import FakeEngine
from tests.fakes.ports import empty_port
from tests.waiting import until

LAST_LINES = 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows beside a failure what the gateways said that run, or ended last."""
    report = yield
    if report.failed:
        for gatehouse in {id(each): each for each in STARTED}.values():
            said = [line for line in gatehouse.lines if not line.startswith("admin key")]
            report.sections.append((f"gatehouse in {gatehouse.directory.name}", "\n".join(said[-LAST_LINES:])))
    return report


class EngineThread:
    """A FakeEngine on an event loop of its own, so that a synchronous test can watch it."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.engine = FakeEngine(**options)
        self._run(self.engine.start())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    @property
    def port(self) -> int:
        return int(self.engine.address.rsplit(":", 1)[1])

    @property
    def received(self) -> list[Any]:
        """Inference requests, without health checks."""
        return [r for r in list(self.engine.requests) if r.method == "POST"]

    def play(self, script: str) -> None:
        """How the next requests are answered, one step each.

        What an earlier test left held must be gone first: the engine learns later than the gateway that a client has left, and
        `holds` would count that request.
        """
        steps = parse_script(script)
        if any(step.kind == "hold" for step in steps):
            self.holds(0)
        self.engine.script.extend(steps)

    def holds(self, count: int) -> None:
        """Waits until so many requests are held (the step `hold`): the gateway counts one from its arrival, before it is here."""
        until(lambda: self.engine.holding == count, what=f"{count} held requests")

    def release(self, count: int = 1) -> None:
        """Lets those requests go on that are held, once so many are."""
        self.holds(count)
        self.release_all()

    def release_all(self) -> None:
        """Lets those go on that are held now, however many: some clients may have gone."""
        self._loop.call_soon_threadsafe(self.engine.release)

    def close(self) -> None:
        self._run(self.engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    """A scripted engine, shared by a module."""
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.fixture
def engines() -> Iterator[Callable[..., EngineThread]]:
    """Makes scripted engines that end with the test."""
    made: list[EngineThread] = []

    def make(**options: Any) -> EngineThread:
        made.append(EngineThread(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port where nobody listens, until an engine of the test does."""
    with empty_port() as port:
        yield port


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """A gateway over the scripted engine, under the model name m1."""
    directory = tmp_path_factory.mktemp("gatehouse")
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"], "aliases": ["m1-latest"]}],
    )
    with Gatehouse(directory, config) as running:
        yield running


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    """A gateway over a llama.cpp sidecar with the demo chat model."""
    directory = tmp_path_factory.mktemp("real")
    config = configuration(
        directory / "state",
        engines=[{"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 2048}],
        models=[{"name": "demo-chat", "pool": ["chat"]}],
    )
    with Gatehouse(directory, config) as running:
        yield running


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Gatehouse]]:
    """Makes gateways of a test's own; what still runs at the end is ended."""
    made: list[Gatehouse] = []

    def make(config: dict[str, Any], environ: dict[str, str] | None = None) -> Gatehouse:
        directory = tmp_path / f"g{len(made)}"
        directory.mkdir(exist_ok=True)
        made.append(Gatehouse(directory, config, environ))
        return made[-1]

    yield make
    for gatehouse in made:
        if gatehouse.process is not None and gatehouse.process.poll() is None:
            gatehouse.stop()
