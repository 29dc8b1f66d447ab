"""Two gateways on one PostgreSQL, each a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.integration.postgres import PostgresServer
from tests.waiting import until

PEPPER = "a pepper that two replicas share in the tests"


def replica(directory: Path, port: int, url: str, *, environ: dict[str, str] | None = None, **parts: Any) -> Gatehouse:
    """One gateway over the engine at `port` and the store at `url`, not started."""
    store = {"url": url, "upstreams": ["127.0.0.0/8"], **parts.pop("store", {})}
    config = adminapi.config(directory / "state", port, store=store, **parts)
    return Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER, **(environ or {})})


@pytest.fixture(scope="module")
def replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[list[Gatehouse]]:
    """Import it, and `postgres`, into a test module. Both must end in order. They have one directory of model files."""
    server: PostgresServer = request.getfixturevalue("postgres")
    url, models = server.database(), {"directory": str(tmp_path_factory.mktemp("models"))}
    gateways = [replica(tmp_path_factory.mktemp(f"replica{number}"), engine.port, url, model_sharing=models) for number in range(2)]
    try:
        for gateway in gateways:
            gateway.launch()
        yield [gateway.await_start() for gateway in gateways]
    finally:
        codes = [gateway.stop() for gateway in gateways if gateway.process is not None]
    assert codes == [0, 0], [line for gateway in gateways for line in gateway.lines]


def converged(replicas: list[Gatehouse], condition: Callable[[Gatehouse], bool]) -> None:
    for gateway in replicas:
        until(lambda gateway=gateway: condition(gateway), what="the change")
