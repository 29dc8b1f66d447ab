"""The batch queue decides without clock or threads; the batcher carries it out on one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sidecar import batcher as module
from engines.sidecar.batcher import PATIENCE, REMEMBERED_KEYS, STEP, Batcher, BatchJob, BatchQueue, Full, Key, RunFailed, Unit
from engines.sidecar.shell import ApiError
from gateway.core.clock import FakeClock, SystemClock
from tests.waiting import reached

DELAY = 0.002
SHORT, LONG, TIMED = Key("short", 4), Key("long", 2), Key("timed", 8, 3, 5)


def queue(limit: int = 100) -> BatchQueue:
    return BatchQueue(DELAY, limit)


def job(*keys: Key, name: str = "", priority: int = 1, rows: int = 1) -> BatchJob:
    units = [Unit(key, f"{name}{index}", rows) for index, key in enumerate(keys)]
    return BatchJob(units, lambda unit, result, error: None, priority=priority)


def names(units: Sequence[Unit]) -> list[str]:
    return [unit.payload for unit in units]


# -- when a batch runs -----------------------------------------------------------------------------------------------------


def test_a_lone_request_does_not_wait() -> None:
    found = queue()
    found.add(job(SHORT, name="a"), 0.0)
    assert names(found.take(0.0)[0]) == ["a0"]
    assert found.take(0.0) == ([], None)


def test_as_many_as_last_time_are_waited_for_until_the_delay() -> None:
    found = queue()
    for name in "abc":
        found.add(job(SHORT, name=name), 0.0)
    assert len(found.take(0.0)[0]) == 3
    found.add(job(SHORT, name="d"), 1.0)
    found.add(job(SHORT, name="e"), 1.0005)
    units, wait = found.take(1.0005)
    assert units == []
    assert wait == pytest.approx(DELAY - 0.0005)
    assert names(found.take(1.0 + DELAY)[0]) == ["d0", "e0"]
    found.add(job(SHORT, name="f"), 2.0)
    found.add(job(SHORT, name="g"), 2.0)
    assert names(found.take(2.0)[0]) == ["f0", "g0"], "two were answered last time, and two are here"


def test_a_full_batch_runs_at_once_and_leaves_the_rest() -> None:
    found = queue()
    for index in range(6):
        found.add(job(SHORT, name=str(index)), 0.0)
    assert names(found.take(0.0)[0]) == ["00", "10", "20", "30"]
    assert found.waiting == 2


def test_units_of_other_keys_do_not_mix() -> None:
    found = queue()
    found.add(job(LONG, name="l"), 0.0)
    found.add(job(SHORT, name="s"), 0.0)
    assert names(found.take(0.0)[0]) == ["l0"]
    assert names(found.take(0.0)[0]) == ["s0"]


def test_rows_fill_a_batch_and_a_larger_unit_runs_alone() -> None:
    found = queue()
    for name, rows in (("a", 3), ("b", 2), ("c", 9)):
        found.add(job(SHORT, name=name, rows=rows), 0.0)
    assert [names(found.take(0.0)[0]) for _ in range(3)] == [["a0"], ["b0"], ["c0"]]


def test_better_priority_runs_first() -> None:
    found = queue()
    found.add(job(LONG, name="batch", priority=2), 0.0)
    found.add(job(SHORT, name="standard", priority=1), 0.0)
    found.add(job(LONG, name="interactive", priority=0), 0.0)
    assert names(found.take(0.0)[0]) == ["interactive0", "batch0"]
    assert names(found.take(0.0)[0]) == ["standard0"]


# -- fairness, order, bounds -----------------------------------------------------------------------------------------------


def test_a_large_request_lets_others_in_between_its_windows() -> None:
    found = queue()
    found.add(job(*[SHORT] * 12, name="big"), 0.0)
    found.add(job(SHORT, name="small"), 0.0)
    assert names(found.take(0.0)[0]) == ["big0", "big1", "big2", "big3"]
    assert names(found.take(0.0)[0]) == ["small0", "big4", "big5", "big6"]


def test_a_window_is_counted_in_rows() -> None:
    found = queue()
    found.add(job(*[SHORT] * 3, name="big", rows=4), 0.0)
    found.add(job(SHORT, name="small"), 0.0)
    assert [names(found.take(0.0)[0]) for _ in range(4)] == [["big0"], ["small0"], ["big1"], ["big2"]]


def test_what_comes_while_a_large_request_runs_is_ahead_of_its_rest_for_a_while() -> None:
    """And two large ones take turns, wherever their units' keys differ."""
    found = queue()
    found.add(job(*[SHORT] * 12, name="big"), 0.0)
    assert names(found.take(0.0)[0]) == ["big0", "big1", "big2", "big3"]
    found.add(job(*[LONG] * 4, name="new"), PATIENCE / 2)
    assert names(found.take(PATIENCE / 2)[0]) == ["new0", "new1"]
    found.add(job(LONG, name="late"), PATIENCE + DELAY)
    assert names(found.take(PATIENCE + DELAY)[0]) == ["big4", "big5", "big6", "big7"], "it has waited"
    assert names(found.take(PATIENCE + DELAY)[0]) == ["late0", "new2"]
    found.add(job(LONG, name="later"), 2 * PATIENCE)
    assert names(found.take(2 * PATIENCE)[0]) == ["new3", "later0"]
    assert names(found.take(2 * PATIENCE)[0]) == ["big8", "big9", "big10", "big11"]


