"""The database of countries of one process: read with the configuration, and again when its file has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from gateway.core.errors import ConfigError
from gateway.core.network import Networks
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.identity.countries import CountryDatabase, State, read, state_of

log = logging.getLogger("gatehouse.network")
LOOK_SECONDS: Final = 2.0

Record = Callable[..., object]


class Countries:
    """Keeps the Networks of a process supplied. record: of events in the audit log."""

    def __init__(self, networks: Networks, record: Record) -> None:
        self.networks, self._record = networks, record
        self._path: str | None = None
        self._database: CountryDatabase | None = None
        self._seen: State | None = None
        """The file's state at the last look: one that has changed is read when it has stayed so for a while."""

    async def read(self, spec: ConfigSpec) -> CountryDatabase | None:
        """The database of a configuration; the one in use if it has not changed. Raises ConfigError."""
        path = spec.network.countries
        if path is None:
            return None
        if self._database is not None and path == self._path and await asyncio.to_thread(state_of, path) == self._database.state:
            return self._database
        return await asyncio.to_thread(read, path)

    def use(self, spec: ConfigSpec, database: CountryDatabase | None) -> None:
        self._path = spec.network.countries
        if database is not self._database:
            self._database = database
            self.networks.use(None if database is None else database.lookup)

    def watch(self, owner: TaskOwner) -> None:
        owner.every(LOOK_SECONDS, self.look, name="countries")

    async def look(self) -> None:
        """Reads a file that has changed and then stayed as it is for one round. One that cannot be used changes nothing."""
        path, used = self._path, self._database
        if path is None or used is None:
            return
        state = await asyncio.to_thread(state_of, path)
        before, self._seen = self._seen, state
        if state == used.state or state != before:
            return
        detail: dict[str, Any] = {"file": path}
        try:
            database = await asyncio.to_thread(read, path)
        except ConfigError as error:
            used.state = state or used.state  # it is looked at again when it changes
            log.error("the database of countries stays as it is: %s", error.message)
            self._record("countries_refused", "gatehouse", {**detail, "error": error.message}, outcome="failed")
            return
        if self._database is used:
            self._database = database
            self.networks.use(database.lookup)
            log.info("the database of countries was read again: %s", path)
            self._record("countries_changed", "gatehouse", {**detail, "built": database.built})
