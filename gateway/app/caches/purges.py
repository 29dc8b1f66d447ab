"""Purges of cached answers over all replicas: whoever purges notes it in the store, and each replica does what it has not done yet.

A replica's disk remembers which purges it has seen, so one that was made while the replica was down is made up for at its start. An answer
outlives no purge that was forgotten: notes are kept for longer than any answer is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Final

import msgspec

from gateway.app.store.following import Followed
from gateway.caches.behind import CacheUnavailable
from gateway.caches.disk import DiskAnswers
from gateway.core.caching import Purge
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, NotFound
from gateway.core.ports import Change
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.caches")
KIND: Final = "cache_purges"
KEPT_SECONDS: Final = 32 * 86_400.0
"""How long a purge is remembered: longer than any answer is kept (gateway.core.specs.caches)."""
MOST: Final = 1000
"""Purges that are known. A disk that has seen none of so many has missed some."""
CLEARED: Final = 20
"""Old notes that one purge takes away."""


class CachePurges:
    """forget: purges this replica's processes and its disk. Life: `start`, then `heard` for the feed; the owner ends its tasks."""

    def __init__(
        self, store: ControlStore, forget: Callable[[Purge], Awaitable[object]], clock: Clock, owner: TaskOwner, disk: DiskAnswers | None
    ) -> None:
        self._store, self._forget, self._clock, self._owner, self._disk = store, forget, clock, owner, disk
        self._done: set[str] = set()
        self._own: set[str] = set()
        """Made here, and not read back yet."""
        self._known: list[str] = []
        self._started = False
        self._followed = Followed(store, KIND, self._take, owner)
        self.heard: Callable[[Change], None] = self._followed.heard

    async def start(self) -> None:
        """Reads what is known, and makes up on disk for what was missed. Raises StoreUnavailable."""
        found = {one.name: one for one in await self._followed.every()}
        self._known, self._done = sorted(found), set(found)
        if self._disk is not None:
            try:
                missed = await self._disk.unheard(self._known)
                if len(missed) == len(self._known) >= MOST:
                    await self._disk.purge(None, None, None, dry_run=False)
                else:
                    for name in missed:
                        purge = _of(found[name])
                        for tenant in purge.owners():
                            await self._disk.purge(purge.model, tenant, _key(purge), dry_run=False)
                await self._disk.note(self._known)
            except CacheUnavailable as error:
                log.warning("missed purges could not be applied to the disk: %s", error)
                self._disk.shut("purges of other replicas could not be made up for")
        self._started = True
        self._followed.refresh()  # what came in between

    async def tell(self, purge: Purge, actor: str) -> bool:
        """Notes a purge that was made here; whether that worked."""
        name = f"{int(self._clock.wall() * 1000):015d}-{token_hex(4)}"
        self._own.add(name)
        try:
            await self._store.create(KIND, name, msgspec.to_builtins(purge), actor=actor)
            await self._clear()
        except GatehouseError as error:
            self._own.discard(name)
            log.warning("other replicas could not be told of a purge: %s", error.message)
            return False
        return True

    async def _clear(self) -> None:
        oldest = f"{int((self._clock.wall() - KEPT_SECONDS) * 1000):015d}"
        known = sorted(self._known)
        for name in [name for at, name in enumerate(known) if name < oldest or at < len(known) - MOST][:CLEARED]:
            try:
                await self._store.delete(KIND, name, actor="gatehouse")
            except NotFound:
                continue  # another replica was faster

    def _take(self, found: list[Resource]) -> None:
        if not self._started:
            return
        self._known = [one.name for one in found]
        fresh = [one for one in found if one.name not in self._done and one.name not in self._own]
        self._done = set(self._known)
        self._own -= self._done
        self._owner.spawn(self._make(fresh), name="purges of other replicas")

    async def _make(self, fresh: list[Resource]) -> None:
        for one in fresh:
            await self._forget(_of(one))
        if self._disk is not None:
            try:
                await self._disk.note(self._known)
            except CacheUnavailable as error:
                log.debug("purges could not be noted on disk: %s", error)  # they are made once more at the next start


def _of(one: Resource) -> Purge:
    return msgspec.convert(dict(one.body), Purge)


def _key(purge: Purge) -> bytes | None:
    return None if purge.key is None else bytes.fromhex(purge.key)
