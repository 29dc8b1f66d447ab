"""What a data worker's endpoint takes over from the control process, and through it from the other workers (gateway.routing.follower)."""

from __future__ import annotations

from typing import Literal

from gateway.routing.endpoints import Endpoint


def share_out(endpoint: Endpoint, share: int) -> None:
    """Sets how many of the engine's slots this worker may use from now on."""
    endpoint.share = share
    if endpoint.count_slots():
        endpoint.judge("")


def take_turn(endpoint: Endpoint, turn: bool) -> None:
    """Sets whether this worker may send the probe request of the half-open breaker."""
    endpoint.turn = turn
    if endpoint.breaker.state == "half_open":
        endpoint.judge("")


def adopt(endpoint: Endpoint, state: Literal["open", "closed"], until: float, openings: int, *, refused: bool, tripped: bool) -> bool:
    """Takes over the breaker's state. until: when the opening ends, in monotonic seconds. Returns whether the state changed."""
    if state == "open":
        endpoint.refused, endpoint.tripped = refused, tripped
    changed = endpoint.breaker.adopt(state, until, openings)
    if changed:
        endpoint.judge("requests of another worker failed" if state == "open" else "a probe request of another worker succeeded")
    return changed


def trip(endpoint: Endpoint, now: float, refused: bool) -> bool:
    """Opens the breaker because of what a worker has learnt. Returns whether it was not open before."""
    if not endpoint.breaker.trip(now):
        return False
    endpoint.refused = endpoint.tripped = refused
    endpoint.judge("connections are refused" if refused else "requests of a worker failed")
    return True


def restore(endpoint: Endpoint, healthy: bool, loading: bool, refused: bool, reason: str) -> None:
    """Takes over what the probes have shown."""
    health = endpoint.health
    if (health.healthy, health.loading, health.refused) != (healthy, loading, refused):
        health.reset()
        health.healthy, health.loading, health.refused, health.reason = healthy, loading, refused, reason
        endpoint.judge(reason or "the probes succeed")
