"""Waiting for a condition, with a deadline that only a fault reaches. What a test waits for is never a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

SECONDS = 150.0
"""Of patience at least, on a machine ten times slower than those the tests are written on: it is only spent where something hangs."""


def until(condition: Callable[[], Any], seconds: float = SECONDS, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked again and again until the deadline. seconds: where more than SECONDS are needed."""
    seconds = max(seconds, SECONDS)
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(0.02)
    return found


async def reached(condition: Callable[[], Any], seconds: float = SECONDS, what: str = "the condition") -> Any:
    """The same beside what the running loop does meanwhile."""
    seconds = max(seconds, SECONDS)
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {seconds} s")
        await asyncio.sleep(0.002)
    return found
