"""Long work in slices: what it returns and raises, and that the loop runs in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.core.slices import SLICE, Steps, at_once, in_slices


def busy(seconds: float, step: float) -> Steps[int]:
    """Works for so long, in steps; returns how many they were."""
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        until = time.monotonic() + step
        while time.monotonic() < until:
            pass
        steps += 1
        yield
    return steps


def failing() -> Steps[int]:
    yield
    raise ValueError("wrong")


async def test_the_loop_runs_between_slices() -> None:
    turns = 0
    going = True

    async def other() -> None:
        nonlocal turns
        while going:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    steps = await in_slices(busy(30 * SLICE, SLICE / 10))
    going = False
    await task
    assert turns >= 10 and steps > turns, "a turn for each slice, several steps in a slice"


async def test_what_the_work_returns_and_raises() -> None:
    assert await in_slices(busy(0.0, 0.0)) == 0 == at_once(busy(0.0, 0.0))
    with pytest.raises(ValueError, match="wrong"):
        await in_slices(failing())
    with pytest.raises(ValueError, match="wrong"):
        at_once(failing())
