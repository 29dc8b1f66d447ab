"""All resources of one kind of the store, kept in this process: those that may have changed are read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.core.errors import NotFound, StoreUnavailable
from gateway.core.ports import Change
from gateway.core.storage import ControlStore, Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.feed import CHANGE, RESYNC

log = logging.getLogger("gatehouse")
RETRY_SECONDS: Final = 0.5
"""Between two tries to read the store."""
PAGE: Final = 1000
MANY: Final = 64
"""After so many changes or more, all resources are read."""


class Followed:
    """Life: `start`, then `heard` for the feed; the owner ends its tasks. take: called with all resources, in no order, after each reading.
    some: called instead with those that are new or changed and the names of those that are gone, if these are known; without it, all are
    read after each change.

    lock: held while reading. Code that writes to the store and then to what `take` fills must hold it too, or a reading that began before
    the write would undo the write.
    """

    def __init__(
        self,
        store: ControlStore,
        kind: str,
        take: Callable[[list[Resource]], None],
        owner: TaskOwner,
        some: Callable[[list[Resource], list[str]], None] | None = None,
    ) -> None:
        self._store, self._kind, self._take, self._owner, self._some = store, kind, take, owner, some
        self._names: set[str] | None = None
        """Those that may have changed; None: all."""
        self.lock = asyncio.Lock()
        self._heard, self._known = 1, 0
        self._reading: asyncio.Task[None] | None = None

    @property
    def stale(self) -> bool:
        """Whether something was heard of that has not been read and taken yet."""
        return self._known != self._heard

    async def start(self) -> None:
        """Reads them. Raises StoreUnavailable."""
        self._heard, self._names = self._heard + 1, None
        while self.stale:
            async with self.lock:
                await self.read()

    def heard(self, change: Change) -> None:
        _, kind, payload = change
        if kind == RESYNC:
            self.refresh()
        elif kind == CHANGE and isinstance(payload, StoreChange) and payload.kind == self._kind:
            if self._names is not None:
                self._names.add(payload.name)
            self._soon()

    def refresh(self) -> None:
        """Reads them soon, however often it takes."""
        self._names = None
        self._soon()

    def _soon(self) -> None:
        self._heard += 1
        if self._reading is None or self._reading.done():
            self._reading = self._owner.spawn(self._follow(), name=self._kind)

    async def _follow(self) -> None:
        while self.stale:
            try:
                async with self.lock:
                    await self.read()
            except StoreUnavailable as error:
                log.warning("%s could not be read: %s", self._kind.replace("_", " "), error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def read(self) -> None:
        """Reads them now. The caller has the lock. Raises StoreUnavailable."""
        heard = self._heard  # what is heard of meanwhile may be missing
        names, self._names = self._names, set()
        try:
            if self._some is None or names is None or len(names) > MANY:
                self._take(await self.every())
            else:
                self._some(*await self._of(names))
        except BaseException:
            self._names = None if names is None or self._names is None else names | self._names
            raise
        self._known = heard

    async def _of(self, names: set[str]) -> tuple[list[Resource], list[str]]:
        found: list[Resource] = []
        gone: list[str] = []
        for name in sorted(names):
            try:
                found.append(await self._store.get(self._kind, name))
            except NotFound:
                gone.append(name)
        return found, gone

    async def every(self) -> list[Resource]:
        """All that are in the store at the moment. Raises StoreUnavailable."""
        found: list[Resource] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(self._kind, limit=PAGE, cursor=cursor)
            found += page.items
            if (cursor := page.cursor) is None:
                return found
