"""Rounds of looking for work in the store, as batches and operators' jobs have them: one every second or when woken, until closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.errors import GatehouseError

LOOK_SECONDS: Final = 1.0
COUNT_EVERY: Final = 10
FORGET_EVERY: Final = 3600
Call = Callable[[], Awaitable[object]]


class Rounds:
    """what: is looked for, in messages. look: in each round; count and forget: now and then, the first time in the first round. A round
    that fails does not stop the next."""

    def __init__(self, what: str, log: logging.Logger, *, look: Call, count: Call, forget: Call) -> None:
        self._what, self._log = what, log
        self._look, self._count, self._forget = look, count, forget
        self._wake = asyncio.Event()
        self._closing = False

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """No further round begins."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        number = 0
        while not self._closing:
            self._wake.clear()  # before it looks: what somebody wakes it for meanwhile may have come too late for this round
            try:
                await self._look()
                if number % COUNT_EVERY == 0:
                    await self._count()
                if number % FORGET_EVERY == 0:
                    await self._forget()
            except GatehouseError as error:
                self._log.debug("%s could not be looked for: %s", self._what, error.message)
            except Exception:  # noqa: BLE001 - boundary: one failed round does not stop the next
                self._log.exception("%s could not be looked for", self._what)
            number += 1
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
