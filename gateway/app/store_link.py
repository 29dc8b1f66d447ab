"""A process's link to the store: the store itself, the API keys that the data plane remembers, the feed of changes, usage.

A request touches two things here: a look-up in the key cache and an addition to the usage. What is counted between two writes (usage,
last use) is lost when the process is killed, at most `WRITE_SECONDS` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from gateway.app.plugins import OURS, Plugins
from gateway.app.stored_engines import engine_of
from gateway.config.additions import KINDS, StoreAdditions
from gateway.core.errors import GatehouseError
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.identity.stored import USED_SECONDS, StoredKeys
from gateway.store.feed import CHANGE, RESYNC, ChangePoller
from gateway.store.pepper import VARIABLE
from gateway.store.store import Store
from gateway.telemetry.usage import UsageLedger, rows

log = logging.getLogger("gatehouse.store")

WRITE_SECONDS = 5.0
BATCH = 1000
"""Rows written in one transaction."""


class StoreLink:
    """Opens the store and keeps the process in step with it. Life: `start`, `aclose`.

    Raises ConfigError when the store's settings cannot be used.
    """

    def __init__(self, spec: ConfigSpec, environ: Mapping[str, str], feed: LocalFeed, plugins: Plugins = OURS) -> None:
        self.store = Store(spec.store.url, Path(spec.state_dir), keys, given_pepper=environ.get(VARIABLE), stores=plugins.stores)
        self._tasks = TaskOwner("store")
        self.keys = StoredKeys(self.store.find_key, self._tasks)
        self.usage = UsageLedger()
        self.poller = ChangePoller(self.store, feed, spec.store.poll_interval)
        self._used: dict[str, float] = {}
        self.additions = StoreAdditions(self.store, lambda name, body: engine_of(name, body, environ, self.store.unseal), plugins.schemas())
        self._started = self._any_key = False
        self.store.subscribe(self.poller.written)
        self.store.subscribe(self._wrote)
        self.written = 0
        """Number of the newest change that was written here."""
        feed.subscribe(self._heard)

    @property
    def has_keys(self) -> bool:
        """Whether the store has shown a key since the start, so that there is a way to log in."""
        return self._any_key

    async def start(self) -> None:
        """Brings the schema up to date and follows the changes from now on. Raises StoreUnavailable, ConfigError."""
        await self.store.start()
        await self.poller.start()
        self._any_key = bool((await self.store.list_keys(limit=1)).items)
        self._tasks.every(WRITE_SECONDS, self.write, name="write usage")
        self._started = True

    async def aclose(self) -> None:
        """Writes what was counted, and closes. Requests must have ended before."""
        await self.poller.aclose()
        await self._tasks.aclose()
        if self._started:
            await self.write(0.0)
        await self.store.aclose()

    def heard(self, number: int) -> bool:
        """Whether the change with this number, and all before it, have been published on the feed."""
        return self.poller.position >= number

    def _wrote(self, change: StoreChange) -> None:
        self.written = max(self.written, change.seq)

    def used(self, keys: Mapping[str, float]) -> None:
        """Notes the last use of keys (id to seconds since the epoch) in another process; it is written with this one's."""
        for id, moment in keys.items():
            self._used[id] = max(moment, self._used.get(id, 0.0))

    def _heard(self, change: Change) -> None:
        _, kind, payload = change
        if kind == CHANGE:
            assert isinstance(payload, StoreChange)
            if payload.kind == "keys":
                self._any_key = True
                self.keys.changed(payload.name, payload.action)
            self.additions.changed(payload.kind, payload.name)
        elif kind == RESYNC:
            self.keys.clear()
            self.additions.forget()

    async def write(self, interval: float = USED_SECONDS) -> None:
        """Writes usage and last use to the store in small transactions. What cannot be written now is kept for the next time.

        interval: seconds between two writes of one key's last use.
        """
        counts = self.usage.take()
        self._used.update(self.keys.take_used(interval))
        try:
            while counts:
                part = dict(islice(counts.items(), BATCH))
                await self.store.add_usage(rows(part))
                counts = {key: numbers for key, numbers in counts.items() if key not in part}
            while self._used:
                used = dict(islice(self._used.items(), BATCH))
                await self.store.touch_keys(used)
                for id in used:
                    del self._used[id]
        except GatehouseError as error:
            log.warning("usage could not be written yet: %s", error.message)
            self.usage.merge(counts)


def touches_configuration(change: Change) -> bool:
    """Whether a change on the feed may have changed what the store adds to the configuration."""
    _, kind, payload = change
    return kind == RESYNC or (kind == CHANGE and payload.kind in KINDS)
