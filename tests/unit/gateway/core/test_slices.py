"""Long work in slices: what it returns and raises, and that the loop runs in between."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.clock import FakeClock
from gateway.core.slices import SLICE, Steps, at_once, in_slices


def busy(steps: int, clock: FakeClock, each: float) -> Steps[int]:
    """Works so many steps, each of so many seconds; returns how many they were."""
    for _ in range(steps):
        clock.advance(each)
        yield
    return steps


def failing() -> Steps[int]:
    yield
    raise ValueError("wrong")


async def test_the_loop_runs_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.core.slices.time", clock)
    turns = 0
    going = True

    async def other() -> None:
        nonlocal turns
        while going:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    assert await in_slices(busy(300, clock, SLICE / 10)) == 300
    going = False
    await task
    assert turns == pytest.approx(30, abs=3), "a turn for each slice, several steps in a slice"


async def test_what_the_work_returns_and_raises() -> None:
    clock = FakeClock()
    assert await in_slices(busy(2, clock, 0.0)) == 2 == at_once(busy(2, clock, 0.0))
    with pytest.raises(ValueError, match="wrong"):
        await in_slices(failing())
    with pytest.raises(ValueError, match="wrong"):
        at_once(failing())
