"""Long work on the event loop in slices: after half a millisecond, requests get the loop back.

The work is a generator that yields wherever it may be interrupted. A thread would not help: while it runs Python code, it competes with the
loop for the interpreter.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

from gateway.core.waiting import Signal

T = TypeVar("T")
Steps = Generator[None, None, T]
Name = TypeVar("Name", str, bytes)
AT_ONCE = 256
"""Items that `in_order` merges in a step."""
SLICE = 0.0005
"""Seconds of work before the loop gets a turn. A longer step lengthens the slice."""


def portions(items: Sequence[T], size: int = 2048) -> Iterator[Sequence[T]]:
    """The items in pieces that a comprehension goes through in a step."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def in_order(items: Sequence[Name]) -> Steps[list[Name]]:
    """The items sorted. Sorting a hundred thousand at once takes 50 ms."""
    runs: list[list[Name]] = []
    for some in portions(items):
        runs.append(sorted(some))
        yield
    ordered: list[Name] = []
    for item in heapq.merge(*runs):
        ordered.append(item)
        if len(ordered) % AT_ONCE == 0:
            yield
    return ordered


async def in_slices(steps: Steps[T]) -> T:
    """Returns the work's result or raises its error. Yields once before it starts; other tasks run in between."""
    await asyncio.sleep(0)
    end = time.monotonic() + SLICE
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.monotonic() >= end:
            await asyncio.sleep(0)
            end = time.monotonic() + SLICE


class Turns:
    """Long work of many requests on one loop: one slice per round of the loop, each waiting request in turn.

    So a round is never longer than one slice and one step, however many requests have long work. It works where a Driver steps the
    coroutine (gateway.core.waiting), as no task is needed.
    """

    def __init__(self) -> None:
        self._waiting: deque[Signal[None]] = deque()
        self._due = False

    async def run(self, steps: Steps[T]) -> T:
        """Returns the work's result or raises its error. A cancelled caller leaves the work unfinished."""
        while True:
            await self._next()
            end = time.monotonic() + SLICE
            try:
                next(steps)
                while time.monotonic() < end:
                    next(steps)
            except StopIteration as done:
                result: T = done.value
                return result

    def _next(self) -> Signal[None]:
        turn: Signal[None] = Signal()
        self._waiting.append(turn)
        self._schedule()
        return turn

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        self._due = False
        turn = self._waiting.popleft()
        if self._waiting:
            self._schedule()
        turn.set(None)


def at_once(steps: Steps[T]) -> T:
    """Runs the work without pausing, where no event loop is waiting."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
