"""The view of an endpoint that operators get."""

from __future__ import annotations

from typing import Any

from gateway.routing.endpoints import Endpoint


def view(endpoint: Endpoint) -> dict[str, Any]:
    """A plain dictionary, ready for JSON."""
    breaker = endpoint.breaker
    return {
        "name": endpoint.name,
        "engine": endpoint.spec.name,
        "runtime": endpoint.spec.runtime,
        "state": endpoint.state,
        "reason": endpoint.reason,
        "address": endpoint.address,
        "slots": endpoint.slots,
        "limit": endpoint.limit,
        "in_flight": endpoint.in_flight,
        "drained": endpoint.drained,
        "shift": round(endpoint.shift.share, 4) if endpoint.shift is not None else None,
        "healthy": endpoint.health.healthy,
        "breaker": {"state": breaker.effective, "forced": breaker.forced, "failures": breaker.failures, "openings": breaker.openings},
        "health": dict(endpoint.details),
    }
