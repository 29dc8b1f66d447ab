"""Checks of the settings of logs, metrics and traces, beyond their types."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import ConfigError
from gateway.core.specs import TelemetrySpec
from gateway.telemetry.otlp import url_of


def check(spec: TelemetrySpec, error: Callable[[str, str], ConfigError]) -> None:
    """error: makes the error for a path and what is wrong there. Raises it."""
    traces = spec.traces
    if traces is None:
        return
    try:
        url_of(traces.endpoint)
    except ConfigError as fault:
        raise error("telemetry.traces.endpoint", fault.message) from None
    if traces.tls is not None and not traces.endpoint.startswith("https:"):
        raise error("telemetry.traces.tls", "there are settings for TLS, but the endpoint begins with http://")
