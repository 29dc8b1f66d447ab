"""Settings of logs, metrics and traces."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.core.log_levels import Level
from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Spec, Timeout


class ExporterSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where metrics go besides `/metrics`."""

    type: str
    settings: dict[str, Any] = {}


class TracesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traces to an OTLP receiver over HTTP. endpoint: without a path, `/v1/traces` is added. ratio: of the requests whose caller did not
    decide; what fails is traced in any case. parents: whose `traceparent` decides."""

    endpoint: str
    ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01
    parents: Literal["follow", "trusted", "ignore"] = "follow"
    service: Annotated[str, Meta(min_length=1, max_length=255)] = "gatehouse"
    token: Secret | None = None
    headers: dict[str, Secret] = {}
    tls: ClientTlsSpec | None = None
    timeout: Timeout = 10.0


class LogFileSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A log that the gateway rotates itself. path: absolute. max_bytes: of a file. keep: rotated files beside it."""

    path: Annotated[str, Meta(min_length=2, max_length=1024, pattern="^/")]
    max_bytes: Annotated[int, Meta(ge=65_536, le=1 << 40)] = 100 * 1024 * 1024
    keep: Annotated[int, Meta(ge=0, le=1000)] = 5


class TelemetrySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Logs, metrics, traces. request_log: which requests get a line in the log. slow: from how many seconds on a request counts as slow.
    semconv: OpenTelemetry's metrics for generative AI beside ours. tenant_metrics: so many tenants have series of their own."""

    log_level: Level = "info"
    log_format: Literal["text", "json"] = "text"
    log_file: LogFileSpec | None = None
    request_log: Literal["none", "slow", "failed", "all"] = "none"
    slow: Timeout = 30.0
    exporters: tuple[ExporterSpec, ...] = ()
    traces: TracesSpec | None = None
    semconv: Literal["none", "current"] = "none"
    tenant_metrics: Annotated[int, Meta(ge=0, le=10_000)] = 0
