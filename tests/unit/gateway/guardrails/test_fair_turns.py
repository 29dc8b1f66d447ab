"""Turns are shared fairly among requests, none is lost, and no more are given than there are."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.guardrails.fair_turns import FairTurns, Party


async def settled() -> None:
    """Lets everybody who can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


class Asked:
    """Questions that hold their turns until they are answered."""

    def __init__(self, turns: FairTurns) -> None:
        self.turns = turns
        self.holding: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.parties: dict[str, Party] = {}

    def ask(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._asked(name))
        self.tasks.append(task)
        return task

    async def _asked(self, name: str) -> None:
        async with self.turns.turn(self.parties.setdefault(name, Party())):
            answered = asyncio.Event()
            self.holding.append((name, answered))
            try:
                await answered.wait()
            finally:
                self.holding.remove((name, answered))

    async def answer(self, name: str) -> None:
        next(answered for holder, answered in self.holding if holder == name).set()
        await settled()

    def names(self) -> str:
        return "".join(sorted(name for name, _ in self.holding))

    async def ended(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_free_turn_goes_to_who_has_the_fewest() -> None:
    asked = Asked(FairTurns(4))
    for name in "aaaaaaaabbbbc":
        asked.ask(name)
    await settled()
    assert asked.names() == "aaaa", "all, as nobody else had asked"
    for held in ("aaab", "aabc", "abbc"):
        await asked.answer("a")
        assert asked.names() == held
    await asked.answer("b")
    assert asked.names() == "aabc" or asked.names() == "abbc"
    await asked.ended()
    assert not asked.holding


async def test_a_turn_that_nobody_takes_is_not_lost() -> None:
    asked = Asked(FairTurns(1))
    first, second, third = asked.ask("a"), asked.ask("b"), asked.ask("c")
    await settled()
    first.cancel()
    second.cancel()  # before it, or just when its turn comes
    await settled()
    assert asked.names() == "c" and third in asked.tasks
    await asked.answer("c")
    asked.ask("d")
    await settled()
    assert asked.names() == "d"
    await asked.ended()


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "answer", "cancel"])), max_size=40))
def test_there_are_always_as_many_turns_as_there_are_to_be(most: int, steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        asked = Asked(FairTurns(most))
        for number, (name, step) in enumerate(steps):
            if step == "ask":
                asked.ask(name)
            elif step == "answer" and name in asked.names():
                await asked.answer(name)
            elif step == "cancel" and asked.tasks:
                asked.tasks[number % len(asked.tasks)].cancel()
            if number % 3 == 0:
                await settled()
        await settled()
        running = sum(not task.done() for task in asked.tasks)
        assert len(asked.holding) == min(most, running)
        await asked.ended()
        for _ in range(most + 1):
            asked.ask("z")
        await settled()
        assert asked.names() == "z" * most
        await asked.ended()

    asyncio.run(run())
