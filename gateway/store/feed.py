"""Publishes the store's changes on the feed: this process's at once, those of other replicas by polling.

Every subscriber hears each change exactly once and in order, or hears `resync`: changes were missed, and it must fetch again whatever it
keeps of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gateway.core.errors import GatehouseError
from gateway.core.ports import Feed
from gateway.core.storage import ChangePage, StoreChange
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.store")

CHANGE = "store"
"""Kind on the feed: one change. The payload is the StoreChange."""
RESYNC = "resync"
"""Kind on the feed: changes were missed. The payload is the newest sequence number."""
PAGE = 1000
RELAXED = 2.0
"""Where hints are sure to arrive, the poller asks this many times less often..."""
LONGEST = 10.0
"""...but at least every so many seconds, unless `interval` itself is longer."""
GAP = 0.005
"""The least seconds between two polls for hints, doubled with each that finds nothing, up to the interval."""


class Changes(Protocol):
    """A source of numbered changes."""

    async def changes_since(self, seq: int, limit: int = 1000) -> ChangePage: ...


class ChangePoller:
    """Asks for new changes every `interval` seconds, and when a hint says that there are some, and publishes them.

    `position`: the last number that was published. `relaxed`: hints are sure to arrive, so it asks less often by itself. `unhinted`:
    called when it finds changes although no hint came.
    Life: `start`, before anything that must be kept up to date is read from the store; `aclose`, after which nothing is published.
    """

    def __init__(self, store: Changes, feed: Feed, interval: float) -> None:
        self._store, self._feed, self._interval = store, feed, interval
        self.position = 0
        self.relaxed = False
        self.unhinted: Callable[[], None] = lambda: None
        self._missed = self._over = False
        self._last: StoreChange | None = None
        """The change of number `position`, if it is known: a database that has another one has lost what came after some earlier number (a
        failover to a standby that lagged) and gives the same numbers anew."""
        self._wake = asyncio.Event()
        self._tasks = TaskOwner("store feed")

    async def start(self) -> None:
        """Begins at the newest change; earlier ones are not published. Raises StoreUnavailable."""
        self.position = (await self._store.changes_since(0, 1)).head
        self._tasks.spawn(self._run(), name="poll")

    async def aclose(self) -> None:
        self._over = True
        await self._tasks.aclose()

    def look(self) -> None:
        """Asks now: hints may have been missed, or are no longer sure."""
        self._wake.set()

    def hinted(self, seq: int) -> None:
        """Somebody says that the change of this number was committed. Only the store tells whether that is true."""
        if seq > self.position:
            self._wake.set()

    def written(self, change: StoreChange) -> None:
        """A write of this process was committed. If it is the next in order, it is published at once. A higher number shows that other
        replicas have written, so everything up to it is fetched now. A lower number was already polled."""
        if self._over:
            return
        if change.seq == self.position + 1:
            self._publish(change)
        elif change.seq == self.position and self._last is not None and change != self._last:
            self._again(change.seq)
        elif change != self._last:
            self._wake.set()

    def _publish(self, change: StoreChange) -> None:
        self.position, self._last = change.seq, change
        self._tell(CHANGE, change)

    def _again(self, head: int) -> None:
        log.warning("changes up to %d are not those that were known here: everything is fetched again", head)
        self.position, self._last = head, None
        self._tell(RESYNC, head)

    def _tell(self, kind: str, payload: StoreChange | int) -> None:
        """Publishes. If a subscriber fails, the next poll makes all of them fetch again: no revocation may go unheard."""
        try:
            self._feed.publish(kind, payload)
        except Exception:  # boundary: the write is committed; each poll says `resync` until all subscribers have heard it
            log.exception("a subscriber failed on a change of the store: everything is fetched again")
            self._missed = True

    async def _run(self) -> None:
        gap = GAP
        while True:
            try:
                async with asyncio.timeout(max(self._interval, min(self._interval * RELAXED, LONGEST)) if self.relaxed else self._interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            hinted, before = self._wake.is_set(), self.position
            self._wake.clear()
            try:
                while await self.poll():
                    pass
                if self.position != before:
                    gap = GAP
                    if not hinted and self.relaxed:
                        self.unhinted()
                elif hinted:
                    gap = min(gap * 2, self._interval)
                await asyncio.sleep(gap if hinted else 0.0)
            except GatehouseError as error:
                log.debug("changes could not be fetched: %s", error.message)  # the store itself logs when it is lost and found
            except Exception:  # boundary: no change was skipped; the next poll asks for the same ones
                log.exception("changes could not be fetched")

    async def poll(self) -> bool:
        """Fetches and publishes one page; returns whether there may be more."""
        if self._missed:
            self._missed = False
            self._tell(RESYNC, self.position)
        asked, last = self.position, self._last
        page = await self._store.changes_since(max(0, asked - 1), PAGE)  # with the one that is known
        if (page.gap or page.head < asked) and self.position == asked:
            log.warning("changes between %d and %d were missed here: everything is fetched again", asked, page.head)
            self.position, self._last = page.head, None
            self._tell(RESYNC, page.head)
            return False
        known = next((change for change in page.changes if change.seq == asked), None)
        if known is not None and last is not None and known != last:
            self._again(max(self.position, page.head))
            return False
        if self.position == asked:
            self._last = known
        for change in page.changes:
            if change.seq == self.position + 1:  # not those written here in the meantime
                self._publish(change)
        return len(page.changes) >= PAGE
