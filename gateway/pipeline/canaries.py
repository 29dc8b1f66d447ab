"""Compares an engine on trial with the other engines of its pool: figures of the calls to it, and of all others."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from gateway.core.engine_copies import COPY
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.rollouts import CanaryFigures, RolloutsTold, Side, Watch, class_of
from gateway.core.specs import ModelSpec
from gateway.core.specs.rollouts import CanarySpec
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.hedges import Hedges
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.shadows import KeyOf, Shadows
from gateway.pipeline.taps import Room, Seen, TappedAttempt, failed
from gateway.telemetry.steps import PipelineMeters

TAIL: Final = 2048
"""How many bytes from the end of an answer are kept, to read its token counts."""
_TOKENS: Final = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,9})')
NO_ROOM: Final = Room(0)


class Timed(Seen):
    """A call of which only the times and the end of the answer are kept."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NO_ROOM, 0)
        self.parts = [b""]

    def tail(self, data: bytes) -> None:
        self.parts[0] = (self.parts[0] + data if len(data) < TAIL else data)[-TAIL:]

    def came(self, data: bytes) -> None:
        super().came(b"")
        self.tail(data)


class CanaryState:
    """The figures of one model and engine; they outlive the configuration."""

    __slots__ = ("__weakref__", "figures")

    def __init__(self, engine: str) -> None:
        self.figures = CanaryFigures(engine)


class Canaries:
    """All trials of a process."""

    def __init__(self) -> None:
        self._states: WeakValueDictionary[str, CanaryState] = WeakValueDictionary()

    def of(self, model: ModelSpec) -> Canary | None:
        """What watches the model's engines, with the figures so far; None where none is on trial."""
        spec = model.canary
        if spec is None:
            return None
        state = self._states.get(model.name)
        if state is None or state.figures.engine != spec.engine:
            state = self._states[model.name] = CanaryState(spec.engine)
        return Canary(spec, state)

    def figures(self) -> dict[str, CanaryFigures]:
        """The figures by model."""
        return {name: state.figures for name, state in sorted(self._states.items())}


class Canary:
    """The trial of one model, as configured. Implements gateway.core.rollouts.Watch."""

    def __init__(self, spec: CanarySpec, state: CanaryState) -> None:
        self._engine, self._state = spec.engine, state

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        request = exchange.request
        if request is None or exchange.upload is not None:
            return attempt
        figures = self._state.figures
        side = figures.canary if stands_for(attempt.endpoint_name, self._engine) else figures.others
        whole = partial(lasted, exchange.plane, exchange.plane.paused)
        ended, left = partial(count, side, streams=request.stream, whole=whole), partial(given_up, side, whole)
        return TappedAttempt(attempt, request, Timed(), ended, left)


def stands_for(endpoint: str, engine: str) -> bool:
    """Whether an endpoint is this engine, a copy of it, or one of its addresses (gateway.config.expand)."""
    return endpoint == engine or endpoint.startswith((f"{engine}@", f"{engine}{COPY}"))


def lasted(plane: DataPlane, paused: float) -> bool:
    """Whether this process ran without a pause since then. Times measured across a pause say nothing about an engine."""
    return not plane.stood(paused)


def given_up(side: Side, whole: Callable[[], bool], seen: Seen, result: AttemptResult) -> None:
    """The attempt is over. If the engine's call is not, it took too long, which is a failure (a client that left is none)."""
    if not seen.ended and result in (AttemptResult.FAILURE, AttemptResult.REFUSED) and whole():
        seen.end()
        side.answers += 1
        side.errors += 1


def count(side: Side, seen: Seen, *, streams: bool, whole: Callable[[], bool]) -> None:
    """Counts a call that has ended."""
    if not whole():
        return
    side.answers += 1
    if failed(seen):
        side.errors += 1
        return
    if seen.status != 200:
        side.refusals += 1
        return
    side.latency[class_of(seen.ended - seen.began)] += 1
    if streams:
        side.first[class_of(seen.first - seen.began)] += 1
    found = _TOKENS.findall(seen.parts[0])
    if found and (tokens := int(found[-1])):
        side.completion_tokens += tokens
        side.seconds += max(1e-6, seen.ended - (seen.first if streams else seen.began))


class Both:
    """Combines two watches of the same engines. Implements gateway.core.rollouts.Watch."""

    def __init__(self, one: Watch, other: Watch) -> None:
        self._one, self._other = one, other

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        return self._other.watched(exchange, self._one.watched(exchange, attempt))


class Trials:
    """All that is tried on real traffic in a process, and the figures of its pipelines' steps."""

    def __init__(self, shadows: Shadows) -> None:
        self.shadows, self.canaries, self.hedges = shadows, Canaries(), Hedges()
        self.steps = PipelineMeters()

    def of(self, model: ModelSpec, key: KeyOf | None) -> Watch | None:
        """What watches a model's engines; None if nothing does. key: of requests that are mirrored together."""
        canary, shadow = self.canaries.of(model), self.shadows.of(model, key)
        both = canary or shadow if canary is None or shadow is None else Both(canary, shadow)
        return self.hedges.of(model, both)

    def told(self) -> RolloutsTold:
        return RolloutsTold(self.shadows.figures(), self.canaries.figures())
