"""Shares of rates that are taken in advance: most requests need no call, and what all admit stays within burst + rate x time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.core.errors import GatehouseError, LimitExceeded, Overloaded
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.types import Usage
from gateway.core.waiting import Signal
from gateway.limits.bucket import Shape
from gateway.limits.redis.hand import KEPT, LIFE
from gateway.limits.redis.held import IN_HAND, SharedHeld
from gateway.limits.redis.limiter import RedisLimiter
from gateway.limits.redis.view import seen
from policies.limits import LimitRules, estimate
from tests.cluster.servers import RedisServer
from tests.fakes.leases import caller, request
from tests.fakes.redis_network import Member, Server

RATE, BURST = 1000, 500
LEASED = LimitSpec(name="l", requests=RateSpec(rate=RATE, burst=BURST), precision="leased", on_failure="closed")
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


def of(member: Member, tokens: int = 0) -> SharedHeld | GatehouseError:
    found = member.asked(CI, request(tokens))
    assert isinstance(found, SharedHeld | GatehouseError)
    return found


def warm(server: Server, *members: Member, rounds: int = 12, tokens: int = 0) -> None:
    """Requests come in quick succession until there are shares."""
    for _ in range(rounds):
        for member in members:
            held = of(member, tokens)
            assert isinstance(held, SharedHeld)
            held.settle(Usage(max(1, tokens), 0))
        after(server, 0.01, *members)


def after(server: Server, seconds: float, *members: Member) -> None:
    server.now += int(seconds * 1_000_000)
    for member in members:
        member.pass_time(seconds)
        member.turn()
        if not member.wire.closed:
            member.wire.settle()


def bucket(server: Server, member: Member, limit: LimitSpec = LEASED) -> tuple[int, int]:
    """(what is used, what of that is in hand somewhere), as operators see it."""
    shape = Shape(limit)
    raw = server.said("GET", member.pots.names.bucket(shape, ("team", "api_key", "ci")).decode())
    found = seen(shape, raw, server.now).amounts[0]
    return found.used, found.ahead


def test_most_requests_need_no_call(server: Server) -> None:
    member = Member(server, [LEASED]).up()
    warm(server, member)
    before, calls = member.shared.advance.decided, server.calls
    for _ in range(400):
        assert isinstance(of(member), SharedHeld)
        after(server, 0.002, member)
    assert member.shared.advance.decided - before > 380
    assert server.calls - calls < 60


def test_a_caller_who_comes_now_and_then_is_decided_by_redis(server: Server) -> None:
    one, two = Member(server, [LEASED], 1).up(), Member(server, [LEASED], 2).up()
    for _ in range(5):
        held = of(one)
        assert isinstance(held, SharedHeld) and held.outage == 0
        after(server, 1.5, one, two)
    assert bucket(server, two) == (0, 0)


def test_the_bucket_does_not_refill_for_what_is_in_hand(server: Server) -> None:
    one, two = Member(server, [LEASED], 1).up(), Member(server, [LEASED], 2).up()
    warm(server, one)
    pot = next(iter(one.shared.advance._held))
    assert pot.hand is not None
    out = pot.hand.amounts[0] // pot.terms.meters[0].unit
    assert out > 0
    server.now += int(0.4 * LIFE)  # enough to fill it, if nothing were out
    one.pass_time(0.4 * LIFE / 1e6)
    found = 0
    while isinstance(of(two), SharedHeld):
        found += 1
    mine = 0
    while isinstance(held := one.ask(CI, request()), SharedHeld):
        assert held.outage == IN_HAND
        mine += 1
    assert mine > 0 and found + mine <= BURST


def test_what_is_not_used_goes_back(server: Server) -> None:
    member = Member(server, [LEASED]).up()
    warm(server, member)
    assert bucket(server, member)[1] > 0
    for _ in range(4):
        after(server, 0.1, member)
    assert bucket(server, member) == (0, 0) and not member.shared.advance._held


def test_what_a_dead_process_had_expires(server: Server) -> None:
    one, two = Member(server, [LEASED], 1).up(), Member(server, [LEASED], 2).up()
    warm(server, one)
    out = bucket(server, two)[1]
    assert out > 0
    server.now += KEPT - 100_000
    assert bucket(server, two) == (out, out), "it is still out"
    server.now += 200_000
    used, ahead = bucket(server, two)
    assert ahead == 0 and used <= out


def test_a_share_is_used_while_redis_is_away_and_then_the_limit_says_what_happens(server: Server) -> None:
    member = Member(server, [LEASED]).up()
    warm(server, member)
    member.cut()
    held = of(member)
    assert isinstance(held, SharedHeld) and held.outage == IN_HAND
    member.pass_time(LIFE / 1e6)
    assert isinstance(of(member), Overloaded)


def test_a_redis_that_forgot_is_told_what_is_in_hand(server: Server) -> None:
    one, two = Member(server, [LEASED], 1).up(), Member(server, [LEASED], 2).up()
    warm(server, one)
    assert bucket(server, one)[1] > 0
    one.cut()
    server.said("FLUSHALL")
    one.connect()
    one.wire.settle()
    pot = next(iter(one.shared.advance._held))
    assert pot.hand is not None
    unit = pot.terms.meters[0].unit
    assert bucket(server, two) == (pot.hand.amounts[0] // unit, pot.hand.amounts[0] // unit)


def test_a_request_beyond_the_share_gives_it_back_and_may_have_everything(server: Server) -> None:
    limit = LimitSpec(name="l", tokens=RateSpec(rate=1000, burst=1000), precision="leased")
    member = Member(server, [limit]).up()
    warm(server, member, tokens=10)
    after(server, 0.05, member)
    assert bucket(server, member, limit)[1] > 0
    held = of(member, tokens=940)
    assert isinstance(held, SharedHeld) and held.outage == 0


def test_a_change_of_the_limit_drops_what_is_in_hand(server: Server) -> None:
    member = Member(server, [LEASED]).up()
    warm(server, member)
    member.limiter = _limiter(member, LimitSpec(name="l", requests=RateSpec(rate=1, burst=1), precision="leased"))
    found = of(member)
    assert isinstance(found, LimitExceeded)
    member.limiter = _limiter(member, LimitSpec(name="l", requests=RateSpec(rate=RATE, burst=BURST)))
    after(server, 2.0, member)
    held = of(member)
    assert isinstance(held, SharedHeld) and held.outage == 0


def _limiter(member: Member, limit: LimitSpec) -> RedisLimiter:
    return RedisLimiter(LimitRules([limit]), member.shared, member.pots, estimate=estimate)


class World:
    """Processes that ask at random, over a network that is late, with clocks that go fast or slow; they stall, die and lose connections."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.members: list[Member] = []
        self.moments: list[int] = []
        self.in_hand = 0
        self.demand = 3
        self.waiting: list[tuple[Signal[SharedHeld], Member]] = []
        self.stalled: dict[Member, int] = {}
        for _ in range(4):
            self.join()

    def join(self) -> None:
        rate = self.random.uniform(0.75, 1.3)
        self.members.append(Member(self.server, [LEASED], self.random.randrange(1 << 30), rate).up())

    def tick(self) -> None:
        passed = self.random.choice((100, 1000, 5000, 20_000))
        self.server.truth += passed
        self.server.now += passed
        for member in self.members:
            member.pass_time(passed / 1e6)
        for member in list(self.members):
            if self.stalled.get(member, 0) <= self.server.truth:
                self.run(member)
        if self.random.random() < 0.05:  # quiet while shares are out, then everybody at once
            self.demand = self.random.choice((1, 3, 3, 150))
        dice = self.random.random()
        victim = self.random.choice(self.members)
        if dice < 0.005:
            self.members.remove(victim)  # what it has sent may still be carried out
            self.join()
        elif dice < 0.02:
            self.stalled[victim] = self.server.truth + self.random.randrange(1_500_000)
        elif dice < 0.03:
            victim.cut()
        elif dice < 0.035:
            self.server.now -= self.random.randrange(3_000_000)
        for member in self.members:
            if member.wire.closed and self.random.random() < 0.1:
                member.connect()

    def run(self, member: Member) -> None:
        member.turn()
        for wire in member.wires:
            for _ in range(self.random.randrange(4)):
                if wire.sent:
                    wire.carry()
                if wire.answered and self.random.random() < 0.7:
                    wire.deliver()
        for _ in range(self.random.randrange(self.demand)):
            found = member.ask(CI, request())
            if isinstance(found, Signal):
                found.add_callback(self._decided(found))
            elif isinstance(found, SharedHeld):
                self.admitted(found)
        member.turn()

    def _decided(self, signal: Signal[SharedHeld]) -> Callable[[], None]:
        def done() -> None:
            if signal.value is not None:
                self.admitted(signal.value)

        return done

    def admitted(self, held: SharedHeld) -> None:
        """What Redis admitted it admitted then, whenever it is heard of; what was in hand is admitted now."""
        self.in_hand += held.outage == IN_HAND
        self.moments.append(self.server.truth if held.outage == IN_HAND else self.server.when[held.taken_at])
        held.settle(Usage(1, 1))


def excess(moments: list[int]) -> float:
    """By how much more than burst + rate x time was admitted between any two moments, at worst."""
    debt = worst = 0.0
    before = 0
    for moment in sorted(moments):
        debt = max(0.0, debt - (moment - before) * RATE / 1e6) + 1.0
        before = moment
        worst = max(worst, debt - BURST)
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_never_more_than_burst_and_rate_whatever_becomes_of_the_holders(server: Server, seed: int) -> None:
    world = World(server, seed)
    for _ in range(400):
        world.tick()
    assert excess(world.moments) <= 0.0
    assert world.in_hand > 100 and len(world.moments) > 1000, "it is tested at all"
