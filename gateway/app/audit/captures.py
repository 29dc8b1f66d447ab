"""Debug captures: one API key's prompts and answers kept for a while, on every worker of every replica, encrypted like all texts.

A capture is in the store until it is over. It ends by itself: each process compares its own clock, and nobody needs to take it back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gateway.app.store.following import Followed
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import AlreadyExists, GatehouseError, NotFound, StoreUnavailable, VersionMismatch
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner

KIND: Final = "captures"
LONGEST: Final = 3600.0
"""Seconds that a capture may last."""
MAX_TRIES: Final = 5
Record = Callable[..., None]


class Captures:
    """Life: `start`, then `heard` for the feed and `clear` now and then. until: by the key's id. changed: called with all of them."""

    def __init__(self, store: ControlStore, record: Record, owner: TaskOwner, clock: Clock | None = None) -> None:
        self._store, self._record = store, record
        self._clock: Clock = clock or SystemClock()
        self._followed = Followed(store, KIND, self._read, owner)
        self.start, self.heard, self.every = self._followed.start, self._followed.heard, self._followed.every
        self.until: dict[str, float] = {}
        self.changed: list[Callable[[dict[str, float]], None]] = []

    def _read(self, found: list[Resource]) -> None:
        self._tell({one.name: float(one.body["until"]) for one in found})

    def _tell(self, found: dict[str, float]) -> None:
        if found != self.until:
            self.until = found
            for tell in self.changed:
                tell(found)

    async def begin(self, key: str, tenant: str, seconds: float, reason: str, actor: str, *, dry_run: bool = False) -> Resource:
        """From now on, for so many seconds; a capture that runs is replaced. Raises StoreUnavailable."""
        until = self._clock.wall() + min(seconds, LONGEST)
        body: dict[str, Any] = {"until": until, "reason": reason}
        made = await self._written(key, body, tenant, actor, dry_run)
        if not dry_run:
            self._tell({**self.until, key: until})
            self._record("audit.capture_began", f"key/{key}", {"reason": reason, "until": until, "tenant": tenant}, actor=actor)
        return made

    async def _written(self, key: str, body: dict[str, Any], tenant: str, actor: str, dry_run: bool) -> Resource:
        for _ in range(MAX_TRIES):
            with suppress(AlreadyExists):
                return await self._store.create(KIND, key, body, actor=actor, tenant=tenant, dry_run=dry_run)
            with suppress(NotFound):  # its time was over, and another replica has just deleted it
                return await self._store.update(KIND, key, body, actor=actor, tenant=tenant, dry_run=dry_run)
        raise StoreUnavailable("The capture changes too often.", retry_after=1.0)

    async def end(self, key: str, actor: str, *, dry_run: bool = False) -> Resource:
        """Ends a capture before its time. Raises NotFound, StoreUnavailable."""
        gone = await self._store.delete(KIND, key, actor=actor, dry_run=dry_run)
        if not dry_run:
            self._tell({name: until for name, until in self.until.items() if name != key})
            self._record("audit.capture_ended", f"key/{key}", {"why": "taken back", "tenant": gone.tenant}, actor=actor)
        return gone

    async def clear(self) -> None:
        """Deletes those that are over. A store that does not answer is left to the next time."""
        now = self._clock.wall()
        for key, until in list(self.until.items()):
            if until > now:
                continue
            try:
                found = await self._store.get(KIND, key)
                if float(found.body["until"]) > now:
                    continue  # it was replaced elsewhere, and is about to be heard of
                gone = await self._store.delete(KIND, key, actor="gatehouse", version=found.version)
            except (NotFound, VersionMismatch):
                continue  # another replica was faster
            except GatehouseError:
                return
            self._record("audit.capture_ended", f"key/{key}", {"why": "its time is over", "tenant": gone.tenant})
