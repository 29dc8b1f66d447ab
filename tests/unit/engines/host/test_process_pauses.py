"""A sidecar is not ended for what it could not answer while the gateway stood still."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.host import process as module
from engines.host.process import SILENCE_SECONDS, SidecarProcess
from gateway.core.pauses import MOST_REST_SECONDS
from gateway.core.specs import EngineSpec, HealthSpec
from tests.fakes.paused import Paused, run


def process_of(directory: Path, **health: Any) -> SidecarProcess:
    spec = EngineSpec(name="e", runtime="llama.cpp", model="x", health=HealthSpec(**health))
    nobody: Any = SimpleNamespace(engine_ready=lambda *told: None, engine_down=lambda *told: None)
    row: Any = SimpleNamespace(leads=False)
    return SidecarProcess(row, spec, directory / "s", directory, nobody, lambda *told: None, nobody)


class Watched:
    """A sidecar process that is watched; each of the answers says how many seconds a question for its health took, and what came."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, state: Any, fall: int = 1) -> None:
        self.now, self.exit = 1000.0, asyncio.get_running_loop().create_future()
        self.answers: list[tuple[float, dict[str, Any] | None]] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))
        self.process = process_of(directory, fall=fall, interval=0.001, timeout=2.0)
        self.process.state = state
        monkeypatch.setattr(self.process, "_ask", self._ask)

    async def _ask(self) -> dict[str, Any] | None:
        if not self.answers:
            self.exit.set_result(0)
            return {"state": self.process.state}
        took, report = self.answers.pop(0)
        self.now += took
        return report

    async def watch(self, *answers: tuple[float, dict[str, Any] | None]) -> str:
        """The state after these answers."""
        self.answers = list(answers)
        async with asyncio.timeout(60):
            await self.process._watch(self.exit)
        return self.process.state


async def test_a_question_that_a_pause_has_swallowed_is_no_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Watched(tmp_path, monkeypatch, "ready").watch((40.0, None), (2.0 + 40.0, None), (0.0, {"state": "ready"})) == "ready"


async def test_one_that_nobody_answers_afterwards_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Watched(tmp_path, monkeypatch, "ready").watch((40.0, None), (2.0, None)) == "failed"


async def test_a_load_is_not_silent_for_as_long_as_a_pause_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, "loading")
    assert await watched.watch((2.0, None), (2 * SILENCE_SECONDS, None), (2.0, None)) == "loading"


async def test_a_load_that_is_silent_for_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, "loading")
    assert await watched.watch(*[(2.0, None)] * (round(SILENCE_SECONDS / 2.0) + 2)) == "failed"


class Ending:
    """A child that was told to end."""

    def __init__(self) -> None:
        self.pid, self.returncode, self.killed = 1, None, 0
        self.ended = asyncio.Event()

    def terminate(self) -> None: ...

    def kill(self) -> None:
        self.killed += 1

    async def wait(self) -> int:
        await self.ended.wait()
        return 0


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_what_had_no_time_to_stop_is_not_killed_before_it_has_had_it(tmp_path: Path, seconds: float, ends: bool) -> None:
    async def test(loop: Paused) -> None:
        process, child = process_of(tmp_path), Ending()
        process._process, process.state = child, "ready"  # type: ignore[assignment]
        process.gone.set()
        stopping = asyncio.ensure_future(process.stop(seconds))
        await asyncio.sleep(0)
        loop.paused = seconds + 8.0
        for _ in range(3):
            await asyncio.sleep(0)
        assert not stopping.done() and not child.killed
        if ends:
            child.ended.set()
        else:
            loop.paused += MOST_REST_SECONDS + 0.1
        await stopping
        assert child.killed == (not ends)

    run(test)
