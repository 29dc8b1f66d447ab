"""The thread and the bells, with eventfds and with the pipes of systems that have none."""

import asyncio
import os
import threading
from typing import Any

import pytest

from gateway.audit.job_thread import Bell, JobThread


@pytest.fixture(params=["eventfd", "pipe"])
def system(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return str(request.param)


async def test_jobs_are_done_in_order_on_another_thread(system: str, make: Any) -> None:
    seen: list[tuple[int, str]] = []
    results: list[Exception | None] = []
    thread: JobThread[int] = JobThread(
        asyncio.get_running_loop(), lambda job: seen.append((job, threading.current_thread().name)), results.append
    )
    for job in range(100):
        thread.give(job)
    await make.until(lambda: len(results) == 100)
    assert seen == [(job, "audit-writer") for job in range(100)] and set(results) == {None}
    thread.end(wait=True)


async def test_what_a_job_raises_comes_back_and_the_thread_lives_on(system: str, make: Any) -> None:
    results: list[Exception | None] = []
    thread: JobThread[int] = JobThread(asyncio.get_running_loop(), lambda job: print(1 // job), results.append)
    for job in (0, 1):
        thread.give(job)
    await make.until(lambda: len(results) == 2)
    assert isinstance(results[0], ZeroDivisionError) and results[1] is None
    thread.end(wait=True)


async def test_the_end_leaves_no_descriptor_and_no_thread(system: str, make: Any) -> None:
    """Its own descriptors are looked at: those of other tests are closed whenever the collector finds them."""
    for _ in range(5):
        thread: JobThread[int] = JobThread(asyncio.get_running_loop(), print, lambda error: None)
        used = {number for bell in (thread._to_thread, thread._to_loop) for number in (bell.descriptor, bell._write)}
        assert len(used) == (2 if system == "eventfd" else 4)
        thread.end(wait=True)
        assert not thread._runner.is_alive()
        for number in used:
            with pytest.raises(OSError):
                os.fstat(number)


def test_many_rings_are_heard_once_and_none_twice(system: str) -> None:
    bell = Bell(blocking=False)
    for _ in range(3):
        bell.ring()
    bell.wait()
    bell.wait()
    bell.ring()
    assert os.read(bell.descriptor, 100)
    bell.close()
