"""What the leader of a flight (the request that caused it) holds instead of an attempt: the call goes on as long as anybody reads it, even
without the leader.

Apart from gateway.pipeline.flights, which is compiled: a compiled class has no base that is interpreted.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.ports import Attempt, AttemptResult, Call, Receiver
from gateway.pipeline.stream import AnswerRelay
from gateway.pipeline.wrapping import WrappedAttempt


class Leading(Protocol):
    """A flight (gateway.pipeline.flights.Flight), as its leader sees it."""

    def send(self, head: bytes, body: bytes, relay: AnswerRelay, first_byte_timeout: float, idle_timeout: float) -> Call: ...

    def closed(self, attempt: Attempt, result: AttemptResult) -> None: ...


class LedAttempt(WrappedAttempt):
    """A flight's attempt, as its leader sees it."""

    __slots__ = ("_flight",)

    def __init__(self, flight: Leading, attempt: Attempt) -> None:
        super().__init__(attempt, LedClient(flight, attempt.client.base_path))
        self._flight = flight

    def close(self, result: AttemptResult) -> None:
        self._flight.closed(self._attempt, result)


class LedClient:
    """The way to a flight's endpoint, for its leader."""

    __slots__ = ("_flight", "base_path")

    def __init__(self, flight: Leading, base_path: bytes) -> None:
        self._flight, self.base_path = flight, base_path

    def send(self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float) -> Call:
        assert isinstance(receiver, AnswerRelay)
        return self._flight.send(head, body, receiver, first_byte_timeout, idle_timeout)

    def forsake(self) -> None:
        """Probes tell the endpoint's own client."""

    async def aclose(self) -> None:
        """The endpoint's own client stays open."""
