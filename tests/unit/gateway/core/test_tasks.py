"""Background tasks have an owner that ends them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.core.tasks import TaskOwner
from gateway.core.waiting import Driver


async def forever() -> None:
    await asyncio.Event().wait()


async def test_tasks_are_owned_until_they_end() -> None:
    owner = TaskOwner("test")

    async def give() -> int:
        return 5

    task = owner.spawn(give(), name="give")
    assert len(owner) == 1
    assert await task == 5
    await asyncio.sleep(0)
    assert len(owner) == 0
    assert task.get_name() == "test:give"


async def test_close_cancels_what_is_left() -> None:
    owner = TaskOwner("test")
    tasks = [owner.spawn(forever(), name=str(i)) for i in range(3)]
    await owner.aclose()
    assert all(task.cancelled() for task in tasks)
    await owner.aclose()


async def test_a_closed_owner_starts_nothing() -> None:
    owner = TaskOwner("test")
    await owner.aclose()
    with pytest.raises(RuntimeError, match="test is closed"):
        owner.spawn(forever(), name="late")


async def test_a_task_that_does_not_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    owner = TaskOwner("test")
    release = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()

    task = owner.spawn(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    await owner.aclose(timeout=0.0)
    assert "test:stubborn did not end" in caplog.text
    release.set()
    await task


async def test_a_failure_is_logged_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gatehouse.tasks")
    owner = TaskOwner("test")

    async def fail() -> None:
        raise ZeroDivisionError("oops")

    task = owner.spawn(fail(), name="fail")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "test:fail failed: ZeroDivisionError" in caplog.text


async def test_code_without_a_task_can_wait_for_what_needs_one() -> None:
    owner = TaskOwner("test")
    got: list[str] = []

    async def needs_a_task() -> str:
        task = asyncio.current_task()
        assert task is not None
        async with asyncio.timeout(60):
            return task.get_name()

    async def run() -> None:
        got.append(await owner.wait(needs_a_task(), name="step"))

    ends: list[BaseException | None] = []
    Driver(run(), ends.append).start()
    while not ends:
        await asyncio.sleep(0)
    assert ends == [None]
    assert got == ["test:step"]


async def test_a_round_that_fails_does_not_end_the_rounds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    slept: list[float] = []
    turn = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await turn(0)

    monkeypatch.setattr("gateway.core.tasks.asyncio.sleep", sleep)
    owner, rounds = TaskOwner("test"), 0

    async def action() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise ZeroDivisionError("oops")

    task = owner.every(7.0, action, name="rounds")
    while rounds < 4:
        await turn(0)
    assert not task.done()
    assert set(slept) == {7.0}
    assert caplog.text.count("test: rounds failed") == 1
    await owner.aclose()
    assert task.cancelled()
