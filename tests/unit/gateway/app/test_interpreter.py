"""What is left to the garbage collector, and when it looks."""

from __future__ import annotations

import gc
import weakref

import pytest

from gateway.app import interpreter
from gateway.app.gateway import Gateway
from gateway.core.collecting import uncollected
from gateway.server.allocator import TOP, Allocator
from tests.waiting import reached


async def test_what_libraries_leave_in_cycles_is_collected_soon(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    class Circle:
        pass

    before = gc.get_threshold()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(interpreter, "COLLECT_SECONDS", 0.01)
    try:
        await gateway.start_engines()
        circle = Circle()
        circle.itself, left = circle, weakref.ref(circle)  # type: ignore[attr-defined]
        del circle
        await reached(lambda: left() is None)
        assert gc.get_threshold() == interpreter.GC_THRESHOLDS
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("older", [0, 1])
async def test_cycles_that_were_in_use_during_a_round_are_collected_later(older: int) -> None:
    """The interpreter itself looks at older objects only when many young ones pile up, which the rounds prevent."""

    class Circle:
        pass

    gc.collect()
    circle = Circle()
    circle.itself, left = circle, weakref.ref(circle)  # type: ignore[attr-defined]
    for generation in range(older + 1):
        gc.collect(generation)
    del circle
    collector = interpreter.Collector(Allocator(None))
    gc.disable()  # nothing else is to collect it
    try:
        for _ in range(older + 1):
            gc.enable()
            await collector.collect()
            gc.disable()
        assert left() is not None
        collector.rounds = interpreter.OLDER_EVERY - 1
        gc.enable()
        await collector.collect()
        assert left() is None
    finally:
        gc.enable()


async def test_the_youngest_objects_are_left_alone_while_somebody_makes_many() -> None:
    collected: list[str] = []

    def heard(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    gc.callbacks.append(heard)
    try:
        collector = interpreter.Collector(Allocator(None))
        with uncollected():
            await collector.collect()
            assert collected == []
        await collector.collect()
        assert collected
    finally:
        gc.callbacks.remove(heard)


async def test_free_memory_is_given_back_once_a_minute() -> None:
    kept: list[int] = []

    def trim(top: int) -> int:
        kept.append(top)
        return 1

    collector = interpreter.Collector(Allocator(trim))
    for _ in range(2 * interpreter.OLDER_EVERY):
        await collector.collect()
    assert kept == [TOP, TOP] and interpreter.OLDER_EVERY * interpreter.COLLECT_SECONDS == 60.0


@pytest.mark.parametrize(("takes", "minutes"), [(0.004, 1), (0.1, 9), (60.0, 60)])
async def test_collections_of_all_objects_are_as_rare_as_they_are_slow(takes: float, minutes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take two ten-thousandths of the time, and there is one an hour at least."""
    now, full = 0.0, []

    def collect(generation: int = 2) -> int:
        nonlocal now
        if generation == 2:
            full.append(now)
            now += takes
        return 0

    collector = interpreter.Collector(Allocator(None), clock=lambda: now)
    monkeypatch.setattr(gc, "collect", collect)
    for minute in range(121):
        now = minute * 60.0
        collector.rounds = interpreter.OLDER_EVERY - 1
        await collector.collect()
    assert full == [minute * 60.0 for minute in range(0, 121, minutes)]