def test_a_batch_has_what_takes_a_step_but_no_less_than_keeps_the_hardware_busy() -> None:
    found, key = queue(), Key("text", 32, 4)
    found.add(job(*[key] * 100), 0.0)
    assert len(found.take(0.0)[0]) == 4, "nothing is known"
    found.took(key, 4, 4 * STEP / 10)
    assert found.room(key) == 10
    assert len(found.take(0.0)[0]) == 4, "the window that was queued before"
    assert len(found.take(0.0)[0]) == 10
    for _ in range(20):
        found.took(key, 10, 10 * STEP)
    assert found.room(key) == 4, "one row takes a step, and still"
    for _ in range(60):
        found.took(key, 4, STEP / 1000)
    assert found.room(key) == 32, "never more than fit"
    assert found.room(SHORT) == 4, "unless it says so, a batch is not bounded by time"


def test_units_of_a_batch_are_bounded_beside_their_rows() -> None:
    found, key = queue(), Key("tokens", 100, 50, 3)
    found.add(job(*[key] * 4, name="a", rows=2), 0.0)
    found.add(job(*[key] * 2, name="b", rows=60), 0.0)
    assert [names(found.take(0.0)[0]) for _ in range(4)] == [["a0", "a1", "a2"], ["b0"], ["a3"], ["b1"]]


def test_the_costs_of_many_keys_are_forgotten() -> None:
    found = queue()
    for number in range(2 * REMEMBERED_KEYS):
        found.took(Key(number, 8, 1), 1, 1.0)
    assert found.room(Key(0, 8, 1)) == found.room(Key(2 * REMEMBERED_KEYS - 1, 8, 1)) == 1
    found.took(Key(0, 8, 1), 1, STEP / 8)
    assert found.room(Key(0, 8, 1)) == 8, "what was known of it is gone"


def test_requests_of_different_lengths_wait_for_none_but_their_own_kind() -> None:
    """One caller's requests are independent: short ones and long ones fill batches of their own, whatever came first."""
    found = queue()
    for index in range(8):
        found.add(job((LONG, SHORT)[index % 2], name=str(index)), 0.0)
    assert [names(found.take(1.0)[0]) for _ in range(3)] == [["00", "20"], ["10", "30", "50", "70"], ["40", "60"]]


