"""Hedged requests: where the first attempt takes long, the request goes to another endpoint too, and the first answer is the client's
(Dean and Barroso, 2013, "The Tail at Scale").

A `Race` is one try of an exchange at up to two endpoints. To the exchange it is one attempt and one call: a retry, a flight or what else
wraps attempts sees nothing of it. It is won by the first byte of an answer; the other call is cancelled then, whose slot is free at once
and which says nothing about its engine. A side that fails, or answers that it cannot, leaves the race to the other one.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.core.errors import EngineError
from gateway.core.hedge_specs import HedgeSpec
from gateway.core.ports import Attempt, AttemptResult, Call, Receiver
from gateway.core.rollouts import Watch, class_of, no_durations, quantile
from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, ResponseHead
from gateway.pipeline.attempt import result_of, upstream_head
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.queueing import note_route
from gateway.pipeline.wrapping import WrappedAttempt

LEAST: Final = 50
"""Answers before their 95th percentile is known."""
MOST: Final = 1000
"""Answers after which those before count half."""
SHARE: Final = 0.95
RESULTS: Final = ("won", "lost", "failed", "cancelled", "busy")
"""The second attempt answered first; the first one did; neither answered; the client left or the time was up; there was to be none, as the
pool is loaded, no other endpoint works or the budget is spent."""


class Learned:
    """How long the answers to one kind of request took, by class."""

    __slots__ = ("_count", "_delay", "_durations")

    def __init__(self) -> None:
        self._durations = no_durations()
        self._count = 0
        self._delay: float | None = None

    def add(self, seconds: float) -> None:
        self._durations[class_of(seconds)] += 1
        self._count += 1
        if self._count % LEAST == 0:
            self._delay = quantile(self._durations, SHARE)
        if self._count >= MOST:
            self._durations = [count // 2 for count in self._durations]
            self._count = LEAST * (MOST // LEAST // 2)

    @property
    def delay(self) -> float | None:
        """Seconds; None while too little is known."""
        return self._delay


class HedgeState:
    """Of one model; outlives the configuration. running: second attempts under way. results: how many ended how. wasted: seconds for which
    the attempts that lost have held their slots."""

    __slots__ = ("__weakref__", "learned", "results", "running", "wasted")

    def __init__(self) -> None:
        self.running = 0
        self.wasted = 0.0
        self.results = dict.fromkeys(RESULTS, 0)
        self.learned: dict[tuple[str, bool], Learned] = {}


class Hedges:
    """All of a process."""

    def __init__(self) -> None:
        self._states: WeakValueDictionary[str, HedgeState] = WeakValueDictionary()

    def of(self, model: ModelSpec, inner: Watch | None) -> Watch | None:
        """What watches the model's attempts, with the figures so far. inner: what else does."""
        if model.hedge is None:
            return inner
        state = self._states.get(model.name)
        if state is None:
            state = self._states[model.name] = HedgeState()
        return Hedge(model.hedge, state, inner)

    def figures(self) -> dict[str, HedgeState]:
        """By model."""
        return dict(sorted(self._states.items()))


class Hedge:
    """Of one model as it is configured. Implements gateway.core.rollouts.Watch."""

    def __init__(self, spec: HedgeSpec, state: HedgeState, inner: Watch | None) -> None:
        self.spec, self.state, self.inner = spec, state, inner
        self._operations = frozenset(spec.operations)

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        if self.inner is not None:
            attempt = self.inner.watched(exchange, attempt)
        request = exchange.request
        if request is None or request.operation not in self._operations or exchange.upload is not None:
            return attempt
        if exchange.tried or exchange.spent is not None:
            return attempt  # a retry has its own budget, and a repair follows an answer
        return Race(self, exchange, attempt)

    def delay(self, request: InferenceRequest) -> float | None:
        """Seconds until the second attempt; None: there is none, as nothing is known yet."""
        if self.spec.after != "p95":
            return self.spec.after
        learned = self.state.learned.get((request.operation, request.stream))
        return None if learned is None else learned.delay

    def learn(self, request: InferenceRequest, seconds: float) -> None:
        """How long the first attempt took, at least."""
        if self.spec.after == "p95":
            key = (request.operation, request.stream)
            learned = self.state.learned.get(key)
            if learned is None:
                learned = self.state.learned[key] = Learned()
            learned.add(seconds)


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
        if (head.status == 429 or head.status >= 500) and self.race.leave(self, result_of(head)):
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

    def stranded(self) -> bool:
        return self.race.other(self) is not None or self.race.receiver.stranded()

    def ends(self, result: AttemptResult) -> None:
        """It is out of the race, with this result. A second call changes nothing."""
        self.out = True
        if not self.closed:
            self.closed = True
            self.attempt.close(result)


