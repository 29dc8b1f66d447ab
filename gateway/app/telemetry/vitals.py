"""What the admin listener's health report says beyond whether the gateway is ready: how long it runs, what it has served, what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gateway.app.telemetry.process_gauges import resident_bytes
from gateway.telemetry.metrics import Metrics

Ready = Callable[[], tuple[bool, dict[str, Any]]]


class Figures(Protocol):
    """What the workers have counted (gateway.app.workers.figures)."""

    def total(self, name: str, **labels: str) -> float: ...


class Vitals:
    """figures: of the workers, at most some seconds old; None where this process serves."""

    def __init__(
        self, metrics: Metrics, figures: Figures | None, proc: Path = Path("/proc/self"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics, self._figures, self._proc, self._clock = metrics, figures, proc, clock
        self._began = clock()

    def beside(self, ready: Ready) -> Ready:
        """The same report with these figures."""

        def report() -> tuple[bool, dict[str, Any]]:
            welcome, found = ready()
            return welcome, {**found, **self.report()}

        return report

    def report(self) -> dict[str, Any]:
        """cache_hit_rate: the share of prompt tokens that engines still had in memory; null before the first prompt."""
        requests, prompt, cached = self._metrics.totals()
        resident = resident_bytes(self._proc) or 0
        if (figures := self._figures) is not None:
            requests += int(figures.total("gatehouse_requests_total") + figures.total("gatehouse_denials_total"))
            prompt += int(figures.total("gatehouse_tokens_total", kind="prompt"))
            cached += int(figures.total("gatehouse_tokens_total", kind="cached"))
            resident += int(figures.total("gatehouse_resident_bytes"))
        return {
            "uptime_seconds": int(self._clock() - self._began),
            "requests": requests,
            "cache_hit_rate": round(cached / prompt, 4) if prompt else None,
            "resident_bytes": resident,
        }
