"""When the parts of routing run what is due later: on the event loop, or when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Scheduler(Protocol):
    """Runs callbacks later: the event loop, or a test."""

    def soon(self, action: Callable[[], None]) -> None: ...

    def later(self, seconds: float, action: Callable[[], None]) -> None: ...


class LoopScheduler:
    """The running event loop."""

    def soon(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)
