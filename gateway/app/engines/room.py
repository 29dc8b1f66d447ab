"""Idle slots of a model, for background work that must not delay requests."""

from __future__ import annotations

from gateway.core.snapshot import ModelEntry
from gateway.routing.router import PoolRoute


def room(entry: ModelEntry | None, spare: float) -> tuple[int, int]:
    """How many slots of the model such work may take now, and how many there are. None while anybody waits for one, and a share of them
    stays free. No slots: the model is not there, or its engine sleeps or is down; the pipeline says what is to be said."""
    route = None if entry is None else entry.route
    if not isinstance(route, PoolRoute):
        return 0, 0
    slots = sum(place.limit for place in route.places)
    if not slots:
        return 0, 0
    kept = min(int(-(-slots * spare // 1)), slots - 1)
    return (0 if route.backlog else max(0, slots - sum(place.in_flight for place in route.places) - kept)), slots


def idle(entry: ModelEntry, spare: float) -> bool:
    """Whether such work may ask for a slot now: also where this process has none, as it gets one only if it asks."""
    free, slots = room(entry, spare)
    return free > 0 or not slots
