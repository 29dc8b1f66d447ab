"""What a process forgets of buckets that Redis keeps: nothing that it would miss while Redis is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from gateway.core.specs import BudgetSpec, LimitSpec, LoopSpec, RateSpec, RollingSpec
from gateway.core.types import Principal, Usage
from gateway.limits.bucket import SECOND
from gateway.limits.redis.held import SharedHeld
from gateway.limits.registry import LOOK
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis_network import Member, Server

DAY = 86_400.0
LIMITS = [
    LimitSpec(name="short", requests=RateSpec(rate=2, per=60.0, burst=6)),
    LimitSpec(name="long", requests=RateSpec(rate=1, per=600.0, burst=12)),
    LimitSpec(name="rolling", budget=BudgetSpec(amount=24, unit="requests", window=RollingSpec(rolling=7200.0))),
    LimitSpec(name="calendar", budget=BudgetSpec(amount=60, unit="requests", window="day")),
    LimitSpec(name="slots", concurrent=8),
    LimitSpec(name="session", per="session", session=LoopSpec(calls=40, wall_time=20_000.0)),
]
DAILY = LimitSpec(name="daily", budget=BudgetSpec(amount=8, unit="requests", window="day"))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(Path(tmp_path_factory.mktemp("r"))).start()
    yield server
    server.stop()


class Pair:
    """Two processes with the same past, each with a Redis of its own; the second one never forgets."""

    def __init__(self, redis: RedisServer, limits: list[LimitSpec], parts: int = 4) -> None:
        self.servers = [Server(redis.socket), Server(redis.socket)]
        for number, server in enumerate(self.servers):
            server.said("SELECT", str(number))
            server.said("FLUSHDB")
        self.members = [Member(server, limits, parts=parts).up() for server in self.servers]
        self.forgetful, self.other = self.members
        self.other.pots.registry._look_at = 1 << 62
        self.fillers = 0

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def pass_time(self, seconds: float) -> None:
        for server, member in zip(self.servers, self.members, strict=True):
            server.now += int(seconds * 1_000_000)
            member.pass_time(seconds)
            member.turn()
            if not member.wire.closed:
                member.wire.settle()

    def cut(self) -> None:
        for member in self.members:
            member.cut()

    def connect(self) -> None:
        for member in self.members:
            member.connect()
            member.wire.settle()
            member.turn()
            member.wire.settle()

    def ask(self, who: Principal) -> list[SharedHeld]:
        """What both got: two reservations, or none."""
        found = [member.asked(who, request()) for member in self.members]
        assert isinstance(found[0], SharedHeld) == isinstance(found[1], SharedHeld), found
        return [one for one in found if isinstance(one, SharedHeld)]

    def admitted(self, who: Principal, most: int = 100) -> int:
        """How many requests in a row."""
        for count in range(most):
            held = self.ask(who)
            if not held:
                return count
            for one in held:
                one.settle(Usage(1, 1))
        return most

    def look(self) -> int:
        """A look for pots that nobody uses, among 300 that nobody ever used; how many others it forgot."""
        registry = self.forgetful.pots.registry
        now = self.forgetful.shared.now() * 1_000_000
        shape = registry.shape(LimitSpec(name="filler", requests=RateSpec(rate=1)))
        for _ in range(300):
            self.fillers += 1
            registry.bucket(shape, (f"filler-{self.fillers}",), now)
        before = sum(key[0][:6] != "filler" for key, _ in registry.all())
        registry._look_at = now
        registry.look(now)
        return before - sum(key[0][:6] != "filler" for key, _ in registry.all())


@pytest.fixture
def limits() -> list[LimitSpec]:
    return [DAILY]


@pytest.fixture
def pair(redis: RedisServer, limits: list[LimitSpec]) -> Iterator[Pair]:
    made = Pair(redis, limits)
    yield made
    made.close()


@pytest.mark.parametrize("limits", [*[[one] for one in LIMITS], LIMITS], ids=lambda limits: "-".join(one.name for one in limits))
def test_whatever_is_forgotten_the_same_is_admitted(pair: Pair) -> None:
    """Callers who come, stay away for minutes or for days, and hold requests for hours, with Redis there and away."""
    random = Random(1)
    held: list[list[SharedHeld]] = []
    forgotten = admitted = refused = 0
    for turn in range(200):
        what = random.random()
        if what < 0.55:
            who = Principal(f"k{random.randrange(4)}", "team", "api_key", ("*",), session=f"s{turn // 25}")
            for _ in range(random.randrange(1, 9)):
                found = pair.ask(who)
                if not found:
                    refused += 1
                    continue
                admitted += 1
                held.append(found)
            for _ in range(random.randrange(len(held) + 1)):
                usage = random.choice([Usage(1, 1), None])
                for one in held.pop(random.randrange(len(held))):
                    one.settle(usage)
        elif what < 0.85:
            pair.pass_time(random.choice([0.002, 20.0, 310.0, 310.0, 700.0, 1500.0, 3000.0, 8000.0, 30_000.0, 100_000.0]))
        elif what < 0.92:
            if pair.forgetful.shared.up:
                pair.cut()
            else:
                pair.connect()
        forgotten += pair.look()
    assert forgotten > 5 and admitted > 100 and refused > 10


def test_a_spent_budget_is_not_forgotten_before_its_window_ends(pair: Pair) -> None:
    ci = caller("ci")
    assert pair.admitted(ci) == 8
    pair.pass_time(20_000.0)
    assert pair.look() == 0
    pair.cut()
    assert pair.admitted(ci) == 0
    pair.pass_time(DAY)
    assert pair.look() == 0, "Redis is away"
    pair.connect()
    assert pair.look() == 1


@pytest.mark.parametrize("limits", [[LimitSpec(name="time", per="session", session=LoopSpec(wall_time=100.0))]])
def test_a_session_that_has_lasted_too_long_is_not_forgotten_for_a_day(pair: Pair) -> None:
    who = Principal("k", "team", "api_key", ("*",), session="s")
    assert pair.admitted(who, 1) == 1
    pair.pass_time(200.0)
    assert pair.admitted(who) == 0
    pair.pass_time(2000.0)
    assert pair.look() == 0
    pair.cut()
    assert pair.admitted(who) == 0
    pair.connect()
    pair.pass_time(DAY)
    assert pair.look() == 1


def test_a_new_window_counts_for_all_pots_of_its_limit(pair: Pair) -> None:
    callers = [caller("a"), caller("b"), caller("c")]
    assert [pair.admitted(who) for who in callers] == [8, 8, 8]
    pair.pass_time(DAY)
    pair.cut()
    assert [pair.admitted(who) for who in callers] == [2, 2, 2], "one part of four"


def test_what_was_admitted_in_one_outage_counts_in_the_next(pair: Pair) -> None:
    ci = caller("ci")
    pair.cut()
    assert pair.admitted(ci) == 2
    pair.connect()
    assert pair.look() == 0
    pair.pass_time(400.0)
    assert pair.look() == 0
    pair.cut()
    assert pair.admitted(ci) == 1, "six of eight are left, one part of that is one and a half"


def test_a_pot_is_kept_while_redis_has_still_to_hear_of_it(pair: Pair) -> None:
    """A request of a day ends; its settlement waits, and with a second pot for its bucket it would go into one call with the next one."""
    ci, held = caller("ci"), pair.ask(caller("ci"))
    pair.pass_time(DAY)
    for one in held:
        one.settle(None)
    assert pair.look() == 0
    assert pair.forgetful.ask(ci, request()) is not None
    assert pair.look() == 0, "a request that was not sent yet"
    pair.forgetful.turn()
    pair.forgetful.wire.settle()
    pair.pass_time(LOOK / SECOND + 1.0)
    assert pair.look() == 0, "one request of the day's eight is used"
    pair.pass_time(DAY)
    assert pair.look() == 1


def test_callers_who_come_and_go_leave_nothing_behind(pair: Pair) -> None:
    """1,200 callers come once within three hours; a request of each is served."""
    member, most = Member(pair.servers[0], [LIMITS[0], LIMITS[4]]).up(), 0
    for number in range(1200):
        found = member.asked(caller(f"c{number}"), request())
        assert isinstance(found, SharedHeld)
        found.settle(Usage(1, 1))
        pair.servers[0].now += 10_000_000
        member.pass_time(10.0)
        member.turn()
        member.wire.settle()
        most = max(most, len(member.pots.registry), len(member.limiter._memo))
    assert most <= 600


@pytest.mark.parametrize("limits", [[LIMITS[0], DAILY]])
def test_where_there_are_too_many_the_drained_go_first_and_in_an_outage_they_alone(pair: Pair) -> None:
    """Twenty callers use six of the day's eight requests. Their other bucket is full again after three minutes."""
    registry = pair.forgetful.pots.registry
    registry.capacity = registry._sweep_at = 40
    early = [caller(f"early{n}") for n in range(20)]
    for who in early:
        assert pair.admitted(who) == 6
    pair.pass_time(200.0)
    assert pair.admitted(caller("late"), 1) == 1
    left = [bucket.shape.name for _, bucket in registry.all()]
    assert left.count("daily") == 21 and left.count("short") == 11, "a quarter of the capacity is made free"
    pair.cut()
    for number in range(60):
        assert pair.admitted(caller(f"away{number}")) == 1
    for who in early:
        assert pair.admitted(who) == 0
    assert len(registry) > 40, "the table grows"
    pair.connect()
    pair.pass_time(200.0)
    for number in range(20):
        assert pair.admitted(caller(f"last{number}"), 1) == 1
    assert len(registry) <= 60, "while Redis is there, it knows of the others"
