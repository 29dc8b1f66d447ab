"""An outage of Redis that does not end for all processes at once: what each admitted by itself is charged, and drains once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.types import Usage
from gateway.limits.redis.held import SharedHeld
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis_network import Member, Server

RATE, BURST = 100, 50
LIMIT = LimitSpec(name="l", requests=RateSpec(rate=RATE, burst=BURST))
CI = caller("ci")
STEP = 0.02


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(Path(tmp_path_factory.mktemp("r"))).start()
    yield server
    server.stop()


@pytest.fixture
def server(redis: RedisServer) -> Iterator[Server]:
    made = Server(redis.socket)
    made.said("FLUSHALL")
    yield made
    made.close()


def hammered(server: Server, members: list[Member], seconds: float) -> int:
    """How many were admitted while all ask for more than there is."""
    found = 0
    for _ in range(round(seconds / STEP)):
        server.now += int(STEP * 1_000_000)
        for member in members:
            member.pass_time(STEP)
            member.turn()
            if not member.wire.closed:
                member.wire.settle()
        for _ in range(3):
            for member in members:
                held = member.asked(CI, request())
                if isinstance(held, SharedHeld):
                    found += 1
                    held.settle(Usage(1, 1))
    return found


@pytest.mark.parametrize("forgets", [False, True])
def test_processes_that_come_back_one_after_the_other_admit_no_more_in_the_end(server: Server, forgets: bool) -> None:
    members = [Member(server, [LIMIT], number).up() for number in range(4)]
    found = hammered(server, members, 1.0)
    for member in members:
        member.cut()
    if forgets:
        server.said("FLUSHALL")
    found += hammered(server, members, 3.0)
    together = found
    for member in members:
        member.connect()
        member.wire.settle()
        now = hammered(server, members, 0.8)
        found, together = found + now, max(together, now)
    found += hammered(server, members, 4.0)
    allowed = BURST + RATE * (1.0 + 3.0 + 4 * 0.8 + 4.0)
    assert 0.9 * allowed < found <= allowed + BURST * (1 if forgets else 0) + 4


def test_a_process_that_admitted_little_is_charged_little(server: Server) -> None:
    one, two = Member(server, [LIMIT], 1).up(), Member(server, [LIMIT], 2).up()
    for member in (one, two):
        assert isinstance(member.asked(CI, request()), SharedHeld)
        member.cut()
    hammered(server, [], 0)
    for member in (one, two):
        member.pass_time(3.0)
    server.now += 3_000_000
    held = one.asked(CI, request())
    assert isinstance(held, SharedHeld) and held.outage > 0
    two.connect()
    two.wire.settle()
    assert isinstance(two.asked(CI, request()), SharedHeld)
    one.connect()
    one.wire.settle()
    assert sum(isinstance(two.asked(CI, request()), SharedHeld) for _ in range(60)) >= 46
