"""What a scrape reads of the sidecars: what they report, what the kernel says of them, and how long loading and ending took."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engines.host.supervisor import Supervisor
from gateway.app.telemetry.process_gauges import resident_bytes
from gateway.telemetry.metrics import Histogram

LOAD_BOUNDS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds that a sidecar took from its start until it was ready, or from the word to end until it had ended."""
REPORTED: Final = (
    ("slots", "gatehouse_engine_slots", "Requests that a sidecar runs at once"),
    ("in_use", "gatehouse_engine_slots_in_use", "Requests that a sidecar runs"),
    ("queue", "gatehouse_engine_queue", "Requests that wait within a sidecar"),
    ("kv_used", "gatehouse_engine_kv_used_ratio", "Share of a sidecar's KV memory that is in use"),
    ("vram_bytes", "gatehouse_engine_vram_bytes", "Memory of the GPU that is in use"),
    ("tokens_per_second", "gatehouse_engine_tokens_per_second", "Tokens that a sidecar generates"),
)
"""Field of a sidecar's health, metric, what it is. As of the last health check."""


class EngineTimes:
    """Hears what happens to sidecars. The engines' names are those of the configuration and of the store."""

    def __init__(self) -> None:
        self.loads: dict[str, Histogram] = {}
        self.unloads: dict[str, Histogram] = {}

    def heard(self, engine: str, detail: dict[str, Any]) -> None:
        for name, known in (("load_seconds", self.loads), ("unload_seconds", self.unloads)):
            if name in detail:
                known.setdefault(engine, Histogram(LOAD_BOUNDS)).observe(detail[name])


class EngineGauges:
    """`Metrics.gauges` calls `collect`."""

    def __init__(self, supervisor: Supervisor, times: EngineTimes, proc: Path = Path("/proc")) -> None:
        self._supervisor, self._times, self._proc = supervisor, times, proc

    def collect(self) -> Iterable[Metric]:
        engines = self._supervisor.engines()
        for field, name, text in REPORTED:
            gauge = GaugeMetricFamily(name, text, labels=["engine"])
            for engine in engines:
                if engine["state"] == "ready" and isinstance(value := engine.get(field), int | float):
                    gauge.add_metric([engine["name"]], float(value))
            yield gauge
        resident = GaugeMetricFamily("gatehouse_engine_resident_bytes", "Memory of a sidecar's process", labels=["engine"])
        restarts = CounterMetricFamily("gatehouse_engine_restarts", "Starts of a sidecar after it had ended by itself", labels=["engine"])
        short = CounterMetricFamily(
            "gatehouse_engine_out_of_memory", "Ends of a sidecar because memory ran out, as far as the system tells", labels=["engine"]
        )
        for engine in engines:
            if (size := self._resident(engine)) is not None:
                resident.add_metric([engine["name"]], size)
            restarts.add_metric([engine["name"]], engine.get("restarts", 0))
            short.add_metric([engine["name"]], engine.get("out_of_memory", 0))
        yield from (resident, restarts, short)
        yield from self._life()

    def _resident(self, engine: dict[str, Any]) -> int | None:
        """What the kernel says of the process; where /proc hides it (systemd's ProtectProc=), what the sidecar has said itself."""
        if (pid := engine.get("pid")) is None:
            return None
        size = resident_bytes(self._proc / str(pid))
        return size if size is not None else engine.get("resident_bytes")

    def _life(self) -> Iterable[Metric]:
        loads = HistogramMetricFamily("gatehouse_engine_load_seconds", "From the start of a sidecar until it was ready", labels=["engine"])
        unloads = HistogramMetricFamily(
            "gatehouse_engine_unload_seconds", "From the word to end until a sidecar had ended", labels=["engine"]
        )
        for family, known in ((loads, self._times.loads), (unloads, self._times.unloads)):
            for engine, histogram in known.items():
                family.add_metric([engine], buckets=histogram.buckets(), sum_value=histogram.sum)
        yield from (loads, unloads)
