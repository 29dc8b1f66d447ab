"""Processes that share limits in a real Redis, over a network and by clocks that the test moves: nothing happens by itself."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Callable
from hashlib import sha1
from typing import Any, cast

from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError
from gateway.core.ports import Reservation
from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal
from gateway.limits.redis.calls import Script
from gateway.limits.redis.limiter import Pots, RedisLimiter
from gateway.limits.redis.shared import SharedLimits
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.resp import Parser, command
from policies.limits import LimitRules, estimate
from tests.fakes.redis import TIMED, Heard


class Server:
    """The Redis, its clock, and how often it was called. truth: the time that never steps; when: what it was at a time of Redis."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._parser = Parser()
        self.now = 1_800_000_000_000_000
        self.truth = 0
        self.when: dict[int, int] = {}
        self.calls = 0

    def close(self) -> None:
        self._socket.close()

    def run(self, data: bytes) -> Any:
        self.said("SET", "{limits}now", str(self.now))
        self.calls += 1
        self.when[self.now] = self.truth
        return self._reply(data)

    def said(self, *words: str) -> Any:
        return self._reply(command(*words))

    def _reply(self, data: bytes) -> Any:
        self._socket.sendall(data)
        while not (replies := self._parser.feed(self._socket.recv(1 << 20))):
            pass
        return replies[0]


class Wire:
    """A connection: what was sent and not carried out yet, and what was answered and not read yet."""

    clogged = False

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sent: deque[tuple[bytes, Callable[[Any], None]]] = deque()
        self.answered: deque[tuple[Any, Callable[[Any], None]]] = deque()
        self.closed = False

    def send(self, data: bytes, on_reply: Callable[[Any], None]) -> None:
        if self.closed:
            on_reply(Unreachable("closed"))
        else:
            self.sent.append((data, on_reply))

    def lose(self, error: Exception) -> None:
        """What was sent may still be carried out; no answer arrives."""
        self.closed = True
        waiting = [on_reply for _, on_reply in (*self.answered, *self.sent)]
        self.answered.clear()
        self.sent = deque((data, _nobody) for data, _ in self.sent)
        for on_reply in waiting:
            on_reply(Unreachable(str(error)))

    def carry(self) -> None:
        """Redis reads one command."""
        data, on_reply = self.sent.popleft()
        self.answered.append((self._server.run(data), on_reply))

    def deliver(self) -> None:
        """The process reads one answer."""
        reply, on_reply = self.answered.popleft()
        on_reply(reply)

    def settle(self) -> None:
        while self.sent or self.answered:
            while self.sent:
                self.carry()
            while self.answered:
                self.deliver()


def _nobody(reply: Any) -> None:
    return None


class Chance:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bytes(self, n: int) -> bytes:
        return self._random.randbytes(n)

    def uniform(self) -> float:
        return self._random.random()


class Member:
    """One process. rate: how fast its clock goes, against that of Redis."""

    def __init__(self, server: Server, limits: list[LimitSpec], seed: int = 0, rate: float = 1.0, parts: int = 4) -> None:
        self.server, self.rate = server, rate
        self.clock = FakeClock(monotonic=1000.0 * (seed + 1))
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.pots = Pots("test")
        self.heard = Heard()
        self.shared = SharedLimits(
            self.pots.process,
            0.05,
            self.heard,
            lambda: parts,
            self.soon.append,
            self._later,
            clock=self.clock,
            entropy=Chance(seed),
            script=Script.of(TIMED, sha1(TIMED).hexdigest()),
        )
        self.limiter = RedisLimiter(LimitRules(limits), self.shared, self.pots, estimate=estimate)
        self.wire = Wire(server)
        self.wires = [self.wire]

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.clock.monotonic() + seconds, len(self.timers), call))

    def connect(self) -> None:
        self.wire = Wire(self.server)
        self.wires.append(self.wire)
        self.shared.connected(cast(Connection, self.wire))

    def up(self) -> Member:
        self.connect()
        self.wire.settle()
        assert self.shared.up
        return self

    def cut(self) -> None:
        """The connection breaks."""
        self.wire.lose(Unreachable("cut"))
        self.shared.disconnected(Unreachable("cut"))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds * self.rate)

    def turn(self) -> None:
        """What is due happens."""
        now = self.clock.monotonic()
        due = sorted((timer for timer in self.timers if timer[0] <= now), key=lambda timer: timer[:2])
        self.timers = [timer for timer in self.timers if timer[0] > now]
        for _, _, call in due:
            call()
        while self.soon:
            waiting, self.soon[:] = list(self.soon), []
            for call in waiting:
                call()

    def ask(self, who: Principal, request: InferenceRequest) -> Reservation | Signal[Reservation] | GatehouseError:
        try:
            return cast("Reservation | Signal[Reservation]", self.limiter.reserve(who, request))
        except GatehouseError as error:
            return error

    def asked(self, who: Principal, request: InferenceRequest) -> Reservation | GatehouseError:
        """The same, with everything that it takes, in no time."""
        found = self.ask(who, request)
        if isinstance(found, Signal):
            found.add_callback(lambda: None)
            self.turn()
            self.wire.settle()
            assert found.done
            return cast("Reservation", found.value) if found.error is None else cast(GatehouseError, found.error)
        return found
