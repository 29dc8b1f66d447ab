"""For each bucket of a histogram the last traced request that fell into it: the way from a slow bucket in a graph to a trace of it.

The observer's thread notes them, since it alone knows which requests have a trace; nothing is added to a request's path. They are shown in
the OpenMetrics format only (https://prometheus.io/docs/specs/om/open_metrics_spec/#exemplars), which Prometheus asks for by itself.
"""

from __future__ import annotations

from typing import Final

from prometheus_client.samples import Exemplar

from gateway.core.types import OutcomeRecord
from gateway.telemetry.metrics import DURATION_BOUNDS, Shown, slot_of

DURATION: Final = "duration"
FIRST: Final = "first"


class Exemplars:
    """The models are those of the configuration, so their number is bounded."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[int, Exemplar]] = {}

    def note(self, record: OutcomeRecord, trace: str) -> None:
        """A request that has a trace, by its 32 digits. In the observer's thread."""
        if not record.model:
            return
        self._put(DURATION, record.model, record.duration_ms / 1000.0, trace, record.time)
        if record.first_ms:
            self._put(FIRST, record.model, record.first_ms / 1000.0, trace, record.time)

    def _put(self, what: str, model: str, value: float, trace: str, moment: float) -> None:
        slots = self._kept.setdefault((what, model), {})
        slots[slot_of(DURATION_BOUNDS, value)] = Exemplar({"trace_id": trace}, value, round(moment, 3))

    def shown(self, what: str, model: str, buckets: list[tuple[str, float]]) -> list[Shown]:
        """The buckets, those with an exemplar as triples with it."""
        slots = self._kept.get((what, model))
        if not slots:
            return list(buckets)
        found: list[Shown] = []
        for number, (bound, count) in enumerate(buckets):
            exemplar = slots.get(number)
            found.append((bound, count) if exemplar is None else (bound, count, exemplar))
        return found
