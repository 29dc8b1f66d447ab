"""What a process tells of its requests as the configuration says: lines in its log, and traces. Follows each change of `telemetry`."""

from __future__ import annotations

import asyncio
import logging

from gateway.app.plugin_set import at
from gateway.app.release import release
from gateway.core.errors import ConfigError
from gateway.core.specs import TelemetrySpec
from gateway.core.tasks import TaskOwner
from gateway.pipeline.plane import DataPlane
from gateway.telemetry import detail
from gateway.telemetry import logging as gatehouse_logging
from gateway.telemetry.exemplars import Exemplars
from gateway.telemetry.observer import Observer, RequestLog, SpanSink, collector
from gateway.telemetry.otlp import OtlpTraces
from gateway.telemetry.tracing import Sampler
from gateway.transport.address import tls_context

log = logging.getLogger("gatehouse.telemetry")


class Observing:
    """Life: made with the first settings, `follow` for each later configuration, `aclose` once no request is under way. worker: named in
    each line of the log and in traces. Raises ConfigError when the first settings cannot be used."""

    def __init__(self, plane: DataPlane, spec: TelemetrySpec, replica: str, owner: TaskOwner, worker: str = "") -> None:
        self._plane, self._owner, self._worker = plane, owner, worker
        self._attributes = {"service.version": release(), "service.instance.id": f"{replica}/{worker}" if worker else replica}
        self._counts = {"sent": 0, "dropped": 0}
        self._exemplars = plane.metrics.exemplars = Exemplars()
        self.collect = collector(self._counts)
        self._observer: Observer | None = None
        self._spec = spec
        self._put(spec)

    def follow(self, spec: TelemetrySpec) -> None:
        """Puts changed settings into force. What cannot be used leaves the traces as they are, and says so."""
        if spec == self._spec:
            return
        before, self._spec = self._observer, spec
        gatehouse_logging.setup(spec.log_level, spec.log_format, worker=self._worker)
        try:
            self._put(spec)
        except ConfigError as error:
            log.error("%s; the telemetry of before stays in force", error)
            return
        if before is not None:
            self._owner.spawn(asyncio.to_thread(before.close), name="end of the observer before")

    async def aclose(self) -> None:
        """Sends what waits, for at most a few seconds."""
        observer, self._observer, self._plane.observer, self._plane.sampler = self._observer, None, None, None
        if observer is not None:
            await asyncio.to_thread(observer.close)

    def _put(self, spec: TelemetrySpec) -> None:
        traces = self._traces(spec)
        metrics = self._plane.metrics
        metrics.detail = detail.follow(metrics.detail, spec.semconv == "current", spec.tenant_metrics)
        if traces is None and spec.request_log == "none":
            self._observer = self._plane.observer = self._plane.sampler = None
            return
        self._observer = observer = Observer(RequestLog(spec.request_log, spec.slow * 1000.0), traces, self._counts, self._exemplars.note)
        observer.start()
        self._plane.observer = observer
        self._plane.sampler = None if spec.traces is None else Sampler(spec.traces.ratio, spec.traces.parents)

    def _traces(self, spec: TelemetrySpec) -> SpanSink | None:
        if spec.traces is None:
            return None
        with at("telemetry.traces"):
            verify = tls_context(spec.traces.tls) if spec.traces.endpoint.startswith("https:") else True
            return OtlpTraces(spec.traces, verify, self._attributes)
