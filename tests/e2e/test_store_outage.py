"""A running gateway whose database goes away: what it knows goes on, what it does not know is no "invalid key", and it heals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.core.storage import KeySettings
from gateway.identity import keys
from gateway.store.store import Store
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

PEPPER = "a pepper that two replicas share in the tests"
Launch = Callable[..., Gatehouse]


def config(directory: Path, engine: EngineThread, url: str, **parts: Any) -> dict[str, Any]:
    engines = [external("fake", engine.port, slots=64)]
    return configuration(directory / "state", engines=engines, models=[{"name": "m1", "pool": ["fake"]}], store={"url": url}, **parts)


def make_keys(url: str, directory: Path, count: int) -> list[tuple[str, str]]:
    async def run() -> list[tuple[str, str]]:
        store = Store(url, directory, keys, given_pepper=PEPPER)
        await store.start()
        made = [await store.create_key("acme", KeySettings(models=("*",)), actor="test") for _ in range(count)]
        await store.aclose()
        return [(record.id, secret.reveal()) for record, secret in made]

    return asyncio.run(run())


def revoke(url: str, directory: Path, id: str) -> None:
    async def run() -> None:
        store = Store(url, directory, keys, given_pepper=PEPPER)
        await store.start()
        await store.revoke_key(id, actor="test")
        await store.aclose()

    asyncio.run(run())


def readiness(gateway: Gatehouse) -> dict[str, Any]:
    with gateway.client(None) as client:
        found: dict[str, Any] = client.get("/readyz").json()
    return found


def test_an_outage_and_its_end(postgres: PostgresServer, launch: Launch, engine: EngineThread, tmp_path: Path) -> None:  # noqa: F811
    url = postgres.database()
    (first_id, first), (_, second), (third_id, third) = make_keys(url, tmp_path, 3)
    gateway = launch(config(tmp_path, engine, url), {"GATEHOUSE_PEPPER": PEPPER}).start()
    assert gateway.chat(key=first).status_code == gateway.chat(key=third).status_code == 200
    assert gateway.metric("gatehouse_store_available") == 1 and readiness(gateway)["store"] is True
    postgres.stop()
    try:
        until(lambda: gateway.metric("gatehouse_store_available") == 0, what="the notice of the outage")
        assert readiness(gateway) == {**readiness(gateway), "status": "ready", "store": False}
        lost = readiness(gateway)["store_lost"]
        assert "remembered keys of the store" in lost["works"] and abs(datetime.fromisoformat(lost["since"]).timestamp() - time.time()) < 60
        assert gateway.chat(key=first).status_code == gateway.chat(key=third).status_code == 200
        assert gateway.chat().status_code == 200  # a key of the configuration
        refused = gateway.chat(key=second)
        assert refused.status_code == 503 and errors_of(refused)["code"] == "store_unavailable" and "retry-after" in refused.headers
    finally:
        postgres.start()
    until(lambda: gateway.chat(key=second).status_code == 200, what="the second key")
    until(lambda: gateway.metric("gatehouse_store_available") == 1, what="the notice that it is back")
    assert readiness(gateway)["store"] is True and "store_lost" not in readiness(gateway)
    revoke(url, tmp_path, first_id)
    until(lambda: gateway.chat(key=first).status_code == 401, what="the refusal of what was revoked after the outage")

    def counted() -> bool:
        async def report() -> int:
            store = Store(url, tmp_path, keys, given_pepper=PEPPER)
            await store.start()
            rows = await store.report_usage(("tenant",), key=third_id)
            await store.aclose()
            return sum(row["requests"] for row in rows)

        return asyncio.run(report()) == 2

    until(counted, what="the usage of before and during the outage")
    assert gateway.stop() == 0


@pytest.mark.parametrize("reason", ["no server", "another pepper", "a short pepper", "no URL"])
def test_a_store_that_cannot_be_used_is_one_line_and_exit_code_1(
    postgres: PostgresServer,  # noqa: F811
    launch: Launch,
    engine: EngineThread,
    tmp_path: Path,
    reason: str,
) -> None:
    url, environ, expected = postgres.database(), {"GATEHOUSE_PEPPER": PEPPER}, ""
    match reason:
        case "no server":
            url, expected = f"postgresql://u:hunter2@/x?host={tmp_path}", "cannot be opened"
        case "another pepper":
            make_keys(url, tmp_path, 1)
            environ, expected = {"GATEHOUSE_PEPPER": "q" * 32}, "another pepper"
        case "a short pepper":
            environ, expected = {"GATEHOUSE_PEPPER": "q"}, "32 characters"
        case "no URL":
            url, expected = "mysql://u:hunter2@x", "store.url"
    gateway = launch(config(tmp_path, engine, url), environ).launch()
    assert gateway.ended() == 1
    until(lambda: any(line.startswith("error: ") for line in gateway.lines), what="the reason")
    shown = "\n".join(gateway.lines)
    assert expected in shown and "Traceback" not in shown and "hunter2" not in shown
