"""Whether what was changed here is in force: in this process, and in every worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.app.configuration.changes import Changes
from gateway.app.identity.suspensions import Suspensions
from gateway.app.store.link import StoreLink

LOOK_SECONDS: Final = 0.01
"""Between two looks at whether changes of the store have been heard and put into force."""


class InForce:
    """workers: waits until each worker has in force what it has been told, for so many seconds; None without workers."""

    def __init__(
        self, link: StoreLink, changes: Changes, suspensions: Suspensions, workers: Callable[[float], Awaitable[bool]] | None = None
    ) -> None:
        self._link, self._changes, self._suspensions, self._workers = link, changes, suspensions, workers

    async def __call__(self, seconds: float) -> bool:
        """Waits at most so long for everything that was written here until now. False when the time is over, or when the store's part of
        the configuration could not be put into force. Processes of engines follow later and do not count."""
        loop = asyncio.get_running_loop()
        end, written = loop.time() + seconds, self._link.written
        while not (self._link.heard(written) and self._changes.settled and self._suspensions.settled):
            if loop.time() >= end:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        if self._changes.lagging:
            return False
        return self._workers is None or await self._workers(max(0.0, end - loop.time()))
