"""An endpoint's state as the messages that workers get of it (gateway.routing.mirror_messages)."""

from __future__ import annotations

from gateway.routing import mirror_messages as m
from gateway.routing.endpoints import Endpoint
from gateway.routing.registry import Report


def mark(endpoint: Endpoint) -> m.EndpointMarked:
    return m.EndpointMarked(endpoint.name, endpoint.drained, endpoint.breaker.forced)


def report(engine: str, known: Report, now: float) -> m.EngineReported:
    wait = max(0.0, known.retry_at - now) if known.retry_at else 0.0
    return m.EngineReported(
        engine, known.process, known.address, known.slots, known.reason, known.code, known.awaited, wait
    )  # fmt: skip


def breaker(endpoint: Endpoint, number: int, now: float) -> m.BreakerSet:
    known = endpoint.breaker
    return m.BreakerSet(
        endpoint.name, endpoint.address or "", number, "closed" if known.state == "closed" else "open",
        max(0.0, known.until - now), known.openings, endpoint.refused, endpoint.tripped,
    )  # fmt: skip


def health(endpoint: Endpoint) -> m.HealthKnown:
    health = endpoint.health
    return m.HealthKnown(endpoint.name, health.healthy, health.loading, health.refused, health.reason)
