"""Keys of the store against running gateways: made, used, revoked, rotated; in one process and across two replicas on one PostgreSQL."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from admin.rechecking import CHECK_SECONDS
from gateway.core.storage import ControlStore, KeySettings
from gateway.identity import keys
from gateway.store.store import Store
from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

T = TypeVar("T")
PEPPER = "a pepper that two replicas share in the tests"
ANY = KeySettings(models=("*",))


class Replicas:
    """Gateways that share a store, and the store as an operator's tool reaches it: from a process of its own."""

    def __init__(self, url: str, directory: Path, gateways: list[Gatehouse]) -> None:
        self.url, self.directory, self.gateways = url, directory, gateways

    def store(self, work: Callable[[ControlStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = Store(self.url, self.directory, keys, given_pepper=PEPPER)
            await store.start()
            try:
                return await work(store)
            finally:
                await store.aclose()

        return asyncio.run(run())

    def make_key(self, settings: KeySettings = ANY, **options: Any) -> tuple[str, str]:
        record, secret = self.store(lambda store: store.create_key("acme", settings, actor="test", **options))
        return record.id, secret.reveal()

    def statuses(self, key: str) -> list[int]:
        return [gateway.chat(key=key).status_code for gateway in self.gateways]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Replicas]:
    """One gateway on SQLite; two on one PostgreSQL."""
    directory = tmp_path_factory.mktemp(request.param)
    url, count = "sqlite", 1
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url, count = server.database(), 2
    gateways = []
    for number in range(count):
        (directory / f"g{number}").mkdir()
        config = configuration(
            directory / f"g{number}" / "state",
            engines=[external("fake", engine.port, slots=64)],
            models=[{"name": "m1", "pool": ["fake"]}, {"name": "m2", "pool": ["fake"]}],
            store={"url": url},
        )
        gateways.append(Gatehouse(directory / f"g{number}", config, {"GATEHOUSE_PEPPER": PEPPER}))
    try:
        for gateway in gateways:
            gateway.start()
        yield Replicas(url, gateways[0].state_dir, gateways)
    finally:
        codes = [gateway.stop() for gateway in gateways if gateway.process is not None]
    assert codes == [0] * count, [line for gateway in gateways for line in gateway.lines]


def test_a_key_made_in_the_store_is_good_everywhere(replicas: Replicas) -> None:
    _, key = replicas.make_key(KeySettings(models=("m1",)))
    assert replicas.statuses(key) == [200] * len(replicas.gateways)
    gateway = replicas.gateways[0]
    assert gateway.chat(key=key, model="m2").status_code in (403, 404)
    answer = gateway.chat(key=key)
    assert gateway.outcome(answer.headers["x-request-id"])["tenant"] == "acme"


def test_a_revoked_key_is_refused_everywhere(replicas: Replicas) -> None:
    id, key = replicas.make_key()
    assert replicas.statuses(key) == [200] * len(replicas.gateways)
    replicas.store(lambda store: store.revoke_key(id, actor="test"))
    for gateway in replicas.gateways:
        until(lambda gateway=gateway: gateway.chat(key=key).status_code == 401, what="the refusal")
    error = errors_of(replicas.gateways[-1].chat(key=key))
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_an_administrators_key_that_is_revoked_ends_what_goes_on_with_it(replicas: Replicas) -> None:
    id, key = replicas.make_key(KeySettings(models=(), roles=("admin",)))
    gateway = replicas.gateways[-1]
    body = b'{"name": "made-by-a-revoked-key"}'
    head = "POST /admin/v1/tenants HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    host, _, port = gateway.admin_url.removeprefix("http://").partition(":")
    with admin(gateway, key=key) as client, socket.create_connection((host, int(port)), timeout=60) as begun:
        begun.sendall(f"{head}authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body[:9])
        began = time.monotonic()
        with client.stream("GET", "/events", params={"kind": "nothing"}) as events:
            lines = events.iter_lines()
            assert next(lines) == ": connected"
            replicas.store(lambda store: store.revoke_key(id, actor="test"))
            assert [line for line in lines if line and not line.startswith(":")] == [
                "event: refused",
                'data: {"code":"invalid_api_key","detail":"The credential is not valid."}',
            ]
        until(lambda: time.monotonic() - began > CHECK_SECONDS, what="the time after which rights are looked at again")
        begun.sendall(body[9:])
        answer = b"".join(iter(lambda: begun.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    assert not [one for one in gateway.audit() if one.get("event") == "admin.tenants.create"], "nothing was made"


def test_a_key_that_was_unknown_is_good_once_it_is_made(replicas: Replicas) -> None:
    """An unknown key is remembered as unknown; making a key forgets that on every replica."""

    class Known:
        def generate(self, entropy: object) -> str:
            return key

        fingerprint = staticmethod(keys.fingerprint)

    key = keys.generate(Store("sqlite", replicas.directory, keys, given_pepper=PEPPER)._entropy)
    assert replicas.statuses(key) == [401] * len(replicas.gateways)

    async def make() -> None:
        store = Store(replicas.url, replicas.directory, Known(), given_pepper=PEPPER)
        await store.start()
        await store.create_key("acme", ANY, actor="test")
        await store.aclose()

    asyncio.run(make())
    for gateway in replicas.gateways:
        until(lambda gateway=gateway: gateway.chat(key=key).status_code == 200, what="the new key")


def test_rotation_lets_both_secrets_work_until_the_overlap_ends(replicas: Replicas) -> None:
    id, first = replicas.make_key()
    assert set(replicas.statuses(first)) == {200}
    _, second = replicas.store(lambda store: store.rotate_key(id, actor="test", overlap=3600))
    assert set(replicas.statuses(second.reveal())) == {200} == set(replicas.statuses(first))
    _, third = replicas.store(lambda store: store.rotate_key(id, actor="test", overlap=0.5))
    for former in (first, second.reveal()):
        for gateway in replicas.gateways:
            until(lambda gateway=gateway, former=former: gateway.chat(key=former).status_code == 401, what="the end of the overlap")
    assert set(replicas.statuses(third.reveal())) == {200}


def test_an_updated_key_has_its_new_scope(replicas: Replicas) -> None:
    id, key = replicas.make_key()
    assert set(replicas.statuses(key)) == {200}
    replicas.store(lambda store: store.update_key(id, KeySettings(models=("*",), operations=("embeddings",)), actor="test"))
    for gateway in replicas.gateways:
        until(lambda gateway=gateway: gateway.chat(key=key).status_code == 403, what="the new scope")
    replicas.store(lambda store: store.update_key(id, KeySettings(models=("*",), cidrs=("192.0.2.0/24",)), actor="test"))
    for gateway in replicas.gateways:
        until(lambda gateway=gateway: gateway.chat(key=key).status_code == 401, what="the new network")


def test_the_models_that_a_key_may_use_are_listed(replicas: Replicas) -> None:
    _, key = replicas.make_key(KeySettings(models=("m2",)))
    for gateway in replicas.gateways:
        with gateway.client(key) as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["m2"]


def test_usage_and_last_use_reach_the_store(replicas: Replicas) -> None:
    id, key = replicas.make_key()
    for _ in range(3):
        assert set(replicas.statuses(key)) == {200}
    expected = 3 * len(replicas.gateways)

    def counted() -> bool:
        report = replicas.store(lambda store: store.report_usage(("tenant", "model"), key=id))
        record = replicas.store(lambda store: store.get_key(id))
        return [(r["tenant"], r["model"], r["requests"]) for r in report] == [("acme", "m1", expected)] and record.last_used is not None

    until(counted, what="the usage")
    report = replicas.store(lambda store: store.report_usage(("key",), key=id))
    assert report[0]["prompt_tokens"] > 0 and report[0]["completion_tokens"] > 0


def test_no_key_is_in_a_log(replicas: Replicas) -> None:
    _, key = replicas.make_key()
    replicas.statuses(key)
    for gateway in replicas.gateways:
        assert not any(key in line for line in gateway.lines)
        assert all(key not in file.read_text() for file in (gateway.state_dir / "audit").glob("*.jsonl"))
