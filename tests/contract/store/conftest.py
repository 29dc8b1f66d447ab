"""Where the stores under test keep their data: every row of the table, PostgreSQL with a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.storage import ControlStore
from tests.contract.store.place import Place
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.stores import migrated


def sqlite_url(request: pytest.FixtureRequest, directory: Path, empty: bool) -> str:
    if not empty:
        migrated(directory)
    return "sqlite"


def postgresql_url(request: pytest.FixtureRequest, directory: Path, empty: bool) -> str:
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.database() if empty else server.store()
    return f"{url}&connect_timeout=60"  # more than the machine may stand still


URLS: dict[str, Callable[[pytest.FixtureRequest, Path, bool], str]] = {"sqlite": sqlite_url, "postgresql": postgresql_url}
"""A database of each kind: migrated, or empty. To add a store, add one."""
KINDS = [row.name for row in OURS.stores]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with placed(URLS[request.param](request, tmp_path, False), tmp_path) as made:
        yield made


@pytest.fixture(params=KINDS)
async def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Where nothing has been migrated yet."""
    async with placed(URLS[request.param](request, tmp_path, True), tmp_path) as made:
        yield made


@asynccontextmanager
async def placed(url: str, directory: Path) -> AsyncIterator[Place]:
    made = Place(url, directory)
    try:
        yield made
    finally:
        for store in made.opened:
            await store.aclose()


@pytest.fixture
async def store(place: Place) -> ControlStore:
    return await place.open()
