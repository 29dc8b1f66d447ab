"""Where the stores under test keep their data: SQLite, and a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.storage import ControlStore
from tests.contract.store.place import Place
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture


@pytest.fixture(params=["sqlite", "postgresql"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    made = Place("sqlite" if server is None else server.database(), tmp_path)
    yield made
    for store in made.opened:
        await store.aclose()


@pytest.fixture
async def store(place: Place) -> ControlStore:
    return await place.open()
