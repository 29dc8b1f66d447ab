"""Limits in Redis as operators run it: a Redis Cluster, a user with the rights that the page names, restarts that forget, eviction."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.limits.shared import SharedLimitsPart
from gateway.core.clock import SystemEntropy
from gateway.core.errors import LimitExceeded
from gateway.core.ports import Reservation
from gateway.core.secret import Secret
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.waiting import Signal, as_future
from gateway.limits.bucket import Shape
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.limiter import RedisLimiter
from gateway.store.hints import Hint
from gateway.store.redis_hints import RedisHints
from gateway.transport.redis.resp import command
from policies.limits import LimitRules, estimate
from tests.cluster.redis_servers import RedisCluster, said
from tests.cluster.servers import ROOT, RedisServer
from tests.fakes.leases import caller, request
from tests.morning import TIMEZONE
from tests.waiting import reached

LIMITS = [
    LimitSpec(name="rate", requests=RateSpec(rate=1, per=60.0, burst=10)),
    LimitSpec(name="slots", concurrent=100),
    LimitSpec(name="budget", per="tenant", budget=BudgetSpec(amount=12, unit="requests", window="month", timezone=TIMEZONE)),
]


class Gateway:
    """What a gateway has of Redis: its limits, and what it records."""

    def __init__(self, replica: str = "", **settings: Any) -> None:
        self.spec = RedisSpec(**{"timeout": 60.0, **settings})
        self.recorded: list[tuple[str, dict[str, Any]]] = []
        self.part = SharedLimitsPart(
            self.spec, lambda event, target, detail: self.recorded.append((event, detail)), lambda: 1, lambda name: None, replica
        )
        self.limiter = RedisLimiter(LimitRules(LIMITS), self.part.shared, self.part.pots, estimate=estimate)

    async def start(self) -> Gateway:
        await self.part.start()
        await reached(lambda: self.part.shared.up and self.part._said)
        self.recorded.clear()  # a start waits for Redis for a second alone, and says so
        return self

    async def reserve(self) -> Reservation:
        found = self.limiter.reserve(caller("ci"), request())
        return await as_future(found) if isinstance(found, Signal) else found  # type: ignore[return-value]

    async def admitted(self, count: int) -> list[Reservation]:
        found = await asyncio.gather(*(self.reserve() for _ in range(count)), return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        assert all(isinstance(one, LimitExceeded) for one in errors), errors
        return [one for one in found if not isinstance(one, BaseException)]

    @property
    def port(self) -> int:
        return self.part.keeper.address.port if self.part.keeper.address is not None else 0

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.recorded]


@pytest.fixture
async def gateways() -> AsyncIterator[list[Gateway]]:
    made: list[Gateway] = []
    yield made
    for one in made:
        await one.part.aclose()


@pytest.fixture
async def server(short_path: Path) -> AsyncIterator[RedisServer]:
    made = RedisServer(short_path)
    await asyncio.to_thread(made.start)
    yield made
    await asyncio.to_thread(made.stop)


async def test_a_redis_cluster_and_a_slot_that_moves(short_path: Path, gateways: list[Gateway]) -> None:
    cluster = RedisCluster(short_path)
    try:
        await asyncio.to_thread(cluster.start)
        for server in cluster.servers:  # one of them has the keys; the other one says where they are
            gateways.append(await Gateway(url=Secret(f"redis://127.0.0.1:{server.port}"), prefix="test").start())
        held = [one for gateway in gateways for one in await gateway.admitted(4)]
        assert len(held) == 8
        assert len({gateway.port for gateway in gateways}) == 1, "the keys of all limits are on one server"
        key = (await BucketBook(gateways[1].spec).names_of(Shape(LIMITS[0])))[0].decode()
        for gateway in gateways:
            (seen,) = await BucketBook(gateway.spec).look([(Shape(LIMITS[0]), ("team", "api_key", "ci"))])
            assert seen.amounts[0].used == 8

        old = next(server for server in cluster.servers if server.port == gateways[0].port)
        new = next(server for server in cluster.servers if server is not old)
        await asyncio.to_thread(move, cluster, key, old, new)
        await gateways[0].admitted(1)  # ends its wait at the server that has the keys no more: decided here
        await reached(lambda: all(gateway.port == new.port and gateway.part.shared.up for gateway in gateways))
        for one in held:
            one.settle(None)
        await reached(lambda: not any(gateway.part.shared.busy for gateway in gateways))
        (seen,) = await BucketBook(gateways[0].spec).look([(Shape(LIMITS[0]), ("team", "api_key", "ci"))])
        assert seen.amounts[0].used == 1 and await BucketBook(gateways[1].spec).reset([key.encode()]) == 1
    finally:
        for gateway in gateways:
            await gateway.part.aclose()
        gateways.clear()
        await asyncio.to_thread(cluster.stop)


async def test_calls_follow_a_slot_while_it_moves(short_path: Path, gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transport.redis.keeper.ASKS", 600.0)  # the slot is on its way for longer on a slow machine
    cluster = RedisCluster(short_path)
    try:
        await asyncio.to_thread(cluster.start)
        gateways.append(await Gateway(url=Secret(f"redis://127.0.0.1:{cluster.servers[0].port}"), prefix="test").start())
        (gateway,) = gateways
        assert len(await gateway.admitted(4)) == 4
        key = (await BucketBook(gateway.spec).names_of(Shape(LIMITS[0])))[0].decode()
        old = next(server for server in cluster.servers if server.port == gateway.port)
        new = next(server for server in cluster.servers if server is not old)
        await asyncio.to_thread(carry, cluster, key, old, new)  # the keys are there, and the slot is not
        await gateway.admitted(1)  # is told to ask there: decided here
        await reached(lambda: gateway.port == new.port and gateway.part.shared.up)
        before = gateway.part.shared.outage.number
        assert len(await gateway.admitted(20)) == 5, "ten in all, whoever decided"
        assert gateway.part.shared.outage.number == before, "nothing was decided without Redis"
        (seen,) = await BucketBook(gateway.spec).look([(Shape(LIMITS[0]), ("team", "api_key", "ci"))])
        assert seen.amounts[0].used == 10
        await asyncio.to_thread(hand_over, cluster, key, old, new)
        assert len(await gateway.admitted(3)) == 0 and gateway.part.shared.outage.number == before
        line = gateway.part.shared.line
        assert line is not None and line.asking
        line.asking = False  # as it is after a while
        assert len(await gateway.admitted(3)) == 0 and gateway.part.shared.outage.number == before
    finally:
        for one in gateways:
            await one.part.aclose()
        gateways.clear()
        await asyncio.to_thread(cluster.stop)


def move(cluster: RedisCluster, key: str, old: RedisServer, new: RedisServer) -> None:
    """Moves the slot of a key as redis-cli does."""
    carry(cluster, key, old, new)
    hand_over(cluster, key, old, new)


def carry(cluster: RedisCluster, key: str, old: RedisServer, new: RedisServer) -> None:
    """Moves the keys of the slot."""
    slot = str(said(old.port, "CLUSTER", "KEYSLOT", key))
    ids = ids_of(cluster)
    assert said(new.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old.port]) == b"OK"
    assert said(old.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new.port]) == b"OK"
    while isinstance(keys := said(old.port, "CLUSTER", "GETKEYSINSLOT", slot, "100"), list) and keys:
        found = said(old.port, "MIGRATE", "127.0.0.1", str(new.port), "", "0", "60000", "REPLACE", "KEYS", *keys)
        assert found in (b"OK", b"NOKEY"), found


def hand_over(cluster: RedisCluster, key: str, old: RedisServer, new: RedisServer) -> None:
    """Gives the slot to the other server."""
    slot = str(said(old.port, "CLUSTER", "KEYSLOT", key))
    for server in (new, old):
        assert said(server.port, "CLUSTER", "SETSLOT", slot, "NODE", ids_of(cluster)[new.port]) == b"OK"


def ids_of(cluster: RedisCluster) -> dict[int, str]:
    names = {server.port: said(server.port, "CLUSTER", "MYID") for server in cluster.servers}
    return {port: name.decode() for port, name in names.items() if isinstance(name, bytes)}


def documented() -> list[str]:
    """The line of the page that makes the user."""
    found = re.search(r"`(ACL SETUSER gatehouse [^`]+)`", (ROOT / "docs" / "shared-limits.md").read_text())
    assert found is not None
    return found[1].split()


async def test_the_documented_user_may_do_everything_that_is_needed(server: RedisServer, gateways: list[Gateway]) -> None:
    assert await asyncio.to_thread(server.command, *documented()) == b"+OK"
    assert server.command("ACL", "SETUSER", "default", "off") == b"+OK"
    url = Secret(f"unix://gatehouse:PASSWORD@{server.socket}?db=2")
    gateways.append(await Gateway(url=url).start())
    assert len(await gateways[0].admitted(20)) == 10
    await reached(lambda: gateways[0].events == ["budget_used", "budget_used"] or gateways[0].events == ["budget_used"])
    book, shape = BucketBook(gateways[0].spec), Shape(LIMITS[0])
    names = await book.names_of(shape)
    assert len(names) == 1 and await book.reset(names) == 1
    assert len(await book.all_of(shape, 10)) == 1
    heard: list[Hint] = []
    hints = [RedisHints(RedisSpec(url=url), name, heard.append, lambda: None, SystemEntropy()) for name in ("a", "b")]
    try:
        for one in hints:
            one.start()
        await reached(lambda: all(one.sure for one in hints))
    finally:
        for one in hints:
            await one.aclose()
    for words in (
        ("ACL", "WHOAMI"),
        ("SET", "other", "x"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("PUBLISH", "other", "x"),
    ):
        assert said_on(server, "gatehouse:PASSWORD", *words).startswith(b"-NOPERM"), words


def said_on(server: RedisServer, login: str, *words: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(server.socket)
        connection.sendall(command("AUTH", *login.split(":")))
        assert connection.recv(100) == b"+OK\r\n"
        connection.sendall(command(*words))
        return connection.recv(65536)


async def test_a_redis_that_restarts_empty_begins_anew_apart_from_slots(server: RedisServer, gateways: list[Gateway]) -> None:
    gateways += [await Gateway(url=Secret(f"unix://{server.socket}")).start() for _ in range(2)]
    held = [one for gateway in gateways for one in await gateway.admitted(4)]
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    for gateway in gateways:
        await reached(lambda gateway=gateway: gateway.part.shared.up and not gateway.part.shared.busy)
    book = BucketBook(gateways[0].spec)
    rate, slots, budget = await book.look([(Shape(limit), key) for limit, key in zip(LIMITS, KEYS, strict=True)])
    assert slots.in_use == 8, "each process has told what it holds"
    assert rate.amounts[0].used == 0 and budget.amounts[0].used == 0, "what was used is forgotten"
    for one in held:
        one.settle(None)
    await reached(lambda: not any(gateway.part.shared.busy for gateway in gateways))
    assert (await book.look([(Shape(LIMITS[1]), KEYS[1])]))[0].in_use == 0
    assert len(await gateways[0].admitted(20)) == 10, "and nothing is given back that was never taken here"


KEYS = (("team", "api_key", "ci"), ("team", "api_key", "ci"), ("team",))


async def test_what_keeps_an_outage_going_is_logged_too(
    server: RedisServer, gateways: list[Gateway], caplog: pytest.LogCaptureFixture
) -> None:
    """The password was changed: the end of the connections says nothing of that."""
    with caplog.at_level(logging.WARNING, logger="gatehouse.limits"):
        assert server.command("CONFIG", "SET", "requirepass", "old") == b"+OK"
        gateways.append(await Gateway(url=Secret(f"unix://:old@{server.socket}")).start())
        caplog.clear()
        assert said_on(server, "default:old", "CONFIG", "SET", "requirepass", "new") == b"+OK\r\n"
        assert said_on(server, "default:new", "CLIENT", "KILL", "TYPE", "normal").startswith(b":")
        await reached(lambda: "WRONGPASS" in caplog.text)
        tries = [record.getMessage() for record in caplog.records]
        assert "cannot be counted" in tries[0] and "WRONGPASS" not in tries[0]
        assert said_on(server, "default:new", "CONFIG", "SET", "requirepass", "old") == b"+OK\r\n"
        await reached(lambda: gateways[0].part.shared.up)
    assert sum("WRONGPASS" in record.getMessage() for record in caplog.records) == 1
    assert gateways[0].events.count("limits_redis_lost") == 1, "it is audited once"


@pytest.mark.parametrize(("policy", "warned"), [("allkeys-lru", True), ("volatile-ttl", True), ("noeviction", False)])
async def test_a_redis_that_evicts_keys_is_warned_of(
    server: RedisServer, gateways: list[Gateway], caplog: pytest.LogCaptureFixture, policy: str, warned: bool
) -> None:
    for name, value in (("maxmemory-policy", policy), ("maxmemory", "50mb")):
        assert server.command("CONFIG", "SET", name, value) == b"+OK"
    with caplog.at_level(logging.WARNING):
        gateways.append(await Gateway(url=Secret(f"unix://{server.socket}")).start())
        await gateways[0].admitted(1)
        line = gateways[0].part.shared.line
        assert line is not None
        await line.must("PING")  # what was asked before has been answered
    assert (policy in caplog.text) == warned
    shown = {family.name: family.samples[0].value for family in gateways[0].part.collect() if family.samples}
    assert shown["gatehouse_limits_redis_evicts"] == float(warned)


async def test_replicas_show_that_they_count_whatever_their_store(
    server: RedisServer, gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.limits.shared.REMIND", 0.02)
    gateways += [await Gateway(name, url=Secret(f"unix://{server.socket}")).start() for name in ("a", "b")]
    assert server.command("EXISTS", "gatehouse:{limits}:replica:a", "gatehouse:{limits}:replica:b") == b":2", "before anything counts"
    assert server.command("FLUSHALL") == b"+OK"
    await reached(lambda: server.command("EXISTS", "gatehouse:{limits}:replica:a", "gatehouse:{limits}:replica:b") == b":2")
