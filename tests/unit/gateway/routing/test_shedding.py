"""Load shedding: sustained pressure only, the least important first, and back when it is calm."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gateway.routing.shedding import PressureMonitor, Shedding, cgroup_limit, resident_bytes


def levels(*observations: tuple[float, float]) -> list[int]:
    shedding = Shedding()
    return [shedding.observe(lag, memory) for lag, memory in observations]


@pytest.mark.parametrize(
    ("lag", "memory", "level"), [(0.19, 0.8, 0), (0.2, 0.0, 1), (0.6, 0.0, 2), (2.0, 0.0, 3), (0.0, 0.9, 1), (0.3, 0.98, 3)]
)
def test_levels(lag: float, memory: float, level: int):
    assert levels(*[(lag, memory)] * 3)[-1] == level


def test_one_long_pause_sheds_nobody():
    assert levels((0, 0), (5.0, 0), (0, 0), (0, 0), (5.0, 0)) == [0] * 5


def test_it_falls_one_level_after_a_second_of_calm():
    found = levels(*[(2.0, 0.0)] * 3, *[(0.0, 0.0)] * 30)
    assert found[2] == 3
    assert found[11:14] == [3, 2, 2]
    assert found[-1] == 0


def test_pressure_that_stays_keeps_its_level():
    assert levels(*[(0.3, 0.0)] * 40)[-1] == 1


def test_a_slow_start_sheds_nobody_but_a_lack_of_memory_does():
    shedding = Shedding(warm_up=10)
    assert [shedding.observe(2.0, 0.0) for _ in range(12)] == [0] * 12
    assert shedding.observe(2.0, 0.0) == 3
    shedding = Shedding(warm_up=10)
    assert [shedding.observe(0.0, 0.9) for _ in range(3)][-1] == 1


async def test_the_monitor_sees_a_busy_loop():
    seen: asyncio.Queue[int] = asyncio.Queue()
    monitor = PressureMonitor(seen.put_nowait, memory_limit=1 << 50, shedding=Shedding(lags=(0.02, 9.0, 9.0)))
    monitor.start()

    async def hog() -> None:
        while True:
            time.sleep(0.15)
            await asyncio.sleep(0)

    task = asyncio.create_task(hog())
    async with asyncio.timeout(60):
        assert await seen.get() >= 1
    task.cancel()
    monitor.close()


async def test_the_monitor_sees_memory():
    seen: asyncio.Queue[int] = asyncio.Queue()
    monitor = PressureMonitor(seen.put_nowait, memory_limit=resident_bytes() // 2)
    monitor.start()
    async with asyncio.timeout(60):
        assert await seen.get() == 3
    monitor.close()


def test_the_limit_of_the_control_group(tmp_path: Path):
    file = tmp_path / "memory.max"
    assert cgroup_limit(str(file)) is None
    file.write_text("max\n")
    assert cgroup_limit(str(file)) is None
    file.write_text("1048576\n")
    assert cgroup_limit(str(file)) == 1048576
