"""A process's link to the store: the store itself, the API keys that the data plane remembers, the feed of changes.

A request touches one thing here: a look-up in the key cache. When a key was last used is written later: a process that is killed loses
`WRITE_SECONDS` of that at most. Usage is counted from the audit log (gateway.app.limits.usage).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from gateway.app.configuration.plugins import OURS, Plugins
from gateway.app.engines.stored import engine_of
from gateway.app.identity.logins import Logins
from gateway.config.additions import KINDS, StoreAdditions
from gateway.core.errors import GatehouseError
from gateway.core.feed import LocalFeed
from gateway.core.network import Networks
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity import keys, people
from gateway.identity.people import People
from gateway.identity.stored import USED_SECONDS, StoredKeys
from gateway.store.feed import CHANGE, RESYNC, ChangePoller
from gateway.store.pepper import VARIABLE
from gateway.store.store import Store

log = logging.getLogger("gatehouse.store")

WRITE_SECONDS = 5.0
LOGIN_SECONDS = 1.0
BATCH = 1000
"""Rows written in one transaction."""


class StoreLink:
    """Opens the store and keeps the process in step with it. Life: `start`, `aclose`.

    Raises ConfigError when the store's settings cannot be used.
    """

    def __init__(
        self, spec: ConfigSpec, environ: Mapping[str, str], feed: LocalFeed, plugins: Plugins = OURS, networks: Networks | None = None
    ) -> None:
        self.store = Store(
            spec.store.url,
            Path(spec.state_dir),
            keys,
            given_pepper=environ.get(VARIABLE),
            stores=plugins.stores,
            history=spec.store.history,
        )
        self._tasks = TaskOwner("store")
        self.people = People(self.store.find_person, self._tasks)
        self.keys = StoredKeys(self.store.find_key, self._tasks, self.people, networks=networks)
        self.logins = Logins(self.store)
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
        self._tasks.every(WRITE_SECONDS, self.write, name="write last use")
        self._tasks.every(LOGIN_SECONDS, self.write_logins, name="write logins")
        self._started = True

    async def follow_no_more(self) -> None:
        """Stops the feed of the store's changes. Call this before its subscribers close."""
        await self.poller.aclose()

    async def aclose(self) -> None:
        """Writes what was counted, and closes. Requests must have ended before."""
        await self.poller.aclose()
        await self._tasks.aclose()
        if self._started:
            await self.write(0.0)
            await self.write_logins()
        await self.store.aclose()

    def heard(self, number: int) -> bool:
        """Whether the change with this number, and all before it, have been published on the feed."""
        return self.poller.position >= number

    def _wrote(self, change: StoreChange) -> None:
        self.written = max(self.written, change.seq)
        self.additions.changed(change.kind, change.name)  # whoever reads before the feed has told

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
            elif payload.kind in people.KINDS:
                self.people.changed(payload.kind, payload.name)
            self.additions.changed(payload.kind, payload.name)
        elif kind == RESYNC:
            self.people.clear()
            self.keys.clear()
            self.additions.forget()

    async def write(self, interval: float = USED_SECONDS) -> None:
        """Writes when keys were last used, in small transactions. What cannot be written now is kept for the next time.

        interval: seconds between two writes of one key's last use.
        """
        self._used.update(self.keys.take_used(interval))
        try:
            while self._used:
                used = dict(islice(self._used.items(), BATCH))
                await self.store.touch_keys(used)
                for id in used:
                    del self._used[id]
        except GatehouseError as error:
            log.warning("when keys were used could not be written yet: %s", error.message)

    async def note_login(self, tenant: str, user: str) -> None:
        """Writes one user's login of this process now, if it has not been written. Raises StoreUnavailable."""
        self.logins.saw(self.people.take_seen())
        await self.logins.write_of(tenant, user)

    async def write_logins(self) -> None:
        """Writes the logins that were seen here and in other processes. What cannot be written now is kept for the next time."""
        self.logins.saw(self.people.take_seen())
        try:
            await self.logins.write()
        except GatehouseError as error:
            log.warning("logins could not be written yet: %s", error.message)


def touches_configuration(change: Change) -> bool:
    """Whether a change on the feed may have changed what the store adds to the configuration."""
    _, kind, payload = change
    return kind == RESYNC or (kind == CHANGE and payload.kind in KINDS)
