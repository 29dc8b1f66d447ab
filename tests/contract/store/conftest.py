"""Where the stores under test keep their data: every row of the table, PostgreSQL with a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.storage import ControlStore
from tests.contract.store.place import Place
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture


def postgresql_url(request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("postgres")
    return f"{server.database()}&connect_timeout=60"  # more than the machine may stand still


URLS: dict[str, Callable[[pytest.FixtureRequest], str]] = {"sqlite": lambda request: "sqlite", "postgresql": postgresql_url}
"""An empty database of each kind. To add a store, add one."""


@pytest.fixture(params=[row.name for row in OURS.stores])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(URLS[request.param](request), tmp_path)
    yield made
    for store in made.opened:
        await store.aclose()


@pytest.fixture
async def store(place: Place) -> ControlStore:
    return await place.open()
