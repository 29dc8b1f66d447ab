"""A race: one try of an exchange at up to two endpoints (gateway.pipeline.hedges says which tries are one).

To the exchange it is one attempt and one call: a retry, a flight or what else wraps attempts sees nothing of it. It is won by the first
byte of an answer; the other call is cancelled then, whose slot is free at once and which says nothing about its engine. A side that fails,
or answers that it cannot, leaves the race to the other one.

Nearly all races have one side only. Until there is a second one, the race itself is the receiver of the first call, and no side is made.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final, Protocol

from gateway.core.errors import EngineError
from gateway.core.ports import Attempt, AttemptResult, Call, Receiver
from gateway.core.prices import SlotTime
from gateway.core.types import InferenceRequest, ResponseHead
from gateway.pipeline.attempt import note_full, note_lost, result_of, upstream_head
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.flights import FULL
from gateway.pipeline.queueing import note_route


class Hedging(Protocol):
    """What a race asks of the model's settings and figures (gateway.pipeline.hedges.Hedge)."""

    learns: bool
    """Whether it wants to be told how long first attempts take."""

    def delay(self, request: InferenceRequest) -> float | None:
        """Seconds until the second attempt; None: there is none, as nothing is known yet."""
        ...

    def learn(self, request: InferenceRequest, seconds: float) -> None:
        """How long the first attempt took, at least."""
        ...

    def second(self, exchange: Exchange, endpoint: str) -> Attempt | None:
        """The second attempt, counted as under way. None: there is to be none. endpoint: of the first one."""
        ...

    def ended(self, result: str, wasted: float) -> None:
        """A race with a second attempt is over. wasted: seconds for which the loser held its slot."""
        ...


class Nobody:
    """Receives what still comes once a race is over."""

    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_failed(self, error: Exception) -> None: ...

    def stranded(self) -> bool:
        return False


NOBODY: Final = Nobody()


def refuses(head: ResponseHead) -> bool:
    """Whether an engine says that it cannot answer, whatever the request."""
    return head.status in (401, 429) or head.status >= 500


class Side:
    """One attempt of a race, and the receiver of its call. out: it cannot win any more."""

    __slots__ = ("attempt", "began", "call", "closed", "foreign", "head", "out", "race")

    def __init__(self, race: Race, attempt: Attempt, foreign: bool) -> None:
        self.race, self.attempt, self.foreign = race, attempt, foreign
        self.call: Call | None = None
        self.head: ResponseHead | None = None
        self.out = self.closed = False
        self.began = perf_counter()

    def on_head(self, head: ResponseHead) -> None:
        self.head = head
        if refuses(head) and self.race.leave(self, result_of(head)):
            self.race.left(self, head)
            return
        if head.status == 200:
            return  # the race is won by what follows
        self.race.win(self)

    def on_body(self, data: bytes) -> None:
        if not self.out:
            self.race.win(self)
            self.race.receiver.on_body(data)

    def on_end(self) -> None:
        if not self.out:
            self.race.win(self)
            self.race.receiver.on_end()

    def on_failed(self, error: Exception) -> None:
        if self.out:
            return
        refused = isinstance(error, EngineError) and error.refused
        if not self.race.leave(self, AttemptResult.REFUSED if refused else AttemptResult.FAILURE):
            self.race.failed(self, error)
        elif isinstance(error, EngineError) and error.lost:
            self.race.lost(self)

    def stranded(self) -> bool:
        return self.race.other(self) is not None or self.race.receiver.stranded()

    def ends(self, result: AttemptResult) -> None:
        """It is out of the race, with this result. A second call changes nothing."""
        self.out = True
        if not self.closed:
            self.closed = True
            self.attempt.close(result)


