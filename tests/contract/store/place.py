"""Where one test's data are, and what opens the stores on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.core.clock import FakeClock
from gateway.core.storage import KeySettings
from gateway.identity import keys
from gateway.store.store import Store

PEPPER = "p" * 32
ANY = KeySettings(models=("*",))


class Place:
    """Where one test's data are; `open` makes one more replica of the store there."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.clock = FakeClock()
        self.opened: list[Store] = []

    def time(self, connection: Any) -> float:
        """Stands for the database's clock."""
        return self.clock.wall()

    def make(self, **options: Any) -> Store:
        store = Store(
            self.url, self.directory, keys, given_pepper=PEPPER, clock=self.clock, database_clock=self.time, **{"deadline": 30.0, **options}
        )
        self.opened.append(store)
        return store

    async def open(self, **options: Any) -> Store:
        store = self.make(**options)
        await store.start()
        return store
