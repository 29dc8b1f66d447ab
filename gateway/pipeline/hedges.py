"""Hedged requests: where the first attempt takes long, the request goes to another endpoint too, and the first answer is the client's
(Dean and Barroso, 2013, "The Tail at Scale"). Which attempts are hedged, when, and what is known of them; gateway.pipeline.racing has the
race itself.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.core.ports import Attempt
from gateway.core.rollouts import Watch, class_of, no_durations, quantile
from gateway.core.specs import ModelSpec
from gateway.core.specs.hedging import HedgeSpec
from gateway.core.types import InferenceRequest
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.racing import Race

LEAST: Final = 50
"""How many answers are needed before their 95th percentile counts as known."""
MOST: Final = 1000
"""After so many answers, earlier ones count half."""
SHARE: Final = 0.95
RESULTS: Final = ("won", "lost", "failed", "cancelled", "busy")
"""The second attempt answered first; the first one did; neither answered; the client left or the time was up; no second attempt was made,
because the pool is loaded, no other endpoint works, or the budget is spent."""


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
    """The figures of one model; they outlive the configuration. running: second attempts under way. results: how they ended. wasted:
    seconds for which the attempts that lost have held their slots."""

    __slots__ = ("__weakref__", "learned", "results", "running", "wasted")

    def __init__(self) -> None:
        self.running = 0
        self.wasted = 0.0
        self.results = dict.fromkeys(RESULTS, 0)
        self.learned: dict[tuple[str, bool], Learned] = {}


class Hedges:
    """All hedging of a process."""

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
        """The figures by model."""
        return dict(sorted(self._states.items()))


class Hedge:
    """Of one model as it is configured. Implements gateway.core.rollouts.Watch, and gateway.pipeline.racing.Hedging for its races."""

    __slots__ = ("_after", "_budget", "_inner", "_operations", "_state", "learns")

    def __init__(self, spec: HedgeSpec, state: HedgeState, inner: Watch | None) -> None:
        self._state, self._inner, self._budget = state, inner, spec.budget
        self._after = None if isinstance(spec.after, str) else spec.after
        self.learns = self._after is None
        self._operations = frozenset(spec.operations)

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        if self._inner is not None:
            attempt = self._inner.watched(exchange, attempt)
        request = exchange.request
        if request is None or request.operation not in self._operations or exchange.upload is not None:
            return attempt
        if exchange.tried or exchange.lost or exchange.spent is not None:
            return attempt  # a retry has its own budget, a repair follows an answer, and what engines may die of goes to one at a time
        return Race(self, exchange, request, attempt)

    # --- Hedging

    def delay(self, request: InferenceRequest) -> float | None:
        if self._after is not None:
            return self._after
        learned = self._state.learned.get((request.operation, request.stream))
        return None if learned is None else learned.delay

    def learn(self, request: InferenceRequest, seconds: float) -> None:
        key = (request.operation, request.stream)
        learned = self._state.learned.get(key)
        if learned is None:
            learned = self._state.learned[key] = Learned()
        learned.add(seconds)

    def second(self, exchange: Exchange, endpoint: str) -> Attempt | None:
        state, entry = self._state, exchange.entry
        session = None
        if entry is not None and entry.routing_header is not None and exchange.peer.trusted:
            session = exchange.headers.get(entry.routing_header)
        route: Any = entry.route  # type: ignore[union-attr]  # a pool's, which has `second`
        made: Attempt | None = route.second(exchange.request, exchange.principal, session, endpoint, state.running, self._budget)
        if made is None:
            state.results["busy"] += 1
            return None
        state.running += 1
        return made if self._inner is None else self._inner.watched(exchange, made)

    def ended(self, result: str, wasted: float) -> None:
        self._state.running -= 1
        self._state.results[result] += 1
        self._state.wasted += wasted