class Race(WrappedAttempt):
    """One attempt as its exchange sees it, its client, and its call. See gateway.core.ports: EngineClient, Call."""

    __slots__ = (
        "_cancelled", "_decided", "_exchange", "_first", "_hedge", "_paused", "_request", "_route", "_second", "_sent", "_timer",
        "_winner", "base_path", "receiver",
    )  # fmt: skip

    def __init__(self, hedge: Hedge, exchange: Exchange, attempt: Attempt) -> None:
        super().__init__(attempt, self)
        self._hedge, self._exchange = hedge, exchange
        self._request: InferenceRequest = exchange.request  # type: ignore[assignment]
        self._route: Any = exchange.entry.route  # type: ignore[union-attr]  # a pool's, which has `second`
        self._first: Side | None = None
        self._second: Side | None = None
        self._winner: Side | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = self._cancelled = self._decided = False
        self._sent = (0.0, 0.0)
        self.receiver: Receiver = None  # type: ignore[assignment]
        self.base_path = attempt.client.base_path

    # --- EngineClient

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        self.receiver, self._sent = receiver, (first_byte_timeout, idle_timeout)
        first = self._first = Side(self, self._attempt, self._request.foreign)
        delay = self._hedge.delay(self._request)
        if delay is not None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._hedged)
        first.call = self._attempt.client.send(head, body, first, first_byte_timeout, idle_timeout, source)
        return self

    def forsake(self) -> None:
        """Probes tell the endpoint's own client."""

    async def aclose(self) -> None:
        """The endpoint's own client stays open."""

    # --- the second attempt

    def _hedged(self) -> None:
        """The first attempt has not answered in time."""
        self._timer = None
        first, exchange, state = self._first, self._exchange, self._hedge.state
        if first is None or first.out or self._decided or exchange.settled or exchange.plane.closing:
            return
        session = None
        entry = exchange.entry
        if entry is not None and entry.routing_header is not None and exchange.peer.trusted:
            session = exchange.headers.get(entry.routing_header)
        budget = self._hedge.spec.budget
        second = self._route.second(self._request, exchange.principal, session, first.attempt.endpoint_name, state.running, budget)
        if second is None:
            state.results["busy"] += 1
            return
        state.running += 1
        if self._hedge.inner is not None:
            second = self._hedge.inner.watched(exchange, second)
        exchange.attempts += 1
        note_route(exchange, "hedged")
        self._send(second)

    def _send(self, attempt: Attempt) -> None:
        """As gateway.pipeline.attempt sends; what the answer is read by is set once it is known whose answer it is."""
        request, exchange = self._request, self._exchange
        before = request.foreign
        request.foreign = request.api.dialect != "" and request.api.dialect not in attempt.apis
        side = self._second = Side(self, attempt, request.foreign)
        salt = b""
        if attempt.salting != "none":
            salt = exchange.snapshot.salts.salt(exchange.principal, exchange.entry.spec.prefix_sharing)  # type: ignore[arg-type, union-attr]
        try:
            path, body = request.api.target(request, attempt.upstream_model, salt if attempt.salting != "header" else b"")
            head = upstream_head(exchange, attempt, path, salt if attempt.salting == "header" else b"")
        except Exception as error:  # noqa: BLE001 - boundary: what cannot be written for this endpoint is the first one's alone
            side.on_failed(error)
            return
        finally:
            request.foreign = before
        call = attempt.client.send(head, body, side, *self._sent)
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
        return True

    def win(self, side: Side) -> None:
        """A part of the answer is here. Does nothing once the race is won."""
        if self._winner is not None:
            return
        self._winner = side
        other = self.other(side)
        self._over("won" if side is self._second else "lost", 0.0 if other is None else perf_counter() - other.began)
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

    def _over(self, result: str, wasted: float = 0.0) -> None:
        """The end of the race, by its winner or without one. wasted: seconds for which the loser held its slot."""
        hedge, first, second, exchange = self._hedge, self._first, self._second, self._exchange
        if self._decided:
            return
        self._decided = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if first is not None and result in ("won", "lost"):
            hedge.learn(self._request, perf_counter() - first.began)
        if second is None:
            return
        hedge.state.running -= 1
        hedge.state.results[result] += 1
        hedge.state.wasted += wasted
        if first is not None and not exchange.settled:
            told: dict[str, Any] = {"first": self._attempt.endpoint_name, "second": second.attempt.endpoint_name, "result": result}
            told["after_ms"], told["wasted_ms"] = round((second.began - first.began) * 1000), round(wasted * 1000)
            exchange.detail = {**(exchange.detail or {}), "hedge": told}

    def _adopt(self, side: Side | None) -> None:
        """From now on the exchange's attempt is this one."""
        if side is None or side.attempt is self._attempt:
            return
        attempt, exchange = side.attempt, self._exchange
        self.endpoint_name, self.endpoint_header, self.device = attempt.endpoint_name, attempt.endpoint_header, attempt.device
        held: Any = exchange.attempt  # this one, or what a flight has made of it
        if held is not None and not exchange.settled:
            held.endpoint_name, held.endpoint_header, held.device = attempt.endpoint_name, attempt.endpoint_header, attempt.device

    # --- Attempt

    def answering(self) -> None:
        (self._winner.attempt if self._winner is not None else self._attempt).answering()

    def close(self, result: AttemptResult) -> None:
        """The result is that of the side whose answer it was, or that was left."""
        last = self._winner or self._first
        if last is None:
            self._attempt.close(result)
            return
        if last.out and (left := self.other(last)) is not None:
            last = left
        self.cancel()
        for side in (self._first, self._second):
            if side is not None:
                side.ends(result if side is last else AttemptResult.NEUTRAL)

    # --- Call

    def pause(self) -> None:
        self._paused = True
        for side in (self._first, self._second):
            if side is not None and side.call is not None and not side.out:
                side.call.pause()

    def resume(self) -> None:
        self._paused = False
        for side in (self._first, self._second):
            if side is not None and side.call is not None and not side.out:
                side.call.resume()

    def cancel(self) -> None:
        """Gives up both calls. The attempt is closed by whoever has it."""
        if self._cancelled:
            return
        self._cancelled = True
        self._over("cancelled")
        for side in (self._first, self._second):
            if side is not None and side.call is not None:
                side.call.cancel()
