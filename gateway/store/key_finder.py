"""Looks API keys up, many in one question: while one is being answered, those that come meanwhile gather for the next. So unknown keys cost
the database little, however many are tried, and a valid key among them does not wait behind each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from gateway.core.errors import StoreUnavailable
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner

MOST: Final = 256
"""Keys in one question."""

FindMany = Callable[[Sequence[bytes]], Awaitable[Mapping[bytes, KeyRecord]]]
"""Fingerprints -> the records of those that are keys. Raises StoreUnavailable."""


class KeyFinder:
    """Looks keys up, on one event loop. Life: `aclose`, which fails the calls that still wait."""

    def __init__(self, find: FindMany, most: int = MOST) -> None:
        self._find, self._most = find, most
        self._tasks = TaskOwner("find keys")
        self._waiting: list[tuple[bytes, asyncio.Future[KeyRecord | None]]] = []
        self._asking = self._closed = False

    async def aclose(self) -> None:
        self._closed = True
        await self._tasks.aclose()

    async def find(self, fingerprint: bytes) -> KeyRecord | None:
        """The record of a key, no older than this call, or None. Raises StoreUnavailable."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        answer: asyncio.Future[KeyRecord | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((fingerprint, answer))
        if not self._asking:
            self._asking = True
            self._tasks.spawn(self._ask(), name="ask")
        return await answer

    async def _ask(self) -> None:
        """Asks until nobody waits. An error is for all who wait: the next question would fare no better, only later."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                try:
                    found = await self._find([fingerprint for fingerprint, _ in batch])
                except BaseException:  # boundary: raised again
                    self._waiting = batch + self._waiting
                    raise
                for fingerprint, answer in batch:
                    if not answer.done():
                        answer.set_result(found.get(fingerprint))
        except asyncio.CancelledError:
            self._fail(StoreUnavailable("The store is closed."))
            raise
        except StoreUnavailable as error:
            self._fail(error)
        except Exception:
            self._fail(StoreUnavailable("The keys could not be looked up."))
            raise
        finally:
            self._asking = False

    def _fail(self, error: StoreUnavailable) -> None:
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)
