"""Two replicas on one PostgreSQL and two machines that have joined both: one places, the other goes on where that is paused, and tickets of
either are good once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.adminapi import admin
from tests.e2e.harness import Gatehouse
from tests.e2e.joining import JoinedMachine, gateway_config, stop_all, token
from tests.e2e.replicas import PEPPER
from tests.e2e.test_placed_engines import ACCEPTS, PLACE, where
from tests.e2e.test_tickets import CHAT, given, outcomes, run, settled
from tests.integration.postgres import PostgresServer
from tests.integration.postgres import postgres as postgres
from tests.waiting import until


@pytest.fixture(scope="module")
def pair(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gatehouse]]:
    url, made = postgres.database(), []
    for number in range(2):
        directory = tmp_path_factory.mktemp(f"replica{number}")
        config = {**gateway_config(directory / "state", "8s", place=PLACE), "store": {"url": url}, "tickets": {"enabled": True}}
        config["machines"]["reassign"] = "1s"
        made.append(Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER}))
    try:
        for gateway in made:
            gateway.launch()
        yield [gateway.await_start() for gateway in made]
    finally:
        codes = [gateway.stop() for gateway in made if gateway.process is not None]
    assert codes == [0, 0], [line for gateway in made for line in gateway.lines]


@pytest.fixture(scope="module")
def machines(pair: list[Gatehouse], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, JoinedMachine]]:
    first, second = pair
    directory, text = tmp_path_factory.mktemp("machines"), token(first)["token"]
    made = {name: JoinedMachine(directory, name, [], accepts=ACCEPTS) for name in ("gpu-1", "gpu-2")}
    try:
        for machine in made.values():
            machine.start(first.admin_url, text, "--join", second.admin_url, "--tickets", "127.0.0.1:0")
        until(lambda: all("ready" in where(gateway).values() for gateway in pair), what="the engine at a machine")
        yield made
    finally:
        stop_all(made.values())


def serves(gateway: Gatehouse, machine: str) -> bool:
    """Whether a replica knows the engine at this machine alone, and sends requests there."""
    if where(gateway) != {machine: "ready"}:
        return False
    answer = gateway.chat(max_tokens=1)
    return answer.status_code == 200 and answer.headers["x-gatehouse-endpoint"] == f"chat@{machine}"


def placings(gateway: Gatehouse) -> list[str]:
    """The machines where this replica has placed the engine or ended it, in order."""
    told = [record for record in gateway.audit() if record.get("event") in ("engine_placed", "engine_unplaced")]
    return [f"{one['event']} {one['detail']['machine']}" for one in told]


def ticket_port(machine: JoinedMachine) -> str:
    return next(line for line in machine.lines if line.startswith("tickets: ")).rpartition(" ")[2]


def test_one_replica_places_and_both_send_requests_there(pair: list[Gatehouse], machines: dict[str, JoinedMachine]) -> None:
    name = next(iter(where(pair[0])))
    until(lambda: all(serves(gateway, name) for gateway in pair), what="requests by both")
    until(lambda: any(map(placings, pair)), what="the record")
    assert sorted(map(placings, pair)) == [[], [f"engine_placed {name}"]]


def test_a_ticket_is_good_once_over_both_and_its_own_replica_settles_it(pair: list[Gatehouse], machines: dict[str, JoinedMachine]) -> None:
    for one, other in (pair, pair[::-1]):
        ticket: dict[str, Any] = given(one)
        elsewhere = next(machine for name, machine in machines.items() if name != ticket["machine"])
        answer = run({**ticket, "address": ticket_port(elsewhere), "url": _at(ticket, elsewhere)})
        assert answer.json()["error"]["code"] == "invalid_ticket", "at another machine"
        answer = run(ticket)
        assert answer.status_code == 200, answer.text
        assert run(ticket).json()["error"]["code"] == "used_ticket"
        record = settled(one, ticket["id"])
        assert (record["outcome"], record["completion_tokens"]) == ("ok", answer.json()["usage"]["completion_tokens"])
        assert record["completion_tokens"] <= CHAT["max_tokens"] and outcomes(other, ticket["id"]) == []


def _at(ticket: dict[str, Any], machine: JoinedMachine) -> str:
    """The ticket's URL with the name in another machine's certificate."""
    parts = urlsplit(ticket["url"])
    assert parts.hostname is not None
    return f"https://{parts.hostname.replace(ticket['machine'], machine.name)}{parts.path}"


def test_a_paused_replica_is_overtaken_and_does_nothing_when_it_goes_on(pair: list[Gatehouse], machines: dict[str, JoinedMachine]) -> None:
    first = next(iter(where(pair[0])))
    second = next(name for name in machines if name != first)
    paused, other = pair if placings(pair[0]) else pair[::-1]
    before = placings(paused)
    assert paused.process is not None
    paused.process.send_signal(signal.SIGSTOP)
    try:
        machines[first].kill()
        until(lambda: where(other).get(second) == "ready" and other.chat(max_tokens=1).status_code == 200, what="the engine elsewhere")
        machines[first].start(pair[0].admin_url, None, "--join", pair[1].admin_url)
    finally:
        paused.process.send_signal(signal.SIGCONT)
    until(lambda: all(serves(gateway, second) and len(there(gateway)) == 2 for gateway in pair), what="what both know")
    assert placings(paused) == before and placings(other) == [f"engine_placed {second}"]


def there(gateway: Gatehouse) -> list[str]:
    """The machines that a replica hears."""
    with admin(gateway) as api:
        return [one["name"] for one in api.get("/machines").json()["items"] if one["state"] == "there"]
