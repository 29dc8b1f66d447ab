"""Long work on the event loop, in slices: whoever has requests under way gets the loop back after half a millisecond.

The work is a generator that yields wherever it may be interrupted. A thread would not help: while it runs Python it holds the
interpreter each time the loop wants it, and takes it back as soon as it may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
SLICE = 0.0005
"""Seconds of work between two turns of the loop, as far as the steps are shorter than that."""


async def in_slices(steps: Steps[T]) -> T:
    """What the work returns; raises what it raises. Other tasks run in between, and before: what the caller did since it had the loop is a
    turn of its own."""
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


def at_once(steps: Steps[T]) -> T:
    """The same without a pause, where no loop has to go on."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
