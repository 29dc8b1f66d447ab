"""Processor time that means something on a machine that is not ours alone.

What other processes, the host of a virtual machine and the garbage collector take is added to what is measured, and nothing is ever taken
off: the shortest of several measurements says most about the code. A test that bounds a time takes it here.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

Measured = TypeVar("Measured")
ATTEMPTS: Final = 10


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would walk what all other tests of this process left."""
    gc.collect(0)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def spent(action: Callable[[], Any]) -> float:
    """Seconds of this thread's processor time that `action` takes."""
    with uncollected():
        began = time.thread_time()
        action()
        return time.thread_time() - began


def longest_step(steps: Iterator[Any]) -> float:
    """Seconds of processor time of the longest of `steps`."""
    longest = 0.0
    with uncollected():
        while True:
            began = time.thread_time()
            try:
                next(steps)
            except StopIteration:
                return longest
            finally:
                longest = max(longest, time.thread_time() - began)


def at_most(seconds: float, measure: Callable[[], float]) -> None:
    """Asserts that `measure` returns at most `seconds` at least once."""
    taken: list[float] = []
    while not taken or min(taken) > seconds:
        assert len(taken) < ATTEMPTS, f"{min(taken):.3f} s at best, at most {seconds:g} s were to be: {taken}"
        taken.append(measure())


async def once(fits: Callable[[Measured], bool], measure: Callable[[], Awaitable[Measured]]) -> Measured:
    """The first of at most ATTEMPTS measurements that fits. Asserts that there is one."""
    taken: list[Measured] = []
    while len(taken) < ATTEMPTS:
        with uncollected():
            taken.append(await measure())
        if fits(taken[-1]):
            return taken[-1]
    raise AssertionError(f"none of {ATTEMPTS} measurements fits: {taken}"[:2000])
