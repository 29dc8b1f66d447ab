"""Answers that come too late: what they admitted comes back, and lets no more through than burst + rate x time between any two moments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.errors import GatehouseError, Overloaded
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.waiting import Signal
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis_network import Member, Server

RATE, BURST = 100, 50
LIMIT = LimitSpec(name="l", requests=RateSpec(rate=RATE, burst=BURST), on_failure="closed")
BUDGETED = 30
BUDGET = LimitSpec(name="b", budget=BudgetSpec(amount=BUDGETED, unit="requests", window="day"), on_failure="closed")
CI = caller("ci")


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


def pass_time(server: Server, seconds: float, *members: Member) -> None:
    server.now += int(seconds * 1_000_000)
    for member in members:
        member.pass_time(seconds)


def asked_in_vain(member: Member, server: Server, count: int, other: Member) -> None:
    """So many requests in one call, to a Redis that stands still for 5 seconds and then carries it out."""
    waiting = [member.ask(CI, request()) for _ in range(count)]
    member.turn()
    for _ in range(3):
        pass_time(server, 5 / 3, member, other)
        member.turn()
    for one in waiting:
        assert isinstance(one, Signal) and isinstance(one.error, Overloaded), "refused long ago"
    member.wire.carry()


def admitted(member: Member, count: int) -> int:
    return sum(not isinstance(member.asked(CI, request()), GatehouseError) for _ in range(count))


def test_what_drained_before_it_came_back_is_not_given_twice(server: Server) -> None:
    one, two = (Member(server, [LIMIT], seed).up() for seed in range(2))
    asked_in_vain(one, server, BURST, two)
    pass_time(server, 0.054, one, two)  # until the answer is read; without that call the bucket would have been full all the time
    assert admitted(two, 20) == 5, "what has drained of it"
    one.wire.settle()
    assert one.shared.up
    pass_time(server, 0.0001, one, two)  # nobody goes on at once
    two.clock.advance(0.021)  # what a process remembers of a refusal
    assert 44 <= admitted(two, 60) <= BURST - 5, "a bucket that was full lets its burst through, not more"


def test_it_comes_back_whole_if_nothing_has_drained(server: Server) -> None:
    one, two = (Member(server, [LIMIT], seed).up() for seed in range(2))
    asked_in_vain(one, server, BURST, two)
    one.wire.settle()
    assert admitted(two, 60) == BURST


def test_a_budget_gets_back_all_of_it(server: Server) -> None:
    """Nothing of a calendar window drains."""
    one, two = (Member(server, [BUDGET], seed).up() for seed in range(2))
    asked_in_vain(one, server, BUDGETED, two)
    pass_time(server, 1, one, two)
    assert admitted(two, 1) == 0, "all of it is charged"
    one.wire.settle()
    pass_time(server, 1, one, two)
    assert admitted(two, BUDGETED + 5) == BUDGETED
