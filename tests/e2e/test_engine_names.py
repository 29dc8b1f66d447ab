"""Engines behind a name: addresses come, go and lie while requests flow, over a real name server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.adminapi import KEYS, admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration
from tests.fakes.names import NameServer
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import until

Launch = Callable[..., Gatehouse]
NAME = "engine.test"


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer() as server:
        yield server


@pytest.fixture
def two(engines: Callable[..., EngineThread]) -> tuple[EngineThread, EngineThread]:
    """Engines at one port of two addresses."""
    first = engines()
    return first, engines(host="127.0.0.2", port=first.port)


def config(state_dir: Path, names: NameServer, url: str, dns: dict[str, Any] | None = None, **engine: Any) -> dict[str, Any]:
    following = {
        "servers": [names.address],
        "min_ttl": "100ms",
        "max_ttl": "200ms",
        "timeout": "30s",
        "networks": ["127.0.0.0/8"],
        **(dns or {}),
    }
    far = {"name": "far", "runtime": "external", "url": url, "dns": following, "health": {"interval": 0.1}, **engine}
    made = configuration(state_dir, engines=[far], models=[{"name": "m1", "pool": ["far"], "routing": {"policy": "round_robin"}}])
    made["identity"]["api_keys"]["static"].append({"id": "op", "key": KEYS["admin"], "tenant": "acme", "models": [], "roles": ["admin"]})
    return made


def states(gatehouse: Gatehouse) -> dict[str, str]:
    with admin(gatehouse) as api:
        return {one["name"]: one["state"] for one in api.get("/endpoints").json()["items"]}


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["one process", "workers"])
def test_addresses_come_and_go_while_requests_flow(
    tmp_path: Path, names: NameServer, two: tuple[EngineThread, EngineThread], arguments: list[str]
) -> None:
    one = two[0]
    first, second = f"far@127.0.0.1:{one.port}", f"far@127.0.0.2:{one.port}"
    names.put(NAME, "A", ["127.0.0.1"])
    with Gatehouse(tmp_path, config(tmp_path / "state", names, f"http://{NAME}:{one.port}/v1"), arguments=arguments) as gatehouse:
        asked: set[str] = set()

        def ask() -> str:
            answer = gatehouse.chat()
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-gatehouse-endpoint"] == "far", "a name, never an address"
            asked.add(where := gatehouse.outcome(answer.headers["x-request-id"])["endpoint"])
            return str(where)

        assert ask() == first
        assert one.received[0].header("host") == f"{NAME}:{one.port}", "the engine is asked by its name"
        names.put(NAME, "A", ["127.0.0.1", "127.0.0.2"])
        until(lambda: ask() == second, what="requests at the new address")
        assert asked == {first, second}
        assert states(gatehouse) == {first: "ready", second: "ready"}

        names.fault = "servfail"
        before = names.asked
        until(lambda: names.asked >= before + 6, what="questions without an answer")
        assert {ask() for _ in range(8)} == {first, second}, "what is known serves on"
        names.fault = "nxdomain"
        before = names.asked
        until(lambda: names.asked >= before + 6, what="answers that there is no such name")
        assert {ask() for _ in range(8)} == {first, second}, "nothing is dropped at once"

        names.fault = ""
        names.put(NAME, "A", ["127.0.0.2"])
        until(lambda: ask() and set(states(gatehouse)) == {second}, what="the end of the address that is no longer named")
        until(lambda: {ask() for _ in range(4)} == {second}, what="requests at what is left")
        events = {record.get("event") for record in gatehouse.audit()}
        assert {"addresses_changed", "addresses_unresolved"} <= events
        assert 'gatehouse_dns_addresses{engine="far"} 1.0' in gatehouse.metrics()


def test_a_name_that_has_no_address_yet_is_no_healthy_endpoint_and_serves_when_it_has(
    tmp_path: Path, names: NameServer, engine: EngineThread, launch: Launch
) -> None:
    names.fault = "hang"
    with launch(config(tmp_path / "state", names, f"http://{NAME}:{engine.port}", {"timeout": "300ms"})) as gatehouse:
        until(lambda: states(gatehouse) == {"far": "unhealthy"}, what="the state of the engine")
        assert gatehouse.chat().status_code == 503
        names.put(NAME, "A", ["127.0.0.1"])
        names.fault = ""
        until(lambda: gatehouse.chat().status_code == 200, what="an answer")
        assert states(gatehouse) == {f"far@127.0.0.1:{engine.port}": "ready"}


def test_certificates_are_verified_by_the_name_and_not_by_the_address(
    tmp_path: Path, names: NameServer, engines: Callable[..., EngineThread], launch: Launch
) -> None:
    certificates = Certificates(tmp_path)
    engine = engines(tls=certificates.server_context())
    names.put(NAME, "A", ["127.0.0.1"])
    names.put("other.test", "A", ["127.0.0.1"])
    names.put("_llm._tcp.engine.test", "SRV", [f"0 5 {engine.port} far-away.test."])
    names.put("far-away.test", "A", ["127.0.0.1"])
    settings = config(tmp_path / "state", names, f"https://{NAME}:{engine.port}", tls={"ca": certificates.ca})
    wrong = {**settings["engines"][0], "name": "wrong", "url": f"https://other.test:{engine.port}"}
    service = {**settings["engines"][0], "name": "service", "url": "https://_llm._tcp.engine.test"}
    service["dns"] = {**service["dns"], "records": "srv"}
    settings["engines"] += [wrong, service]
    settings["models"] += [{"name": "m2", "pool": ["wrong"]}, {"name": "m3", "pool": ["service"]}]
    with launch(settings) as gatehouse:
        assert gatehouse.chat(model="m1").status_code == 200
        assert gatehouse.chat(model="m3").status_code == 200
        assert engine.received[-1].header("host") == "engine.test"
        assert gatehouse.chat(model="m2").status_code in (502, 503)
        until(lambda: states(gatehouse)[f"wrong@127.0.0.1:{engine.port}"] != "ready", what="the notice")


def test_a_name_never_leads_to_this_machine_unless_it_may(
    tmp_path: Path, names: NameServer, engines: Callable[..., EngineThread], launch: Launch
) -> None:
    engine = engines()
    names.put(NAME, "A", ["127.0.0.1", "169.254.169.254"])
    with launch(config(tmp_path / "state", names, f"http://{NAME}:{engine.port}", {"networks": []})) as gatehouse:
        until(lambda: states(gatehouse) == {"far": "unhealthy"}, what="the state of the engine")
        seen = len(engine.engine.requests)
        assert gatehouse.chat().status_code == 503
        assert len(engine.engine.requests) == seen == 0, "nothing, not even a probe, was sent there"
        with admin(gatehouse) as api:
            assert "2 of 2 addresses" in api.get("/engines/far").json()["reason"]
        until(lambda: any("WARNING" in line and "2 of 2 addresses" in line for line in gatehouse.lines), what="the warning")


def test_an_answer_of_thousands_is_bounded_and_the_gateway_answers_meanwhile(
    tmp_path: Path, names: NameServer, engine: EngineThread, launch: Launch
) -> None:
    names.put(NAME, "A", ["127.0.0.1"])
    with launch(config(tmp_path / "state", names, f"http://{NAME}:{engine.port}", {"max_addresses": 4})) as gatehouse:
        assert gatehouse.chat().status_code == 200
        names.put(NAME, "A", [f"127.1.{n // 256}.{n % 256}" for n in range(1, 3000)])
        until(lambda: len(states(gatehouse)) > 1, what="the flood of addresses")
        until(lambda: gatehouse.chat().status_code == 200, what="an answer, once those are known to refuse where nobody listens")
        assert len(states(gatehouse)) <= 8