def test_the_queue_is_bounded_in_requests() -> None:
    found = queue(limit=2)
    found.add(job(*[SHORT] * 50), 0.0)
    found.add(job(SHORT), 0.0)
    with pytest.raises(Full):
        found.add(job(SHORT), 0.0)
    assert found.jobs == 2
    assert found.waiting == 5, "a window of the first, and the second"


def test_a_job_that_is_removed_runs_no_more() -> None:
    found = queue()
    first = job(LONG, SHORT, name="first")
    found.add(first, 0.0)
    found.add(job(SHORT, name="second"), 0.0)
    found.remove(first)
    found.remove(first)
    assert names(found.take(0.0)[0]) == ["second0"]
    assert (found.jobs, found.waiting) == (0, 0)
    assert found.clear() == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from([SHORT, LONG, TIMED]), min_size=1, max_size=9), st.integers(0, 2)),
        st.tuples(st.just("take"), st.floats(0, 0.005)),
        st.tuples(st.just("remove"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(steps)
def test_any_history_runs_every_unit_once(history: list[tuple[Any, ...]]) -> None:
    found, clock = queue(limit=8), FakeClock()
    added: list[BatchJob] = []
    removed: set[int] = set()
    ran: list[Unit] = []

    def take() -> bool:
        units, wait = found.take(clock.monotonic())
        assert not units or wait is None
        if units:
            assert len({unit.key for unit in units}) == 1
            key, rows = units[0].key, sum(unit.rows for unit in units)
            assert rows <= found.room(key) <= key.capacity and len(units) <= key.units
            found.took(key, rows, clock.monotonic() % 0.2)
            ran.extend(units)
        elif wait is not None:
            assert 0 < wait <= DELAY
            clock.advance(wait)
        return bool(units) or wait is not None

    for step in history:
        if step[0] == "add":
            made = job(*step[1], priority=step[2])
            try:
                found.add(made, clock.monotonic())
                added.append(made)
            except Full:
                assert found.jobs == 8
        elif step[0] == "take":
            clock.advance(step[1])
            take()
        elif added:
            gone = added[step[1] % len(added)]
            found.remove(gone)
            removed.add(id(gone))
    while take():
        pass
    assert (found.jobs, found.waiting) == (0, 0)
    assert len(set(map(id, ran))) == len(ran)
    assert {id(unit) for one in added if id(one) not in removed for unit in one.units} <= set(map(id, ran))


# -- the batcher -----------------------------------------------------------------------------------------------------------


class Model:
    """Doubles numbers; fails a batch that has a negative one; can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def run(self, batch: Sequence[int]) -> list[int]:
        assert self.gate.wait(90)
        self.batches.append(list(batch))
        self.threads.add(threading.current_thread().name)
        if min(batch) < 0:
            raise ValueError(f"negative: {min(batch)}")
        return [2 * number for number in batch]


@pytest.fixture
async def model() -> Model:
    return Model()


@pytest.fixture
async def batcher(model: Model) -> AsyncIterator[Batcher]:
    made = Batcher(BatchQueue(DELAY, 8), model.run, SystemClock())
    made.start()
    yield made
    model.gate.set()
    await made.aclose()


def units(*numbers: int) -> list[Unit]:
    return [Unit(SHORT, number) for number in numbers]


async def test_requests_of_one_turn_share_a_batch(batcher: Batcher, model: Model) -> None:
    results = await asyncio.gather(*[batcher.submit(units(number)) for number in range(4)])
    assert results == [[0], [2], [4], [6]]
    assert model.batches == [[0, 1, 2, 3]]
    assert model.threads == {"batches-0"}


async def test_several_instances_run_a_batch_each_and_no_more(model: Model) -> None:
    made = Batcher(BatchQueue(DELAY, 8), model.run, SystemClock(), instances=2)
    made.start()
    model.gate.clear()
    asked = []
    for number in (1, 2, 3, 4):
        asked.append(asyncio.create_task(made.submit(units(number))))
        await reached(lambda: made.running + made.queue.waiting == len(asked))
    assert (made.running, made.queue.waiting) == (2, 2)
    model.gate.set()
    assert await asyncio.gather(*asked) == [[2], [4], [6], [8]]
    assert sorted(map(len, model.batches)) == [1, 1, 2] and made.running == 0
    assert model.threads <= {"batches-0", "batches-1"}
    await made.aclose()


async def test_a_bad_item_fails_alone(batcher: Batcher, model: Model) -> None:
    results = await asyncio.gather(*[batcher.submit(units(number)) for number in (1, -2, 3)], return_exceptions=True)
    assert results[0] == [2]
    assert results[2] == [6]
    assert isinstance(results[1], RunFailed)
    assert str(results[1].cause) == "negative: -2"
    assert model.batches == [[1, -2, 3], [1], [-2], [3]]


async def test_a_request_larger_than_a_batch_is_answered_in_order(batcher: Batcher, model: Model) -> None:
    assert await batcher.submit(units(*range(10))) == [2 * number for number in range(10)]
    assert [len(batch) for batch in model.batches] == [4, 4, 2]


async def test_a_request_fails_with_its_first_error_and_leaves_nothing_behind(batcher: Batcher, model: Model) -> None:
    with pytest.raises(RunFailed):
        await batcher.submit(units(1, -1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
    assert (batcher.queue.jobs, batcher.queue.waiting) == (0, 0)
    assert await batcher.submit(units(4)) == [8]


async def test_a_full_queue_refuses(batcher: Batcher, model: Model) -> None:
    model.gate.clear()
    tasks = [asyncio.ensure_future(batcher.submit(units(0)))]
    await reached(lambda: batcher.running == 1)
    tasks += [asyncio.ensure_future(batcher.submit(units(number))) for number in range(8)]
    await reached(lambda: batcher.queue.jobs == 8)
    with pytest.raises(ApiError) as caught:
        await batcher.submit(units(9))
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    model.gate.set()
    assert len(await asyncio.gather(*tasks)) == 9


async def test_a_deadline_that_passed_in_the_queue_is_not_computed(batcher: Batcher, model: Model) -> None:
    model.gate.clear()
    first = asyncio.ensure_future(batcher.submit(units(1)))
    await reached(lambda: batcher.running == 1)
    late = asyncio.ensure_future(batcher.submit(units(2), deadline=SystemClock.monotonic()))
    good = asyncio.ensure_future(batcher.submit(units(3), deadline=SystemClock.monotonic() + 60))
    await reached(lambda: batcher.queue.jobs == 2)
    model.gate.set()
    with pytest.raises(ApiError) as caught:
        await late
    assert (caught.value.status, caught.value.code) == (504, "engine_timeout")
    assert (await first, await good) == ([2], [6])
    assert [2] not in model.batches


async def test_a_cancelled_request_is_forgotten(batcher: Batcher, model: Model) -> None:
    model.gate.clear()
    first = asyncio.ensure_future(batcher.submit(units(1)))
    await reached(lambda: batcher.running == 1)
    gone = asyncio.ensure_future(batcher.submit(units(2)))
    behind = asyncio.ensure_future(batcher.submit(units(3)))
    await reached(lambda: batcher.queue.jobs == 2)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    model.gate.set()
    assert (await first, await behind) == ([2], [6])
    assert model.batches == [[1], [3]]


async def test_cancelling_what_is_being_computed_harms_nobody(batcher: Batcher, model: Model) -> None:
    model.gate.clear()
    gone = asyncio.ensure_future(batcher.submit(units(1)))
    await reached(lambda: batcher.running == 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    model.gate.set()
    assert await batcher.submit(units(5)) == [10]


class Endless:
    """Runs batches with a 0 in them until they are halted; beside it, doubles numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._own = threading.local()

    @contextmanager
    def halting(self) -> Iterator[Callable[[], None]]:
        halted = self._own.halted = threading.Event()
        yield halted.set

    def run(self, batch: Sequence[int]) -> list[int]:
        self.batches.append(list(batch))
        if 0 in batch:
            assert self._own.halted.wait(150)
            raise ValueError("halted")
        return [2 * number for number in batch]


@pytest.fixture
async def endless() -> AsyncIterator[tuple[Batcher, Endless]]:
    model = Endless()
    made = Batcher(BatchQueue(DELAY, 8), model.run, SystemClock(), halting=model.halting)
    made.start()
    yield made, model
    await made.aclose()


async def test_a_run_that_nobody_waits_for_is_halted(endless: tuple[Batcher, Endless]) -> None:
    batcher, model = endless
    asked = asyncio.ensure_future(batcher.submit(units(0)))
    await reached(lambda: len(model.batches) == 1)
    assert batcher.stuck == 0
    asked.cancel()
    assert await batcher.submit(units(5)) == [10]
    assert model.batches == [[0], [5]] and (batcher.running, batcher.stuck) == (0, 0)


async def test_those_beside_one_that_was_given_up_run_alone(endless: tuple[Batcher, Endless], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEFT_SECONDS", 0.0)
    batcher, model = endless
    asked = [asyncio.ensure_future(batcher.submit(units(number))) for number in (0, 1, 2)]
    await reached(lambda: model.batches == [[0, 1, 2]])
    asked[0].cancel()
    assert await asyncio.gather(*asked[1:]) == [[2], [4]]
    assert model.batches == [[0, 1, 2], [1], [2]]


async def test_one_that_is_given_up_in_its_turn_alone(endless: tuple[Batcher, Endless], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three do not end: the batch is halted for the first, then the second holds the third until it is given up, too."""
    monkeypatch.setattr(module, "LEFT_SECONDS", 0.0)
    batcher, model = endless
    asked = [asyncio.ensure_future(batcher.submit(units(number))) for number in (0, 0, 3)]
    await reached(lambda: model.batches == [[0, 0, 3]])
    asked[0].cancel()
    await reached(lambda: model.batches[1:] == [[0]])
    asked[1].cancel()
    assert await asked[2] == [6]


async def test_a_run_that_does_not_heed_is_stuck(model: Model, batcher: Batcher) -> None:
    model.gate.clear()
    asked = asyncio.ensure_future(batcher.submit(units(1)))
    await reached(lambda: batcher.running == 1)
    asked.cancel()
    await reached(lambda: batcher.stuck > 0)
    model.gate.set()
    assert await batcher.submit(units(2)) == [4] and batcher.stuck == 0


async def test_closing_fails_what_waits(model: Model) -> None:
    batcher = Batcher(BatchQueue(DELAY, 8), model.run, SystemClock())
    batcher.start()
    model.gate.clear()
    first = asyncio.ensure_future(batcher.submit(units(1)))
    await reached(lambda: batcher.running == 1)
    waiting = asyncio.ensure_future(batcher.submit(units(2)))
    await reached(lambda: batcher.queue.jobs == 1)
    closing = asyncio.ensure_future(batcher.aclose())
    with pytest.raises(ApiError, match="draining"):
        await waiting
    with pytest.raises(ApiError, match="draining"):
        await batcher.submit(units(3))
    model.gate.set()
    await closing
    assert await first == [2]


async def test_batches_are_observed(model: Model) -> None:
    seen: list[tuple[int, float]] = []
    batcher = Batcher(BatchQueue(DELAY, 8), model.run, SystemClock(), lambda units, seconds, now: seen.append((len(units), seconds)))
    batcher.start()
    await batcher.submit(units(1, 2))
    await batcher.aclose()
    assert seen[0][0] == 2
    assert seen[0][1] >= 0
