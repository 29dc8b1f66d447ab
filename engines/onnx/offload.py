"""A request's work beside the model (JSON, tokenising, packing): done in place if small, on a thread if not.

What takes long has threads of its own: a text of megabytes holds up others like it, and no text of a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 1.0
"""The most expensive work done on the event loop; 1 is about half a millisecond."""
LARGE = 200.0
"""From here on work goes to the threads for what takes long."""
BYTES_PER_COST = 64 * 1024
"""Bytes of JSON, or bytes to pack, that cost 1."""
CHARACTERS_PER_COST = 2048
"""Characters to tokenise that cost 1."""
NUMBERS_PER_COST = 8192
"""Floats to write as JSON that cost 1."""
THREADS = 2


class Offload:
    """Two threads for work that would block the event loop, and two for what takes long."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aside")
        self._slow = ThreadPoolExecutor(THREADS, thread_name_prefix="slow")

    async def call(self, cost: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, computed here or on a thread."""
        if cost <= SMALL:
            return function(*args, **kwargs)
        pool = self._pool if cost < LARGE else self._slow
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Let the threads end after their present work."""
        for pool in (self._pool, self._slow):
            pool.shutdown(wait=False, cancel_futures=True)
