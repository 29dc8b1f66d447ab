"""What exchanges share: identifiers, coarse time, one sweep for all deadlines, the drain."""

from __future__ import annotations

import asyncio
import time
import uuid
from email.utils import parsedate_to_datetime

import pytest

from gateway.core.errors import GatehouseError
from gateway.pipeline.plane import LONGEST_REST_SECONDS, SAMPLE_EVERY, SWEEP_SECONDS, DataPlane
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


def test_after_a_pause_of_the_process_deadlines_rest_as_long_as_it_was_but_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(Metrics())
    plane.now = 50.0

    def swept(now: float) -> bool:
        """Whether a sweep at this time wakes what was long due."""
        monkeypatch.setattr("gateway.pipeline.plane.time.monotonic", lambda: now)
        waiter = Waiter(1.0)
        plane.exchanges.add(waiter)
        plane.sweep()
        plane.exchanges.discard(waiter)
        assert plane.resting is not bool(waiter.woken) and plane.now == now
        return bool(waiter.woken)

    def in_time(now: float) -> bool:
        """The same of one that follows the last one at once."""
        plane.now = now - SWEEP_SECONDS
        return swept(now)

    assert swept(50.9), "late, and no pause"
    assert not swept(54.0) and not in_time(57.0) and in_time(57.1)
    assert swept(60.0), "a process that is late all the time enforces its deadlines"
    assert not swept(600.0) and not in_time(614.9) and in_time(615.1), "however long the pause was"
    assert not swept(632.0) and not in_time(640.0) and not swept(652.0), "a pause during a rest"
    assert not in_time(658.5) and in_time(659.0), "what was left of it, and as long as the second"


def test_pauses_one_after_the_other_add_to_a_rest_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(Metrics())
    plane.now = 50.0
    resting = []
    for now in range(52, 152, 2):
        monkeypatch.setattr("gateway.pipeline.plane.time.monotonic", lambda now=now: float(now))
        plane.sweep()
        resting.append(plane.resting)
    assert resting[0] and not all(resting)
    longest = max(len(run) for run in "".join(str(int(one)) for one in resting).split("0"))
    assert longest * 2 <= LONGEST_REST_SECONDS + 2


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
