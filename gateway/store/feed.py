"""Changes of the store onto the feed: those of this process at once, those of other replicas by asking for what is new.

Every subscriber hears each change exactly once and in order, or `resync`: then changes were missed, and it fetches anew
whatever it keeps of the store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from gateway.core.errors import GatehouseError
from gateway.core.ports import Feed
from gateway.core.storage import ChangePage, StoreChange
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.store")

CHANGE = "store"
"""The kind on the feed of one change; its payload is the StoreChange."""
RESYNC = "resync"
"""The kind on the feed when changes were missed; its payload is the newest sequence number."""
PAGE = 1000


class Changes(Protocol):
    """Where the numbered changes are."""

    async def changes_since(self, seq: int, limit: int = 1000) -> ChangePage: ...


class ChangePoller:
    """Asks for new changes every `interval` seconds and publishes them. `position`: the last number that was published.

    Life: `start` before anything is read from the store that must be kept up to date; `aclose`.
    """

    def __init__(self, store: Changes, feed: Feed, interval: float) -> None:
        self._store, self._feed, self._interval = store, feed, interval
        self.position = 0
        self._missed = False
        self._wake = asyncio.Event()
        self._tasks = TaskOwner("store feed")

    async def start(self) -> None:
        """From now on: what was written before is not published. Raises StoreUnavailable."""
        self.position = (await self._store.changes_since(0, 1)).head
        self._tasks.spawn(self._run(), name="poll")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def written(self, change: StoreChange) -> None:
        """A write of this process was committed. The next in order is published at once; one that is further on shows that other
        replicas have written: all of it is fetched now. One that a poll was quicker with is known already."""
        if change.seq == self.position + 1:
            self._publish(change)
        elif change.seq > self.position:
            self._wake.set()

    def _publish(self, change: StoreChange) -> None:
        self.position = change.seq
        self._tell(CHANGE, change)

    def _tell(self, kind: str, payload: StoreChange | int) -> None:
        """Publishes. When one that hears it fails, the next poll has all fetched anew: no revocation may stay unheard."""
        try:
            self._feed.publish(kind, payload)
        except Exception:  # boundary: the write is committed, and the next poll says `resync` until all have heard it
            log.exception("a change of the store could not be put into force: everything is fetched anew")
            self._missed = True

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                while await self.poll():
                    pass
            except GatehouseError as error:
                log.debug("changes could not be fetched: %s", error.message)  # the store itself says when it is lost and found
            except Exception:  # boundary: nothing was passed over, the next poll asks for the same again
                log.exception("changes could not be fetched")

    async def poll(self) -> bool:
        """Fetches and publishes one page. True: there may be more."""
        if self._missed:
            self._missed = False
            self._tell(RESYNC, self.position)
        asked = self.position
        page = await self._store.changes_since(asked, PAGE)
        if page.gap and self.position == asked:
            log.warning("changes between %d and %d are not known here: everything is fetched anew", asked, page.head)
            self.position = page.head
            self._tell(RESYNC, page.head)
            return False
        for change in page.changes:
            if change.seq == self.position + 1:  # not those that were written here meanwhile
                self._publish(change)
        return len(page.changes) >= PAGE
