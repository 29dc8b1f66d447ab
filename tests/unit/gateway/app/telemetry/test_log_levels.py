"""Levels of the log for a while."""

from __future__ import annotations

import logging
from typing import Any

from gateway.app.telemetry.log_levels import LogLevelBook
from gateway.core.clock import Clock
from gateway.core.log_levels import AS_CONFIGURED, LONGEST, LogLevels
from gateway.core.tasks import TaskOwner
from gateway.telemetry.logging import TRACE, put_levels


class Now(Clock):
    epoch = 0.0

    def __init__(self) -> None:
        self.time = 1000.0

    def wall(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


class World:
    def __init__(self) -> None:
        self.clock = Now()
        self.put: list[LogLevels] = []
        self.told: list[LogLevels] = []
        self.events: list[tuple[Any, ...]] = []
        self.book = LogLevelBook(lambda: "info", self.put.append, lambda *event: self.events.append(event), TaskOwner("test"), self.clock)
        self.book.changed.append(self.told.append)


async def test_levels_count_until_their_time_is_over() -> None:
    world = World()
    made = world.book.change("debug", {"gatehouse.engines": "trace"}, 60.0, "ops/anna")
    assert world.put == world.told == [made] and (made.until, made.actor) == (1060.0, "ops/anna")
    world.clock.time = 1059.9
    await world.book.look()
    assert world.book.levels is made and not world.events
    world.clock.time = 1060.0
    await world.book.look()
    await world.book.look()
    assert world.told[1:] == [AS_CONFIGURED]
    [(event, target, detail)] = world.events
    assert (event, target, detail["before"]["loggers"]) == ("log_levels_restored", "gatehouse", {"gatehouse.engines": "trace"})


async def test_a_later_word_replaces_an_earlier_one_and_its_end() -> None:
    world = World()
    world.book.change("debug", {}, 60.0, "a")
    later = world.book.change("error", {}, 600.0, "b")
    world.clock.time = 1100.0
    await world.book.look()
    assert world.book.levels is later
    world.book.restore()
    world.clock.time = 9999.0
    await world.book.look()
    assert world.told[-1] is AS_CONFIGURED and not world.events


def test_a_dry_run_changes_nothing_and_no_time_is_longer_than_the_longest() -> None:
    world = World()
    assert world.book.change("debug", {}, 1e9, "a", dry_run=True).until == 1000.0 + LONGEST
    assert world.book.levels is AS_CONFIGURED and not world.put


def test_loggers_follow_unless_they_have_a_level_of_their_own() -> None:
    ours, one, other = (logging.getLogger(name) for name in ("gatehouse", "gatehouse.one", "gatehouse.one.other"))
    before = ours.level
    try:
        put_levels("warning", {"gatehouse.one": "trace"})
        assert (ours.isEnabledFor(logging.INFO), one.isEnabledFor(TRACE), other.isEnabledFor(TRACE)) == (False, True, True)
        put_levels("info", {"gatehouse.one.other": "error"})
        assert (one.getEffectiveLevel(), other.getEffectiveLevel()) == (logging.INFO, logging.ERROR)
        put_levels("trace", {})
        assert logging.getLevelName(other.getEffectiveLevel()) == "TRACE"
    finally:
        put_levels(logging.getLevelName(before), {})
