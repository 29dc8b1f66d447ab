"""A simulated gateway of several workers that lease their limits: one clock, one queue of events, links that delay, stall and break.

Every message is encoded and decoded on its way. Nothing happens but in `run`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, Overloaded
from gateway.core.messages import Message
from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.core.waiting import Signal
from gateway.core.wire import WireApi
from gateway.limits.lease_book import LeaseBook
from gateway.limits.lease_messages import BookState, LeaseCall, LeaseRecall, LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.shares import Shares
from policies.limits import LimitRules, estimate


def caller(name: str) -> Principal:
    return Principal(name, "team", "api_key", ("*",))


def request(tokens: int = 0, completion: int = 0, model: str = "m") -> InferenceRequest:
    return InferenceRequest(WireApi("chat"), b"/", model, {}, None, prompt_tokens=tokens, max_tokens=completion)


class Party:
    """A process: what happens in it happens in order, and not while it is stopped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive, self.stopped = True, False
        self.missed: list[Callable[[], None]] = []

    def call(self, action: Callable[[], None]) -> None:
        if self.stopped:
            self.missed.append(action)
        elif self.alive:
            action()

    def go_on(self) -> None:
        self.stopped = False
        missed, self.missed = self.missed, []
        for action in missed:
            self.call(action)

    def soon(self, action: Callable[[], None]) -> None:
        self.world.at(0.0, partial(self.call, action))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.at(seconds, partial(self.call, action))


class Try:
    """A request: pending, then admitted with a reservation, or refused with an error. at: when it was decided, in picoseconds. abandoned:
    it failed undecided; what a late decision charges for it is refunded."""

    def __init__(self, worker: Worker, who: str, tokens: int) -> None:
        self.worker, self.who, self.tokens = worker, who, tokens
        self.reservation: Any = None
        self.error: GatehouseError | None = None
        self.at = 0
        self.settled = self.abandoned = False

    @property
    def pending(self) -> bool:
        return self.reservation is None and self.error is None

    @property
    def under_way(self) -> bool:
        return self.reservation is not None and not self.settled and self.worker.alive

    def settle(self, usage: Usage | None) -> None:
        self.settled = True
        self.reservation.settle(usage)


class Worker(Party):
    """One worker: its shares, and the limiter of its present configuration."""

    def __init__(self, world: World, name: str, limits: Sequence[LimitSpec]) -> None:
        super().__init__(world)
        self.name = name
        self.lanes = [0.0, 0.0]
        """When the last message to the worker arrives, and the last one from it."""
        self.shares = Shares(self._send, self.soon, self.later, clock=world.clock, capacity=world.capacity)
        self.reload(limits)

    def reload(self, limits: Sequence[LimitSpec]) -> None:
        self.limiter = LeasedLimiter(LimitRules(limits), self.shares, estimate=estimate)

    def _send(self, message: Message) -> None:
        self.world.carry(self, self.world.control, message, lambda: self.world.hear(self, message))

    def hear(self, message: Message) -> None:
        if isinstance(message, LeaseReply):
            self.shares.heard(message)
        elif isinstance(message, LeaseRecall):
            self.shares.recalled(message)

    def ask(self, who: str, tokens: int = 0, completion: int = 0, model: str = "m") -> Try:
        found = Try(self, who, tokens + completion)
        try:
            reservation = self.limiter.reserve(self.world.callers.setdefault(who, caller(who)), request(tokens, completion, model))
        except GatehouseError as error:
            found.error = error
            return found
        if isinstance(reservation, Signal):
            signal = reservation

            def decided() -> None:
                found.reservation, found.error = signal.value, signal.error  # type: ignore[assignment]
                found.abandoned = isinstance(found.error, Overloaded)
                self._decided(found)

            signal.add_callback(decided)
        else:
            found.reservation = reservation
            self._decided(found)
        return found

    def _decided(self, found: Try) -> None:
        if found.reservation is not None and hasattr(found.reservation, "taken_at"):
            found.at = found.reservation.taken_at
            self.world.admitted.append(found)


class World:
    """The control process with its book, and the workers."""

    def __init__(self, limits: Sequence[LimitSpec], workers: int, *, seed: int = 0, delay: float = 0.0005, capacity: int = 10_000) -> None:
        self.clock, self.random, self.delay, self.capacity = FakeClock(), Random(seed), delay, capacity
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = self.messages = 0
        self.callers: dict[str, Principal] = {}
        self.admitted: list[Try] = []
        self.control = Party(self)
        self.limits = tuple(limits)
        self.workers: dict[str, Worker] = {}
        self.book = self._new_book()
        for _ in range(workers):
            self.start()

    def _new_book(self) -> LeaseBook:
        return LeaseBook(self._to_worker, clock=self.clock, later=self.control.later, capacity=self.capacity)

    def start(self) -> Worker:
        name = f"w{self.sequence}"
        self.sequence += 1
        worker = self.workers[name] = Worker(self, name, self.limits)
        self.book.joined(name)
        return worker

    def kill(self, worker: Worker) -> None:
        """The control process hears of it a moment later."""
        worker.alive = False
        worker.missed.clear()
        del self.workers[worker.name]
        self.at(self.delay, lambda: self.control.call(lambda: self.book.gone(worker.name)))

    def replace_control(self) -> None:
        """The control process goes on in a new image."""
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.book.hand_over()), type=BookState)
        self.book = self._new_book()
        self.book.take_over(state)

    def reload(self, limits: Sequence[LimitSpec]) -> None:
        self.limits = tuple(limits)
        for worker in self.workers.values():
            worker.reload(limits)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (self.clock.monotonic() + seconds, self.sequence, action))

    def pause(self, seconds: float, first: str = "control", alone: bool = False) -> None:
        """The whole gateway stands still for so long. first: which goes on first, "worker" or "control"; alone: only these stood still."""
        parties: list[Party] = [*self.workers.values(), self.control]
        if alone:
            parties = [one for one in parties if (one is self.control) == (first == "control")]
        elif first == "control":
            parties.reverse()
        for one in parties:
            one.stopped = True
        self.run(seconds)
        for one in parties:
            one.go_on()

    def carry(self, link: Worker, receiver: Party, message: Message, action: Callable[[], None]) -> None:
        """In order, each with a delay of its own."""
        self.messages += 1
        data = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(data, type=type(message)) == message
        lane = int(receiver is not link)
        arrives = link.lanes[lane] = max(link.lanes[lane], self.clock.monotonic() + self.random.uniform(0.2, 1.8) * self.delay)
        self.at(arrives - self.clock.monotonic(), partial(receiver.call, action))

    def hear(self, worker: Worker, message: Message) -> None:
        assert isinstance(message, LeaseCall)
        self.book.heard(worker.name, message)

    def _to_worker(self, name: str, message: Message) -> None:
        if (worker := self.workers.get(name)) is not None:
            self.carry(worker, worker, message, partial(worker.hear, message))

    def run(self, seconds: float) -> None:
        """Lets so much time pass, with everything that happens in it."""
        end = self.clock.monotonic() + seconds
        while self.events and self.events[0][0] <= end:
            when, _, action = heapq.heappop(self.events)
            self.clock.advance(max(0.0, when - self.clock.monotonic()))
            action()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
