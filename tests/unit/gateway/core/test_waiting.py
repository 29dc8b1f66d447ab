"""Signals resume in order and once; a Driver steps, cancels and ends a coroutine exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.waiting import WAITS, Driver, Signal, as_future, waits


class Stop(Exception):
    pass


class Ends:
    """What `on_done` heard."""

    def __init__(self) -> None:
        self.heard: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.heard.append(error)


def driven(function: Callable[[], Any]) -> tuple[Driver, Ends]:
    ends = Ends()
    driver = Driver(function(), ends)
    driver.start()
    return driver, ends


# --- Signal


def test_callbacks_are_called_in_order_and_once() -> None:
    signal: Signal[int] = Signal()
    heard: list[str] = []
    for name in "abc":
        signal.add_callback(lambda name=name: heard.append(name))  # type: ignore[misc]
    signal.set(1)
    signal.set(2)
    signal.fail(Stop())
    assert heard == ["a", "b", "c"]
    assert (signal.value, signal.error, signal.done) == (1, None, True)


def test_a_callback_of_a_complete_signal_is_called_at_once() -> None:
    signal: Signal[int] = Signal()
    signal.fail(Stop())
    heard: list[int] = []
    signal.add_callback(lambda: heard.append(1))
    assert heard == [1]


def test_a_removed_callback_is_not_called() -> None:
    signal: Signal[int] = Signal()
    heard: list[str] = []

    def one() -> None:
        heard.append("one")

    def two() -> None:
        heard.append("two")

    signal.remove_callback(one)
    signal.add_callback(one)
    signal.add_callback(two)
    signal.remove_callback(one)
    signal.set(1)
    signal.remove_callback(two)
    assert heard == ["two"]


def test_many_may_wait_and_each_gets_the_value() -> None:
    signal: Signal[int] = Signal()
    got: list[tuple[str, int]] = []

    async def wait(name: str) -> None:
        got.append((name, await signal))

    pairs = [driven(lambda name=name: wait(name)) for name in "abc"]
    assert got == []
    signal.set(5)
    assert got == [("a", 5), ("b", 5), ("c", 5)]
    assert all(ends.heard == [None] for _, ends in pairs)


def test_a_complete_signal_does_not_suspend() -> None:
    signal: Signal[int] = Signal()
    signal.set(3)
    got: list[int] = []

    async def run() -> None:
        got.append(await signal)

    assert driven(run)[1].heard == [None]
    assert got == [3]


def test_a_failed_signal_raises_in_each_that_waits() -> None:
    signal: Signal[int] = Signal()
    error = Stop()

    async def run() -> None:
        await signal

    first, second = driven(run)[1], driven(run)[1]
    signal.fail(error)
    assert first.heard == second.heard == [error]


async def test_as_future() -> None:
    good: Signal[int] = Signal()
    bad: Signal[int] = Signal()
    left: Signal[int] = Signal()
    future, failing, cancelled = as_future(good), as_future(bad), as_future(left)
    cancelled.cancel()
    good.set(1)
    bad.fail(Stop())
    left.set(1)
    assert await future == 1
    with pytest.raises(Stop):
        await failing
    assert cancelled.cancelled()
    assert await as_future(good) == 1


# --- Driver


def test_a_coroutine_runs_as_far_as_it_can() -> None:
    first: Signal[None] = Signal()
    second: Signal[None] = Signal()
    steps: list[int] = []

    async def run() -> None:
        steps.append(1)
        await first
        steps.append(2)
        await second
        steps.append(3)

    driver, ends = driven(run)
    assert (steps, driver.done) == ([1], False)
    second.set(None)
    assert steps == [1]
    first.set(None)
    assert (steps, driver.done, ends.heard) == ([1, 2, 3], True, [None])


def test_what_leaves_the_coroutine_is_handed_on() -> None:
    error = Stop()

    async def run() -> None:
        raise error

    driver, ends = driven(run)
    assert ends.heard == [error]
    assert driver.done


def test_cancel_throws_where_it_waits_and_nothing_resumes_it_later() -> None:
    signal: Signal[None] = Signal()
    other: Signal[None] = Signal()
    steps: list[str] = []

    async def run() -> None:
        try:
            await signal
        except Stop:
            steps.append("stopped")
            await other
            steps.append("other")
            raise

    error = Stop()
    driver, ends = driven(run)
    driver.cancel(error)
    assert steps == ["stopped"]
    signal.set(None)
    assert steps == ["stopped"], "the abandoned signal must not resume it"
    other.set(None)
    assert steps == ["stopped", "other"]
    assert ends.heard == [error]


def test_a_coroutine_may_survive_a_cancel() -> None:
    signal: Signal[None] = Signal()

    async def run() -> None:
        try:
            await signal
        except Stop:
            pass

    driver, ends = driven(run)
    driver.cancel(Stop())
    driver.cancel(Stop())
    assert ends.heard == [None]


def test_cancel_from_inside_comes_at_the_next_wait() -> None:
    signal: Signal[None] = Signal()
    steps: list[str] = []
    error = Stop()

    async def run() -> None:
        await signal
        driver.cancel(error)
        steps.append("still running")
        await Signal()
        steps.append("never")

    driver, ends = driven(run)
    signal.set(None)
    assert steps == ["still running"]
    assert ends.heard == [error]


def test_cancel_from_inside_with_nothing_more_to_wait_for_ends_well() -> None:
    async def run() -> None:
        await signal
        driver.cancel(Stop())

    signal: Signal[None] = Signal()
    driver, ends = driven(run)
    signal.set(None)
    assert ends.heard == [None]


def test_cancel_before_the_start_or_after_the_end_does_no_harm() -> None:
    async def run() -> None:
        return None

    driver, ends = driven(run)
    driver.cancel(Stop())
    driver.start()
    assert ends.heard == [None]


def test_one_that_resumes_another_which_completes_what_it_waits_for() -> None:
    """Re-entrancy: `b`, resumed in the stack of `a`, completes the signal that `a` is about to wait for."""
    ping: Signal[None] = Signal()
    pong: Signal[str] = Signal()
    got: list[str] = []

    async def a() -> None:
        ping.set(None)
        got.append(await pong)

    async def b() -> None:
        await ping
        pong.set("from b")

    _, b_ends = driven(b)
    _, a_ends = driven(a)
    assert got == ["from b"]
    assert a_ends.heard == b_ends.heard == [None]


def test_a_callback_that_cancels_another_waiter_of_the_same_signal() -> None:
    signal: Signal[int] = Signal()
    later: Signal[str] = Signal()
    got: list[Any] = []

    async def victim() -> None:
        try:
            await signal
        except Stop:
            got.append(await later)

    signal.add_callback(lambda: driver.cancel(Stop()))
    driver, ends = driven(victim)
    signal.set(1)
    assert got == [], "the signal it waited for before must not stand for the one it waits for now"
    later.set("later")
    assert got == ["later"]
    assert ends.heard == [None]


async def test_what_waits() -> None:
    future = asyncio.get_running_loop().create_future()
    values = (Signal(), future, asyncio.current_task(), None, 0, "text", Stop(), Signal)
    assert [waits(value) for value in values] == [isinstance(value, WAITS) for value in values] == [True] * 3 + [False] * 5


@pytest.mark.parametrize("leaves", ["", "a", "b", "c"])
@pytest.mark.parametrize("first", ["a driver", "a callback"])
def test_drivers_and_callbacks_are_resumed_in_the_order_in_which_they_came(first: str, leaves: str) -> None:
    signal: Signal[None] = Signal()
    heard: list[str] = []
    assert not signal.awaited
    if first == "a callback":
        signal.add_callback(lambda: heard.append("first"))

    def waiting(name: str) -> Callable[[], Any]:
        async def run() -> None:
            await signal
            heard.append(name)

        return run

    drivers = {name: driven(waiting(name)) for name in "ab"}
    assert signal.awaited
    signal.add_callback(lambda: heard.append("between"))
    drivers["c"] = driven(waiting("c"))
    if leaves:
        drivers[leaves][0].cancel(Stop())
    signal.set(None)
    expected = [*(["first"] if first == "a callback" else []), "a", "b", "between", "c"]
    assert heard == [name for name in expected if name != leaves]
    assert not signal.awaited
    assert all(len(ends.heard) == 1 and (ends.heard[0] is None) == (name != leaves) for name, (_, ends) in drivers.items())


def test_ten_thousand_complete_signals_need_no_stack() -> None:
    done: Signal[int] = Signal()
    done.set(1)
    total = 0

    async def run() -> None:
        nonlocal total
        for _ in range(10_000):
            total += await done

    assert driven(run)[1].heard == [None]
    assert total == 10_000


async def test_futures_of_the_loop_can_be_waited_for() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[int] = []

    async def run() -> None:
        got.append(await future)

    _, ends = driven(run)
    future.set_result(4)
    assert got == [], "the loop's futures resume in a later turn"
    await turns()
    assert got == [4]
    assert ends.heard == [None]


async def test_a_future_that_fails() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    error = Stop()

    async def run() -> None:
        await future

    _, ends = driven(run)
    future.set_exception(error)
    await turns()
    assert ends.heard == [error]


async def test_cancel_on_a_future_cancels_it_and_nothing_resumes() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    again: Signal[None] = Signal()
    error = Stop()

    async def run() -> None:
        try:
            await future
        except Stop:
            await again
            raise

    driver, ends = driven(run)
    driver.cancel(error)
    assert future.cancelled()
    await turns()
    assert ends.heard == [], "the cancelled future must not resume it"
    again.set(None)
    assert ends.heard == [error]


async def test_cancel_from_inside_before_a_future_cancels_the_future() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    signal: Signal[None] = Signal()
    error = Stop()

    async def run() -> None:
        await signal
        driver.cancel(error)
        await future

    driver, ends = driven(run)
    signal.set(None)
    assert future.cancelled()
    assert ends.heard == [error]


async def test_an_error_thrown_while_a_result_is_on_its_way_wins() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    error = Stop()

    async def run() -> None:
        await future

    driver, ends = driven(run)
    future.set_result(1)
    driver.cancel(error)
    await turns()
    assert ends.heard == [error]


async def turns(count: int = 5) -> None:
    """A few turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
