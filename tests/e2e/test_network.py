"""Who may come from where: rules of the listeners, of tenants and of keys, with networks and countries, in one process and with workers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.telemetry.refused import PERIOD
from tests.e2e.adminapi import KEYS, admin, config, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.fakes.countries import write
from tests.waiting import until

HERE, THERE = "127.0.0.5", "127.0.0.77"


def status(gatehouse: Gatehouse, key: str, address: str, *, forwarded: str | None = None) -> int:
    """Of a chat from this address; 0: the connection was closed without an answer."""
    headers = {"authorization": f"Bearer {key}", **({} if forwarded is None else {"x-forwarded-for": forwarded})}
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}]}
    with httpx.Client(
        transport=httpx.HTTPTransport(local_address=address, verify=False), headers=headers, timeout=60, trust_env=False, verify=False
    ) as client:
        try:
            return client.post(f"{gatehouse.url}/v1/chat/completions", json=body, headers=headers).status_code
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return 0


def admin_status(gatehouse: Gatehouse, address: str, key: str = KEYS["admin"]) -> int:
    with httpx.Client(
        transport=httpx.HTTPTransport(local_address=address, verify=False), timeout=60, trust_env=False, verify=False
    ) as client:
        try:
            return client.get(f"{gatehouse.admin_url}/admin/v1/keys", headers={"authorization": f"Bearer {key}"}).status_code
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return 0


@pytest.fixture
def start(tmp_path: Path, engines: Callable[..., EngineThread]) -> Iterator[Callable[..., Gatehouse]]:
    made: list[Gatehouse] = []

    def make(*arguments: str, **parts: Any) -> Gatehouse:
        made.append(Gatehouse(tmp_path, config(tmp_path / "state", engines().port, **parts), arguments=arguments))
        return made[-1].start()

    yield make
    for gatehouse in made:
        assert gatehouse.stop() == 0, "\n".join(gatehouse.lines)


def reload(gatehouse: Gatehouse, **parts: Any) -> None:
    gatehouse.config.update(parts)
    gatehouse.file.write_text(yaml.safe_dump(gatehouse.config))
    with admin(gatehouse) as client:
        answer = client.post("/config/reload")
        assert answer.status_code in (200, 202, 204), answer.text


@pytest.mark.parametrize("workers", [0, 2])
def test_rules_of_listeners_tenants_and_keys(tmp_path: Path, start: Callable[..., Gatehouse], workers: int) -> None:
    database = tmp_path / "countries.mmdb"
    write(database, {"127.0.0.0/26": "DE", "127.0.0.64/26": "FR"})
    listen = {"networks": ["deny:127.0.0.66"], "admin_networks": ["127.0.0.0/25", "deny:127.0.0.66"], "trusted_peers": ["127.0.0.9"]}
    network = {"countries": str(database), "tenants": {"globex": ["country:FR"]}}
    gatehouse = start(*(["--workers", str(workers)] if workers else []), listen=listen, network=network)
    other = gatehouse.config["identity"]["api_keys"]["static"][1]["key"]
    assert [status(gatehouse, KEY, address) for address in (HERE, THERE, "127.0.0.66", "127.0.0.200")] == [200, 200, 0, 200]
    assert [admin_status(gatehouse, address) for address in (HERE, "127.0.0.66", "127.0.0.200")] == [200, 0, 0]
    assert [status(gatehouse, other, address) for address in (HERE, THERE, "127.0.0.200")] == [401, 200, 401]
    # Behind a trusted proxy it is the client that counts.
    proxy = "127.0.0.9"
    assert [status(gatehouse, KEY, proxy, forwarded=address) for address in (HERE, "127.0.0.66")] == [200, 403]
    assert status(gatehouse, other, proxy, forwarded=THERE) == 200
    assert status(gatehouse, other, HERE, forwarded=THERE) == 401
    # Of a key and a tenant in the store.
    with admin(gatehouse) as client:
        assert client.post("/tenants", json={"name": "stored"}).status_code == 201
        key = client.post("/keys", json={"tenant": "stored", "models": ["*"], "cidrs": ["country:DE", "deny:127.0.0.6"]}).json()["secret"]
        assert [status(gatehouse, key, address) for address in (HERE, "127.0.0.6", THERE)] == [200, 401, 401]
        assert client.patch("/tenants/stored", json={"networks": ["deny:127.0.0.5"]}, headers={"if-match": '"1"'}).status_code == 200
        until(lambda: status(gatehouse, key, HERE) == 401, 10, "the tenant's networks")
        assert status(gatehouse, key, "127.0.0.7") == 200
        problem(client.post("/keys", json={"tenant": "stored", "models": ["*"], "cidrs": ["country:Germany"]}), 400, "invalid_value")
    until(lambda: gatehouse.metric("gatehouse_connections_refused_total", reason="network") == 3, what="the number")
    refused = until(lambda: [r for r in gatehouse.audit() if r.get("event") == "connections_refused"], 30, "the event")
    assert {r["detail"]["reason"] for r in refused} == {"network"}
    assert {peer for r in refused for peer in r["detail"]["peers"]} <= {"127.0.0.66", "127.0.0.200"}
    # A database that changes counts without a restart.
    write(database, {"127.0.0.0/26": "FR", "127.0.0.64/26": "DE"})
    until(lambda: status(gatehouse, other, HERE) == 200 and status(gatehouse, other, THERE) == 401, 30, "the new database")


def test_a_reload_changes_who_is_let_in(start: Callable[..., Gatehouse]) -> None:
    gatehouse = start()
    assert status(gatehouse, KEY, THERE) == 200
    listen = {**gatehouse.config["listen"], "networks": ["127.0.0.0/26"]}
    reload(gatehouse, listen=listen)
    assert [status(gatehouse, KEY, address) for address in (HERE, THERE)] == [200, 0]


def test_a_flood_of_refused_connections_is_a_number_and_holds_nobody_up(start: Callable[..., Gatehouse]) -> None:
    gatehouse = start(listen={"networks": ["deny:127.0.0.64/26"]})
    host, _, port = gatehouse.url.removeprefix("http://").partition(":")
    began = time.monotonic()
    for number in range(1000):
        sock = socket.create_connection((host, int(port)), timeout=60, source_address=(f"127.0.0.{64 + number % 64}", 0))
        with sock, contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert status(gatehouse, KEY, HERE) == 200
    until(lambda: gatehouse.metric("gatehouse_connections_refused_total", listener="data") == 1000, 30, "the number")
    records = [r for r in gatehouse.audit() if r.get("event") == "connections_refused"]
    assert len(records) <= 2 + (time.monotonic() - began) / PERIOD and all(len(r["detail"]["peers"]) <= 8 for r in records)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"listen": {"networks": ["country:DE"]}}, "listen.networks[0]: needs network.countries"),
        ({"network": {"tenants": {"acme": ["10.1.2.3/8"]}}}, "did you mean 10.0.0.0/8?"),
        ({"network": {"countries": "/nowhere/countries.mmdb"}}, "network.countries: the database /nowhere/countries.mmdb cannot be read"),
        ({"network": {"countries": "/etc/hostname"}}, "network.countries: /etc/hostname is no database in MaxMind's format"),
    ],
)
def test_what_cannot_be_honoured_is_a_start_up_error(tmp_path: Path, parts: dict[str, Any], expected: str) -> None:
    gatehouse = Gatehouse(tmp_path, config(tmp_path / "state", 1, **parts)).launch()
    assert gatehouse.ended() == 1
    until(lambda: any(expected in line for line in gatehouse.lines), 10, "\n".join(gatehouse.lines))


def test_a_condition_reads_the_country(start: Callable[..., Gatehouse], tmp_path: Path) -> None:
    database = tmp_path / "countries.mmdb"
    write(database, {"127.0.0.0/29": "DE", "127.0.0.64/26": "FR"})
    gatehouse = start(
        network={"countries": str(database)},
        roles={"abroad": {"permissions": ["infer:*"]}},
        bindings=[{"role": "abroad", "effect": "deny", "subjects": ["key/test"], "when": 'source.country != "DE"'}],
    )
    assert [status(gatehouse, KEY, where) for where in (HERE, THERE, "127.0.0.9")] == [200, 403, 403]
