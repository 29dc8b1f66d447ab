"""Where names lead, asked of a real name server: records, cut answers, and servers that fail, lie and hang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.host_port import HostPort
from gateway.core.specs.fleet import DnsSpec
from gateway.transport.names import Names, Resolved, Unresolved
from tests.fakes.names import NameServer
from tests.steady import at_most, once


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer() as started:
        yield started


def resolve(server: NameServer, name: str = "vllm.test", **settings: Any) -> Resolved:
    return Names(DnsSpec(servers=(server.address,), timeout=120.0, **settings)).resolve(name, 8000)


async def asked(names: Names, name: str) -> Resolved | str:
    """What was said, or why nothing was: the deadlines here are short, and where this process stands still they pass."""
    try:
        return names.resolve(name, 80)
    except Unresolved as error:
        return error.message


def test_addresses_of_both_kinds_with_the_shortest_ttl(server: NameServer) -> None:
    server.put("vllm.test", "A", ["10.0.0.2", "10.0.0.1"], ttl=30)
    server.put("vllm.test", "AAAA", ["fd00::1"], ttl=7)
    assert resolve(server) == Resolved((HostPort("10.0.0.1", 8000), HostPort("10.0.0.2", 8000), HostPort("fd00::1", 8000)), 7.0)


def test_no_such_name_and_no_records_are_an_empty_answer(server: NameServer) -> None:
    server.put("empty.test", "TXT", ['"nothing"'])
    assert resolve(server, "gone.test").places == resolve(server, "empty.test").places == ()


def test_services_with_their_ports_and_weights_of_the_first_priority(server: NameServer) -> None:
    server.put("_http._tcp.vllm.test", "SRV", ["10 30 8001 a.test.", "10 10 8002 b.test.", "20 1 8003 spare.test."], ttl=9)
    server.put("a.test", "A", ["10.0.0.1"], ttl=60)
    server.put("b.test", "A", ["10.0.0.2"], ttl=60)
    server.put("spare.test", "A", ["10.0.0.3"], ttl=60)
    found = resolve(server, "_http._tcp.vllm.test", records="srv")
    assert found == Resolved((HostPort("10.0.0.1", 8001, 30), HostPort("10.0.0.2", 8002, 10)), 9.0)


def test_a_service_that_says_it_is_not_offered(server: NameServer) -> None:
    server.put("_http._tcp.vllm.test", "SRV", ["0 0 0 ."])
    assert resolve(server, "_http._tcp.vllm.test", records="srv").places == ()


def test_a_target_that_cannot_be_resolved_does_not_take_the_others_away(server: NameServer) -> None:
    server.put("_http._tcp.vllm.test", "SRV", ["1 1 80 a.test.", "1 1 80 nowhere.test."])
    server.put("a.test", "A", ["10.0.0.1"])
    assert resolve(server, "_http._tcp.vllm.test", records="srv").places == (HostPort("10.0.0.1", 80, 1),)


def test_an_answer_of_thousands_comes_over_tcp_and_is_bounded(server: NameServer) -> None:
    many = [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(3500)]
    server.put("vllm.test", "A", many)
    found = resolve(server, max_addresses=16)
    assert len(found.places) == 16 and found.left_out == 3500 - 16


@pytest.mark.parametrize("fault", ["servfail", "garbage", "hang", "lie"])
def test_a_server_that_fails_lies_or_hangs_is_an_error_within_the_deadline(server: NameServer, fault: str) -> None:
    server.put("vllm.test", "A", ["10.0.0.1"])
    server.fault = fault

    def taken() -> float:
        begun = time.monotonic()
        with pytest.raises(Unresolved, match=r"vllm\.test"):
            Names(DnsSpec(servers=(server.address,), timeout=0.4)).resolve("vllm.test", 8000)
        return time.monotonic() - begun

    at_most(10.0, taken)


async def test_the_second_server_is_asked_when_the_first_hangs(server: NameServer) -> None:
    server.put("vllm.test", "A", ["10.0.0.1"])
    with NameServer() as silent:
        silent.fault = "hang"
        names = Names(DnsSpec(servers=(silent.address, server.address), timeout=3.0))
        found = await once(lambda said: isinstance(said, Resolved), lambda: asked(names, "vllm.test"))
    assert isinstance(found, Resolved) and found.places == (HostPort("10.0.0.1", 80),)


async def test_what_one_kind_of_question_would_have_said_is_unknown(server: NameServer) -> None:
    server.put("vllm.test", "A", ["10.0.0.1"])
    server.silent.add("AAAA")
    names = Names(DnsSpec(servers=(server.address,), timeout=0.4))
    found = await once(lambda said: isinstance(said, Resolved), lambda: asked(names, "vllm.test"))
    assert isinstance(found, Resolved)
    assert found.places == (HostPort("10.0.0.1", 80),) and found.unknown == {6} and "AAAA of vllm.test" in found.why


async def test_targets_of_which_nothing_is_heard_hold_nobody_up_and_take_none_away(server: NameServer) -> None:
    targets = [f"t{n:02}.test" for n in range(40)]
    server.put("_http._tcp.vllm.test", "SRV", [f"1 1 80 {target}." for target in targets])
    for n, target in enumerate(targets):
        server.put(target, "A", [f"10.0.0.{n + 1}"])
    server.silent.add("AAAA")
    names = Names(DnsSpec(servers=(server.address,), timeout=0.4, records="srv"))
    service = "_http._tcp.vllm.test"
    found = await once(lambda said: isinstance(said, Resolved) and said.unknown == {6}, lambda: asked(names, service))
    assert isinstance(found, Resolved) and len(found.places) == 40
    server.silent.add("A")

    async def counted() -> tuple[Resolved | str, int]:
        before = server.asked
        return await asked(names, service), server.asked - before

    # two questions of each kind, each sent several times; 40 targets have eighty
    await once(lambda told: isinstance(told[0], str) and "of t0" in told[0] and told[1] <= 20, counted)


@pytest.mark.parametrize("name", ["a" * 64 + ".test", "..", "x" * 300])
def test_a_name_that_cannot_be_asked_for(server: NameServer, name: str) -> None:
    with pytest.raises(Unresolved):
        resolve(server, name)
