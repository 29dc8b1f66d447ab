"""When requests may rely on the journal. tests/unit/gateway/audit/test_journaled.py shows what follows from it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.fastpath import FastPath
from gateway.audit.fault import FAILED, STARTED, Fault
from gateway.audit.journal import Journal
from gateway.audit.reliance import BUSY, PERIOD, STEADY, Reliance
from gateway.audit.writer import RESERVE


class World:
    """A log, and the loop's use of its core. `after` lets one period pass."""

    def __init__(self, bench: Any, directory: Path) -> None:
        self.clock, self.used = bench.clock, 0.0
        bench.disk.room = RESERVE
        self.writer = bench.writer()
        self.path, self.fault = FastPath(), Fault(self.clock)
        self.path.attach(Journal(directory / "journal"))
        self.fault.happened(STARTED)
        self.reliance = Reliance(self.path, self.writer, self.fault, self.clock, lambda: self.used, STEADY)

    def after(self, *, written: int = STEADY, busy: float = 0.0, roomy: bool = True) -> bool:
        loop = asyncio.get_running_loop()
        self.reliance.watch(loop)
        assert self.reliance._timer is not None
        self.reliance._timer.cancel()
        self.writer.written += written
        self.writer.roomy = roomy
        self.clock.advance(PERIOD)
        self.used += busy * PERIOD
        self.reliance._decide(loop)
        return self.path.open


@pytest.fixture
async def world(log_bench: Any, tmp_path: Path) -> World:
    return World(log_bench, tmp_path)


async def test_a_steady_load_that_the_log_keeps_up_with(world: World) -> None:
    assert world.after()
    world.reliance.end()


@pytest.mark.parametrize("against", [{"written": STEADY - 1}, {"busy": BUSY + 0.05}, {"roomy": False}])
async def test_what_speaks_against_it(world: World, against: dict[str, Any]) -> None:
    assert world.after() and not world.after(**against)
    world.reliance.end()


async def test_a_log_that_takes_no_records(world: World) -> None:
    world.fault.broke(FAILED, "no space")
    assert not world.after()
    world.reliance.end()


async def test_nothing_is_decided_after_the_end(world: World) -> None:
    assert world.after()
    world.reliance.end()
    world.reliance.watch(asyncio.get_running_loop())
    assert world.reliance._timer is None
