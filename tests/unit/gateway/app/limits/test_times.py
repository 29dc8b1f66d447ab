"""When limits were in force: what of the audit log they count."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.app.limits.times import FILE, SWITCH, LimitTimes
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.specs.limits import LimitMatchSpec, RollingSpec
from gateway.core.tasks import TaskOwner
from gateway.limits.meter import Meter, meters_of

DAY = LimitSpec(name="day", per="tenant", budget=BudgetSpec(amount=1000, window="day"))
HOUR = LimitSpec(name="hour", requests=RateSpec(rate=10, per=3600.0))
NOW = 1_000_000.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(tmp_path: Path, clock: Clock) -> LimitTimes:
    return LimitTimes(tmp_path, clock)


def at(times: LimitTimes, moment: float, limit: LimitSpec = DAY) -> tuple[bool, bool]:
    return times.of(limit, meters_of(limit)[0]).at(moment)


def changed(spec: LimitSpec, **parts: Any) -> LimitSpec:
    return LimitSpec(**{name: getattr(spec, name) for name in spec.__struct_fields__} | parts)


def test_what_is_found_at_the_first_start_was_always_in_force(times: LimitTimes) -> None:
    times.applied([DAY])
    assert at(times, 1.0) == at(times, NOW) == (True, True)


def test_a_limit_that_is_added_has_nothing_of_before(times: LimitTimes, clock: Clock) -> None:
    times.applied([DAY])
    clock.now += 100
    times.applied([DAY, HOUR])
    assert at(times, clock.now - SWITCH - 0.1, HOUR) == (False, True)
    assert at(times, clock.now + SWITCH, HOUR) == (True, True)
    assert at(times, clock.now - 0.1, HOUR) == at(times, clock.now + 0.1, HOUR) == (True, False), "processes follow one after the other"
    assert at(times, clock.now) == (True, True), "the other one did not change"


def test_what_came_while_a_limit_was_away_does_not_count(times: LimitTimes, clock: Clock) -> None:
    times.applied([DAY])
    for there in (False, True):
        clock.now += 100
        times.applied([DAY] if there else [])
    assert [at(times, NOW + seconds)[0] for seconds in (50, 150, 250)] == [True, False, True]
    assert not times.of(DAY, meters_of(DAY)[0]).changed_since(0.0)


def test_times_outlast_the_process(times: LimitTimes, clock: Clock, tmp_path: Path) -> None:
    times.applied([DAY])
    clock.now += 100
    times.applied([DAY, HOUR])
    again = LimitTimes(tmp_path, clock)
    clock.now += 100
    again.applied([DAY, HOUR])
    assert at(again, NOW + 50, HOUR)[0] is False and at(again, NOW + 150, HOUR) == (True, True)
    assert at(again, 1.0) == (True, True)


@pytest.mark.parametrize(
    "spec",
    [
        changed(DAY, per="user"),
        changed(DAY, match=LimitMatchSpec(model="m")),
        changed(DAY, budget=BudgetSpec(amount=1000, window="day", timezone="Europe/Berlin")),
        changed(DAY, budget=BudgetSpec(amount=1000, window=RollingSpec(rolling=86400.0))),
    ],
)
def test_another_way_of_counting_is_known_until_its_time_is_over(times: LimitTimes, clock: Clock, spec: LimitSpec) -> None:
    times.applied([DAY])
    clock.now += 100
    times.applied([spec])
    found = times.of(spec, meters_of(spec)[0])
    assert found.changed_since(NOW) and not found.changed_since(NOW + 100 + SWITCH)


def test_a_budget_of_another_amount_counts_the_same(times: LimitTimes, clock: Clock) -> None:
    times.applied([DAY])
    clock.now += 100
    times.applied([changed(DAY, budget=BudgetSpec(amount=5, window="day"), enforce=False)])
    assert not times.of(DAY, meters_of(DAY)[0]).changed_since(0.0)


def test_a_rate_that_changes_counts_in_another_way(times: LimitTimes, clock: Clock) -> None:
    times.applied([HOUR])
    clock.now += 100
    slower = LimitSpec(name="hour", requests=RateSpec(rate=5, per=3600.0))
    times.applied([slower])
    assert times.of(slower, meters_of(slower)[0]).changed_since(NOW)


def test_limits_that_do_not_last_are_not_noted(times: LimitTimes, clock: Clock, tmp_path: Path) -> None:
    times.applied([LimitSpec(name="fast", requests=RateSpec(rate=10, per=1.0))])
    assert (tmp_path / FILE).read_bytes() == b"{}"
    again = LimitTimes(tmp_path, clock)
    again.applied([DAY])
    assert at(again, NOW - 100) == (False, True), "it was added while the gateway was down"


def test_a_file_that_cannot_be_read_is_said(times: LimitTimes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_bytes(b"\xff{")
    times.applied([DAY])
    assert "limit-times.json cannot be read" in caplog.text and at(times, 1.0) == (True, True)
    assert (tmp_path / FILE).read_bytes().startswith(b"{")


def test_a_directory_that_cannot_be_written_does_not_stop_a_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = LimitTimes(tmp_path / "none")
    times.applied([DAY])
    assert "cannot be written" in caplog.text and at(times, 1.0) == (True, True)


async def test_a_limit_that_has_not_changed_is_not_read_again(times: LimitTimes, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def meters(limit: LimitSpec) -> list[Meter]:
        read.append(limit.name)
        return meters_of(limit)

    monkeypatch.setattr("gateway.app.limits.times.meters_of", meters)
    fast = LimitSpec(name="fast", requests=RateSpec(rate=10, per=1.0))
    for limits in ((DAY, HOUR, fast), (fast, DAY, changed(HOUR, enforce=False))):
        await times.prepare(limits)
        times.applied(limits)
    assert read == ["day", "hour", "hour"]


async def test_thousands_of_changes_are_written_soon_after_and_all_of_them(tmp_path: Path, clock: Clock) -> None:
    owner = TaskOwner("test")
    times = LimitTimes(tmp_path, clock, tasks=owner)
    times.applied([DAY])
    many = [changed(DAY, name=f"day-{number}") for number in range(5000)]
    for limits in (many, [DAY, *many[:4000]]):
        clock.now += 100
        await times.prepare(limits)
        times.applied(limits)
        assert at(times, clock.now - SWITCH - 1, limits[1])[0] is (limits is not many)
    await owner.finish(60.0)
    again = LimitTimes(tmp_path, clock)
    again.applied([DAY, *many[:4000]])
    for limit in (DAY, many[0], many[3999], many[4999]):
        assert [at(again, NOW + second, limit) for second in (50, 150, 250)] == [
            at(times, NOW + second, limit) for second in (50, 150, 250)
        ]
    assert [at(again, NOW + second)[0] for second in (50, 150, 250)] == [True, False, True]


async def test_a_change_is_written_where_the_process_ends_at_once(tmp_path: Path, clock: Clock) -> None:
    owner = TaskOwner("test")
    times = LimitTimes(tmp_path, clock, tasks=owner)
    times.applied([DAY])
    clock.now += 100
    await times.prepare([DAY, HOUR])
    times.applied([DAY, HOUR])
    await asyncio.sleep(0)  # the task has begun
    await owner.aclose()
    again = LimitTimes(tmp_path, clock)
    again.applied([DAY, HOUR])
    assert at(again, NOW + 50, HOUR) == (False, True)


async def test_what_was_prepared_for_others_is_not_taken(tmp_path: Path, clock: Clock) -> None:
    """What differs is found against what was in force then."""
    times = LimitTimes(tmp_path, clock)
    times.applied([DAY])
    clock.now += 100
    late = [DAY, HOUR]
    await times.prepare(late)
    times.applied([])
    clock.now += 100
    times.applied(late)
    assert [at(times, NOW + second)[0] for second in (50, 150, 250)] == [True, False, True]
