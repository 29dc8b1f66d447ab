"""What exchanges share: identifiers, coarse time, one sweep for all deadlines, the drain."""

from __future__ import annotations

import asyncio
import time
import uuid
from email.utils import parsedate_to_datetime

import pytest

from gateway.core.errors import GatehouseError
from gateway.pipeline.plane import SAMPLE_EVERY, SWEEP_SECONDS, DataPlane
from gateway.telemetry.metrics import Metrics


class Waiter:
    def __init__(self, wake_at: float) -> None:
        self.wake_at = wake_at
        self.woken: list[float] = []

    def expired(self, now: float) -> None:
        self.woken.append(now)

    def cancel(self, error: GatehouseError) -> None:
        raise AssertionError("not by the plane")


def test_identifiers_are_new_and_of_this_process() -> None:
    one, two = DataPlane(Metrics()), DataPlane(Metrics())
    found = [plane.next_id() for plane in (one, two) for _ in range(100)]
    assert len(set(found)) == 200
    assert all(uuid.UUID(name.decode()).version == 4 and len(name) == 36 for name in found)


def test_identifiers_count_on() -> None:
    plane = DataPlane(Metrics())
    found = [plane.next_id() for _ in range(3 * 4096 + 2)]
    assert found == [b"%b%012x" % (found[0][:24], number) for number in range(1, 3 * 4096 + 3)]


def test_one_exchange_in_so_many_is_sampled_also_when_clients_name_them_all() -> None:
    plane = DataPlane(Metrics())
    sampled = 0
    for _ in range(SAMPLE_EVERY * 3):
        sampled += plane.timed()
    assert sampled == 3


def test_there_is_no_snapshot_before_the_first() -> None:
    with pytest.raises(RuntimeError, match="no snapshot"):
        DataPlane(Metrics()).current()


def test_a_sweep_wakes_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(Metrics())
    plane.now = 49.95
    monkeypatch.setattr("gateway.pipeline.plane.time.monotonic", lambda: 50.0)
    due, exact, later = Waiter(49.0), Waiter(50.0), Waiter(50.1)
    plane.exchanges |= {due, exact, later}
    heard: list[float] = []
    plane.listeners.append(lambda: heard.append(plane.now))
    plane.sweep()
    assert (due.woken, exact.woken, later.woken) == ([50.0], [50.0], [])
    assert heard == [50.0]
    assert abs(parsedate_to_datetime(plane.date.decode()).timestamp() - time.time()) < 60


def test_after_a_pause_of_the_process_deadlines_rest_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("gateway.pipeline.plane.time.monotonic", lambda: now)
    plane = DataPlane(Metrics())
    waiter = Waiter(1.0)
    plane.exchanges.add(waiter)
    found = []
    for after in (0.9, 3.0 + SWEEP_SECONDS, *[SWEEP_SECONDS] * 61):
        now += after
        plane.sweep()
        found.append((plane.resting, bool(waiter.woken), plane.paused > 53.0))
        waiter.woken.clear()
        assert plane.now == now
    assert found[0] == (False, True, False) and found[-1] == (False, True, True), "no pause, and long enough after one"
    assert found[1:60] == [(True, False, True)] * 59


def test_an_exchange_may_end_while_it_is_woken() -> None:
    plane = DataPlane(Metrics())

    class Ending(Waiter):
        def expired(self, now: float) -> None:
            super().expired(now)
            plane.settled(self)

    waiters = [Ending(0.0) for _ in range(10)]
    plane.exchanges |= set(waiters)
    plane.sweep()
    assert all(len(w.woken) == 1 for w in waiters)
    assert plane.exchanges == set()
    assert plane.metrics.in_flight() == 0


async def test_a_drain_of_nothing_is_done() -> None:
    assert await DataPlane(Metrics()).drained(0.0)


async def test_a_drain_waits_for_the_last() -> None:
    plane = DataPlane(Metrics())
    first, last = Waiter(0.0), Waiter(0.0)
    plane.exchanges |= {first, last}
    task = asyncio.ensure_future(plane.drained(60.0))
    await asyncio.sleep(0)
    plane.settled(first)
    await asyncio.sleep(0)
    assert not task.done()
    plane.settled(last)
    assert await task is True


async def test_a_drain_has_an_end() -> None:
    plane = DataPlane(Metrics())
    waiter = Waiter(0.0)
    plane.exchanges.add(waiter)
    assert await plane.drained(0.0) is False
    plane.settled(waiter)
    assert await plane.drained(0.0) is True
