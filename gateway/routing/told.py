"""What workers are told of an endpoint's state."""

from __future__ import annotations

from gateway.routing import mirror_messages as m
from gateway.routing.endpoints import Endpoint


def mark(endpoint: Endpoint) -> m.EndpointMarked:
    return m.EndpointMarked(endpoint.name, endpoint.drained, endpoint.breaker.forced)


def health(endpoint: Endpoint) -> m.HealthKnown:
    health = endpoint.health
    return m.HealthKnown(endpoint.name, health.healthy, health.loading, health.refused, health.reason)
