"""What a process costs and how promptly its loop turns: CPU, memory, open files, loop lag. Linux's /proc; elsewhere only the loop's lag."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.telemetry.metrics import Histogram

LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds by which a sweep came late."""
FILES_SECONDS: Final = 15.0
"""Between two counts of the open files: with ten thousand of them a count takes milliseconds."""


class ProcessGauges:
    """`Metrics.gauges` calls `collect`. name: of the process, `control` or a worker's id."""

    def __init__(self, plane: DataPlane, name: str, proc: Path = Path("/proc/self"), clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._proc, self._clock = name, proc, clock
        self._lag = Histogram(LAG_BOUNDS)
        self._swept: float | None = None
        self._files, self._counted = 0, float("-inf")
        plane.listeners.append(self._tick)

    def _tick(self) -> None:
        now = self._clock()
        if self._swept is not None:
            self._lag.observe(max(0.0, now - self._swept - SWEEP_SECONDS))
        self._swept = now

    def collect(self) -> Iterable[Metric]:
        lag = HistogramMetricFamily("gatehouse_loop_lag_seconds", "By how much the event loop's regular work came late")
        lag.add_metric([], buckets=self._lag.buckets(), sum_value=self._lag.sum)
        yield lag
        times = os.times()
        yield CounterMetricFamily("gatehouse_cpu_seconds", "CPU time of the gateway's processes", value=times.user + times.system)
        try:
            resident = int((self._proc / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            self._count_files()
        except OSError:
            return
        memory = GaugeMetricFamily("gatehouse_resident_bytes", "Memory of the gateway's processes", labels=["process"])
        memory.add_metric([self._name], float(resident))
        files = GaugeMetricFamily("gatehouse_open_files", "Open files and connections of the gateway's processes", labels=["process"])
        files.add_metric([self._name], float(self._files))
        yield from (memory, files)

    def _count_files(self) -> None:
        if (now := self._clock()) >= self._counted + FILES_SECONDS:
            self._files, self._counted = len(os.listdir(self._proc / "fd")), now
