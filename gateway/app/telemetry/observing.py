"""What a process tells of its requests as the configuration says: lines in its log, and traces. Follows each change of `telemetry`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from gateway.app.configuration.plugin_set import at
from gateway.app.release import release
from gateway.core.errors import ConfigError
from gateway.core.log_levels import AS_CONFIGURED, LogLevels
from gateway.core.specs import TelemetrySpec
from gateway.core.tasks import TaskOwner
from gateway.pipeline.plane import DataPlane
from gateway.telemetry import detail
from gateway.telemetry import logging as gatehouse_logging
from gateway.telemetry.exemplars import Exemplars
from gateway.telemetry.log_file import LogFile
from gateway.telemetry.observer import Observer, RequestLog, SpanSink, collector
from gateway.telemetry.otlp import OtlpTraces, url_of
from gateway.telemetry.tracing import Sampler
from gateway.transport.address import tls_context

log = logging.getLogger("gatehouse.telemetry")
requests = logging.getLogger("gatehouse.requests")


def check(spec: TelemetrySpec) -> None:
    """Raises ConfigError for what could not be put into force, as far as that shows without writing or connecting anything."""
    if spec.traces is not None:
        with at("telemetry.traces"):
            url_of(spec.traces.endpoint)
            if spec.traces.endpoint.startswith("https:"):
                tls_context(spec.traces.tls)
    if spec.log_file is not None and not Path(spec.log_file.path).parent.is_dir():
        raise ConfigError(f"there is no folder {Path(spec.log_file.path).parent}", path="telemetry.log_file.path")


def log_as_configured(spec: TelemetrySpec, worker: str = "") -> None:
    """Points the process's log where the configuration says. worker: named in each line. Raises ConfigError where a file cannot be made."""
    file = None
    if spec.log_file is not None:
        try:
            file = LogFile(Path(spec.log_file.path), spec.log_file.max_bytes, spec.log_file.keep)
        except OSError as error:
            raise ConfigError(f"the log cannot be written: {error.strerror}", path="telemetry.log_file.path") from None
    gatehouse_logging.setup(spec.log_level, spec.log_format, worker=worker, file=file)


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
        self._spec, self._levels = spec, AS_CONFIGURED
        self._put(spec)

    def configured(self) -> str:
        """The level of the log as configured."""
        return self._spec.log_level

    def put_levels(self, levels: LogLevels) -> None:
        """What the log tells from now on, whatever the configuration says, until the next call."""
        traced, self._levels = self._traces_requests, levels
        self._apply_levels()
        if traced != self._traces_requests:
            self._exchange(self._spec)

    def _apply_levels(self) -> None:
        gatehouse_logging.put_levels(self._levels.level or self._spec.log_level, self._levels.loggers)

    @property
    def _traces_requests(self) -> bool:
        """Whether each request gets a line because of a level."""
        return requests.isEnabledFor(gatehouse_logging.TRACE)

    def follow(self, spec: TelemetrySpec) -> None:
        """Puts changed settings into force. What cannot be used leaves the traces as they are, and says so."""
        if spec == self._spec:
            return
        self._spec = spec
        try:
            log_as_configured(spec, self._worker)
        except ConfigError as error:
            log.error("%s; the log goes on where it is", error)
        self._apply_levels()
        self._exchange(spec)

    def _exchange(self, spec: TelemetrySpec) -> None:
        before = self._observer
        try:
            self._put(spec)
        except ConfigError as error:
            log.error("%s; the previous telemetry settings stay in force", error)
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
        which = "all" if self._traces_requests else spec.request_log
        if traces is None and which == "none":
            self._observer = self._plane.observer = self._plane.sampler = None
            return
        self._observer = observer = Observer(RequestLog(which, spec.slow * 1000.0), traces, self._counts, self._exemplars.note)
        observer.start()
        self._plane.observer = observer
        self._plane.sampler = None if spec.traces is None else Sampler(spec.traces.ratio, spec.traces.parents)

    def _traces(self, spec: TelemetrySpec) -> SpanSink | None:
        if spec.traces is None:
            return None
        with at("telemetry.traces"):
            verify = tls_context(spec.traces.tls) if spec.traces.endpoint.startswith("https:") else True
            return OtlpTraces(spec.traces, verify, self._attributes)
