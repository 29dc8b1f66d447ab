"""An event loop, and a clock, whose process stands still whenever a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


class Paused(asyncio.SelectorEventLoop):
    """`paused`: seconds for which the process stood still so far."""

    paused = 0.0

    def time(self) -> float:
        return super().time() + self.paused


def run(test: Callable[[Paused], Coroutine[Any, Any, None]]) -> None:
    loop = Paused()
    try:
        loop.run_until_complete(test(loop))
    finally:
        loop.close()


class Standing:
    """Stands in for the module `time` in one of ours: `monotonic` passes as ever, and by `paused` seconds more once `pause` is called."""

    def __init__(self) -> None:
        self.paused = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.paused

    def pause(self, seconds: float) -> None:
        self.paused += seconds
