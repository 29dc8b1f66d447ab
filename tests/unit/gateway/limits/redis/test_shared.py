"""One process's conversation with Redis, step by step: what is said once, when it is tried again, what is kept meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.waiting import Signal
from gateway.limits.redis import shared
from gateway.limits.redis.bounds import LONGEST_PROBE, PROBE
from gateway.limits.redis.calls import Note
from gateway.limits.redis.limiter import Pots, RedisLimiter
from gateway.limits.redis.shared import SharedLimits
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.resp import RedisError
from policies.limits import LimitRules, estimate
from tests.fakes.leases import caller, request
from tests.fakes.redis import Heard

CLOSED = LimitSpec(name="l", requests=RateSpec(rate=100), on_failure="closed")


class Chance:
    """Entropy whose numbers are given."""

    def __init__(self, number: float) -> None:
        self.number = number

    def bytes(self, n: int) -> bytes:
        return b"\x01" * n

    def uniform(self) -> float:
        return self.number


class Line:
    """A connection: what is sent on it, and what is said to that."""

    clogged = False

    def __init__(self) -> None:
        self.sent: list[Callable[[Any], None]] = []
        self.lost: list[Exception] = []

    def send(self, data: bytes, on_reply: Callable[[Any], None]) -> None:
        self.sent.append(on_reply)

    def lose(self, error: Exception) -> None:
        self.lost.append(error)

    def reply(self, answer: Any) -> None:
        self.sent.pop(0)(answer)


class Process:
    """The conversation, with timers that run when the test says so."""

    def __init__(self, number: float = 0.0) -> None:
        self.clock, self.heard = FakeClock(), Heard()
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.pots = Pots("test")
        self.shared = SharedLimits(
            self.pots.process,
            0.05,
            self.heard,
            lambda: 2,
            self.soon.append,
            lambda seconds, call: self.timers.append((seconds, call)),
            clock=self.clock,
            entropy=Chance(number),
        )
        self.line = Line()
        self.limiter = RedisLimiter(LimitRules([CLOSED]), self.shared, self.pots, estimate=estimate)

    def connect(self) -> None:
        self.shared.connected(cast(Connection, self.line))

    def turn(self) -> None:
        waiting, self.soon = self.soon, []
        for call in waiting:
            call()

    def run(self, most: float = 0.1) -> None:
        """The timers of so many seconds at most, once."""
        due = [timer for timer in self.timers if timer[0] <= most]
        self.timers = [timer for timer in self.timers if timer[0] > most]
        for _, call in due:
            call()

    def probes(self, count: int) -> list[float]:
        """The pauses before so many tries, each of which Redis refuses."""
        found = []
        for _ in range(count):
            self.line.reply(RedisError("LOADING it is"))
            seconds, call = next(timer for timer in reversed(self.timers) if getattr(timer[1], "__name__", "") == "_probe_due")
            found.append(seconds)
            self.timers.clear()
            call()
        return found


def test_tries_become_rare_and_one_is_under_way_at_a_time() -> None:
    process = Process(number=1.0)
    process.connect()
    assert len(process.line.sent) == 1
    pauses = process.probes(8)
    assert pauses == [min(LONGEST_PROBE, PROBE * 2**number) for number in range(8)]
    assert len(process.line.sent) == 1 and process.heard.said == ["LOADING it is"], "said once"


def test_processes_do_not_come_back_in_one_moment() -> None:
    first: list[float] = []
    for number in range(11):
        process = Process(number / 10)
        process.connect()
        first.append(process.probes(6)[-1])
    assert first == sorted(first) and len(set(first)) == 11
    assert first[-1] - first[0] == pytest.approx(LONGEST_PROBE / 2), "spread over half of the pause"


def test_nobody_waits_once_redis_was_late() -> None:
    process = Process()
    process.connect()
    process.shared.up = True
    process.line.sent.clear()
    process.shared._sent.clear()
    waiting = [process.limiter.reserve(caller("ci"), request()) for _ in range(3)]
    process.turn()
    assert len(process.line.sent) == 1, "one call for all"
    process.clock.advance(0.06)
    process.shared._judge()
    for signal in waiting:
        assert isinstance(signal, Signal) and isinstance(signal.error, Overloaded)
    assert process.shared.late == 1 and not process.shared.up
    with pytest.raises(Overloaded):
        process.limiter.reserve(caller("ci"), request())
    assert len(process.line.sent) == 1, "nothing more is asked until the answer has come"
    process.line.reply(Unreachable("gone"))
    assert process.heard.said == ["it does not answer in time"] and not process.line.lost


def test_nobody_waits_longer_soon_after_redis_was_late() -> None:
    """While a connection hangs, it is looked at now and then. If it comes back and stops again, the next request's time counts."""
    process = Process()
    process.connect()
    process.clock.advance(0.06)
    process.run()  # the call is due
    process.run()  # and late
    assert process.shared.late == 1
    process.line.reply(msgspec.msgpack.encode([1_900_000_000_000_000]))
    process.run()  # another try, which is answered in time
    process.line.reply(msgspec.msgpack.encode([1_900_000_000_000_000]))
    assert process.shared.up
    signal = process.limiter.reserve(caller("ci"), request())
    process.turn()
    process.clock.advance(0.051)
    process.run(0.05)
    process.run(0.05)
    assert isinstance(signal, Signal) and isinstance(signal.error, Overloaded)


def test_a_connection_that_hangs_is_given_up() -> None:
    process = Process()
    process.connect()
    process.clock.advance(0.06)
    process.shared._judge()
    assert not process.line.lost, "it may only be slow"
    process.clock.advance(shared.HANGING / 1_000_000)
    process.shared._judge()
    assert len(process.line.lost) == 1


def test_what_cannot_be_told_is_bounded() -> None:
    process = Process()
    open_ = RedisLimiter(
        LimitRules([LimitSpec(name="s", concurrent=100, on_failure="local")]), process.shared, process.pots, estimate=estimate
    )
    held: list[Any] = [open_.reserve(caller("ci"), request()) for _ in range(9)]
    process.shared.outage.end(0, 0)
    process.shared._notes.extend([Note(held[0].parts[0].pot, 0, 0, [])] * (shared.MOST_KEPT - 5))
    for one in held:
        one.settle(None)
    assert process.shared.dropped == 4