class Race:
    """One attempt as its exchange sees it, its client, its call, and the receiver of the first call while it is the only one. See
    gateway.core.ports: Attempt, EngineClient, Call, Receiver."""

    __slots__ = (
        "_attempt", "_began", "_call", "_cancelled", "_closed", "_decided", "_ended", "_exchange", "_first", "_head", "_hedge", "_paused",
        "_request", "_second", "_sent", "_timer", "_winner", "apis", "base_path", "client", "device", "endpoint_header", "endpoint_name",
        "first_byte_timeout", "idle_timeout", "receiver", "request_headers", "salting", "total_timeout", "upstream_model",
    )  # fmt: skip

    def __init__(self, hedge: Hedging, exchange: Exchange, request: InferenceRequest, attempt: Attempt) -> None:
        self._hedge, self._request, self._attempt = hedge, request, attempt
        self._exchange: Exchange | None = exchange  # this and what else may be None: see `_forget`
        self.client: Any = self
        self.base_path: bytes = attempt.client.base_path
        self.endpoint_name: str = attempt.endpoint_name
        self.endpoint_header: bytes = attempt.endpoint_header
        self.upstream_model: str | None = attempt.upstream_model
        self.request_headers: bytes = attempt.request_headers
        self.first_byte_timeout: float = attempt.first_byte_timeout
        self.idle_timeout: float = attempt.idle_timeout
        self.total_timeout: float = attempt.total_timeout
        self.salting: str = attempt.salting
        self.apis: tuple[str, ...] = attempt.apis
        self.device: SlotTime | None = attempt.device
        self._first: Side | None = None
        self._second: Side | None = None
        self._winner: Side | None = None
        self._call: Call | None = None
        self._head: ResponseHead | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._paused = self._cancelled = self._closed = self._decided = self._ended = False
        self._sent = (0.0, 0.0)
        self.receiver: Receiver = NOBODY

    # --- EngineClient

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        self.receiver, self._sent = receiver, (first_byte_timeout, idle_timeout)
        self._began = perf_counter()
        delay = self._hedge.delay(self._request)
        if delay is not None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._hedged)
        self._call = self._attempt.client.send(head, body, self, first_byte_timeout, idle_timeout, source)
        return self

    def forsake(self) -> None:
        """Probes tell the endpoint's own client."""

    async def aclose(self) -> None:
        """The endpoint's own client stays open."""

    # --- Receiver of the first call, until there is a second one

    def on_head(self, head: ResponseHead) -> None:
        if self._first is not None:
            self._first.on_head(head)
            return
        self._head = head
        if head.status != 200:
            self._answers()

    def on_body(self, data: bytes) -> None:
        if self._first is not None:
            self._first.on_body(data)
        else:
            if not self._decided:
                self._answers()
            self.receiver.on_body(data)

    def on_end(self) -> None:
        if self._first is not None:
            self._first.on_end()
        else:
            if not self._decided:
                self._answers()
            self._ended = True
            self.receiver.on_end()

    def on_failed(self, error: Exception) -> None:
        if self._first is not None:
            self._first.on_failed(error)
        else:
            self._ended = True
            self._over("failed")
            self.receiver.on_failed(error)

    def stranded(self) -> bool:
        return self.receiver.stranded() if self._first is None else self._first.stranded()

    def _answers(self) -> None:
        """The first attempt answers before there was a second one."""
        self._over("lost", self._head)
        if self._head is not None:
            self.receiver.on_head(self._head)

    # --- the second attempt

    def _hedged(self) -> None:
        """The first attempt has not answered in time."""
        self._timer = None
        exchange = self._exchange
        if exchange is None or self._decided or exchange.settled or exchange.plane.closing:
            return
        second = self._hedge.second(exchange, self._attempt.endpoint_name)
        if second is None:
            return
        first = self._first = Side(self, self._attempt, self._request.foreign)
        first.began, first.head, first.call = self._began, self._head, self._call
        exchange.attempts += 1
        note_route(exchange, "hedged")
        self._send(exchange, second)

    def _send(self, exchange: Exchange, attempt: Attempt) -> None:
        """As gateway.pipeline.attempt sends; what the answer is read by is set once it is known whose answer it is."""
        request = self._request
        before = request.foreign
        request.foreign = request.api.dialect != "" and request.api.dialect not in attempt.apis  # as what watches the attempt reads it
        side = self._second = Side(self, attempt, request.foreign)
        salt = b""
        if attempt.salting != "none":
            salt = exchange.snapshot.salts.salt(exchange.principal, exchange.entry.spec.prefix_sharing)  # type: ignore[arg-type, union-attr]
        try:
            path, body = request.api.target(request, attempt.upstream_model, salt if attempt.salting != "header" else b"")
            head = upstream_head(exchange, attempt, path, salt if attempt.salting == "header" else b"")
            call = attempt.client.send(head, body, side, *self._sent)
        except Exception as error:  # noqa: BLE001 - boundary: what cannot be written for this endpoint is the first one's alone
            side.on_failed(error)
            return
        finally:
            request.foreign = before
        if side.out:
            call.cancel()
            return
        side.call = call
        if self._paused:
            call.pause()

    def other(self, side: Side) -> Side | None:
        """The other one, if it can still win."""
        one = self._second if side is self._first else self._first
        return None if one is None or one.out else one

    def leave(self, side: Side, result: AttemptResult) -> bool:
        """Takes a side that has failed out of the race. False: it is the last one, or the answer has begun."""
        if self._winner is not None or self.other(side) is None:
            return False
        side.ends(result)
        self._adopt(self.other(side))
        if (exchange := self._exchange) is not None and not exchange.settled:
            exchange.raced = side.attempt.endpoint_name
            exchange.tried += 1
        return True

    def lost(self, side: Side) -> None:
        """The engine of a side that has left the race was lost with the request."""
        if (exchange := self._exchange) is not None and not exchange.settled:
            note_lost(exchange, side.attempt)

    def left(self, side: Side, head: ResponseHead) -> None:
        """A side that refused has left the race to the other one."""
        exchange = self._exchange
        if head.status in FULL and exchange is not None and exchange.entry is not None:
            note_full(exchange.entry, side.attempt.endpoint_name, head, self._request.labels)

    def win(self, side: Side) -> None:
        """A part of the answer is here. Does nothing once the race is won or closed."""
        if self._winner is not None or self._closed:
            return
        self._winner = side
        other = self.other(side)
        wasted = 0.0 if other is None else perf_counter() - other.began
        self._over("won" if side is self._second else "lost", side.head, wasted)
        if other is not None:
            other.ends(AttemptResult.NEUTRAL)
            if other.call is not None:
                other.call.cancel()
        self._adopt(side)
        self._request.foreign = side.foreign
        if side.head is not None:
            self.receiver.on_head(side.head)

    def failed(self, side: Side, error: Exception) -> None:
        """The last side has failed: before an answer, or in the middle of one."""
        self._over("failed")
        self.receiver.on_failed(error)

    def _over(self, result: str, head: ResponseHead | None = None, wasted: float = 0.0) -> None:
        """The end of the race, by its winner, whose answer has this head, or without one. wasted: seconds for which the loser held its
        slot."""
        if self._decided:
            return
        self._decided = True
        if head is not None and refuses(head):
            result = "failed"  # the last one has no answer either
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._hedge.learns and head is not None and head.status == 200:
            self._hedge.learn(self._request, perf_counter() - self._began)
        if self._second is not None:
            self._tell(self._second, result, wasted)

    def _tell(self, second: Side, result: str, wasted: float) -> None:
        exchange = self._exchange
        self._hedge.ended(result, wasted)
        if exchange is not None and not exchange.settled:
            told: dict[str, Any] = {"first": self._attempt.endpoint_name, "second": second.attempt.endpoint_name, "result": result}
            told["after_ms"], told["wasted_ms"] = round((second.began - self._began) * 1000), round(wasted * 1000)
            exchange.detail = {**(exchange.detail or {}), "hedge": told}

    def _adopt(self, side: Side | None) -> None:
        """From now on the exchange's attempt is this one."""
        exchange = self._exchange
        if side is None or side.attempt is self._attempt or exchange is None:
            return
        attempt = side.attempt
        self.endpoint_name, self.endpoint_header, self.device = attempt.endpoint_name, attempt.endpoint_header, attempt.device
        self.request_headers = attempt.request_headers
        held: Any = exchange.attempt  # this one, or what a flight has made of it
        if held is not None and not exchange.settled:
            held.endpoint_name, held.endpoint_header, held.device = attempt.endpoint_name, attempt.endpoint_header, attempt.device
            held.request_headers = attempt.request_headers

    # --- Attempt

    def answering(self) -> None:
        (self._winner.attempt if self._winner is not None else self._attempt).answering()

    def close(self, result: AttemptResult) -> None:
        """The result is that of the side whose answer it was, or that was left."""
        if self._closed:
            return
        self.cancel()
        self._closed = True
        first, last = self._first, self._winner or self._first
        if first is None or last is None:
            self._attempt.close(result)
        else:
            if last.out and (left := self.other(last)) is not None:
                last = left
            for side in (first, self._second):
                if side is not None:
                    side.ends(result if side is last else AttemptResult.NEUTRAL)
                    side.call = None
        self._forget()

    def _forget(self) -> None:
        """All of this leads back here: if it stayed, only the garbage collector would free the race, and its exchange with it."""
        self._first = self._second = self._winner = self._call = self._exchange = None
        self.receiver, self.client = NOBODY, self._attempt.client

    # --- Call

    def pause(self) -> None:
        self._paused = True
        if self._first is None:
            if self._call is not None and not self._ended:
                self._call.pause()
            return
        for side in (self._first, self._second):
            if side is not None and side.call is not None and not side.out:
                side.call.pause()

    def resume(self) -> None:
        self._paused = False
        if self._first is None:
            if self._call is not None and not self._ended:
                self._call.resume()
            return
        for side in (self._first, self._second):
            if side is not None and side.call is not None and not side.out:
                side.call.resume()

    def cancel(self) -> None:
        """Gives up both calls. The attempt is closed by whoever has it."""
        if self._cancelled:
            return
        self._cancelled = True
        self._over("cancelled")
        if self._first is None:
            if self._call is not None and not self._ended:
                self._call.cancel()
            return
        for side in (self._first, self._second):
            if side is not None and side.call is not None:
                side.call.cancel()
