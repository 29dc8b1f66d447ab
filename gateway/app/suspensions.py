"""Suspensions of tenants, users and keys: kept in the store as resources, in force wherever the store is known (gateway.core.standing).

A suspension is a resource of its own, not a setting of what it suspends. So it also reaches keys and tenants of the configuration file and
users without a record, and it outlives a user who is deleted and made again by the next login.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from gateway.core.errors import StoreUnavailable
from gateway.core.ports import Change
from gateway.core.standing import Standing, Stop
from gateway.core.storage import ControlStore, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.feed import CHANGE, RESYNC

log = logging.getLogger("gatehouse")
KIND: Final = "suspensions"
RETRY_SECONDS: Final = 0.5
"""Between two tries to read the store."""


class Suspensions:
    """Life: `start`, then `heard` for the feed; the owner ends its tasks."""

    def __init__(self, store: ControlStore, standing: Standing, owner: TaskOwner) -> None:
        self._store, self._standing, self._owner = store, standing, owner
        self._due = True
        self._reading: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether everything that was heard of is in force in this process."""
        return not self._due

    async def start(self) -> None:
        """Puts what is suspended into force. Raises StoreUnavailable."""
        await self._read()

    def heard(self, change: Change) -> None:
        """For the feed."""
        _, kind, payload = change
        if kind == RESYNC or (kind == CHANGE and isinstance(payload, StoreChange) and payload.kind == KIND):
            self._due = True
            if self._reading is None or self._reading.done():
                self._reading = self._owner.spawn(self._follow(), name="suspensions")

    async def _follow(self) -> None:
        while self._due:
            try:
                await self._read()
            except StoreUnavailable as error:
                log.warning("suspensions could not be read: %s", error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        """Reads all of them, again if one has changed meanwhile."""
        while True:
            self._due = False
            try:
                found = await self._every()
            except StoreUnavailable:
                self._due = True
                raise
            if not self._due:
                break
        self._standing.replace(KIND, found)

    async def _every(self) -> list[Stop]:
        found: list[Stop] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(KIND, limit=1000, cursor=cursor)
            found += [Stop(str(one.body.get("target", one.name)), "suspended", admin=True) for one in page.items]
            cursor = page.cursor
            if cursor is None:
                return found
