"""Long work in slices: what it returns and raises, and that the loop runs in between."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import ClientGone
from gateway.core.slices import SLICE, Steps, Turns, at_once, in_order, in_slices
from gateway.core.waiting import Driver


def busy(steps: int, clock: FakeClock, each: float) -> Steps[int]:
    """Works so many steps, each of so many seconds; returns how many they were."""
    for _ in range(steps):
        clock.advance(each)
        yield
    return steps


def failing() -> Steps[int]:
    yield
    raise ValueError("wrong")


async def test_the_loop_runs_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.core.slices.time", clock)
    turns = 0
    going = True

    async def other() -> None:
        nonlocal turns
        while going:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    assert await in_slices(busy(300, clock, SLICE / 10)) == 300
    going = False
    await task
    assert turns == pytest.approx(30, abs=3), "a turn for each slice, several steps in a slice"


async def test_what_the_work_returns_and_raises() -> None:
    clock = FakeClock()
    assert await in_slices(busy(2, clock, 0.0)) == 2 == at_once(busy(2, clock, 0.0))
    with pytest.raises(ValueError, match="wrong"):
        await in_slices(failing())
    with pytest.raises(ValueError, match="wrong"):
        at_once(failing())


@pytest.mark.parametrize("count", [0, 1, 2048, 5000])
def test_many_texts_are_sorted_in_steps(count: int) -> None:
    texts = [f"{number * 7919 % 10007:05d}".encode() for number in range(count)]
    assert at_once(in_order(texts)) == sorted(texts)
    assert len(list(in_order(texts))) >= count // 256


# --- turns


async def test_one_slice_runs_in_each_round_of_the_loop_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.core.slices.time", clock)
    turns, rounds, going = Turns(), 0, 0

    def noting(name: str) -> Steps[str]:
        for _ in range(5):
            clock.advance(SLICE)
            worked.append((rounds, name))
            yield
        return name

    worked: list[tuple[int, str]] = []
    results: list[object] = []

    async def work(name: str) -> None:
        results.append(await turns.run(noting(name)))

    def ended(error: BaseException | None) -> None:
        nonlocal going
        assert error is None
        going -= 1

    for name in "abc":
        going += 1
        Driver(work(name), ended).start()
    while going:
        rounds += 1
        await asyncio.sleep(0)
    assert sorted(results, key=str) == ["a", "b", "c"]
    assert len({number for number, _ in worked}) == 15, "no two slices in one round"
    assert [name for _, name in worked[:6]] == ["a", "b", "c", "a", "b", "c"]


async def test_what_goes_wrong_in_a_turn_reaches_its_own_caller() -> None:
    turns = Turns()
    ends: list[BaseException | None] = []

    async def work(steps: Steps[int]) -> None:
        await turns.run(steps)

    Driver(work(failing()), ends.append).start()
    Driver(work(busy(3, FakeClock(), 0.0)), ends.append).start()
    while len(ends) < 2:
        await asyncio.sleep(0)
    assert [type(end) for end in ends] == [ValueError, type(None)]


async def test_a_caller_that_leaves_gives_its_turn_away() -> None:
    turns = Turns()
    ends: list[BaseException | None] = []

    async def work(steps: Steps[int]) -> None:
        await turns.run(steps)

    leaving = Driver(work(busy(1000, FakeClock(), 0.0)), ends.append)
    leaving.start()
    leaving.cancel(ClientGone("left"))
    Driver(work(busy(3, FakeClock(), 0.0)), ends.append).start()
    while len(ends) < 2:
        await asyncio.sleep(0)
    assert [type(end) for end in ends] == [ClientGone, type(None)]
