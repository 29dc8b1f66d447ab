"""The way into a queue where limits bound how many requests may wait in it (`queued`).

A place is asked for before the queue is entered, so that a caller beyond the bound displaces nobody. It is free again when the request has
left the queue, whatever the reason: it was dispatched, refused or displaced, its deadline came, its client left.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from gateway.core.errors import LimitExceeded
from gateway.core.ports import Attempt, Limiter, Reservation
from gateway.core.snapshot import ModelEntry
from gateway.core.waiting import WAITS, Completion, check
from gateway.pipeline.exchange import Exchange


async def acquired(x: Exchange, entry: ModelEntry, places: Limiter, session: bytes | None, tried: tuple[str, ...]) -> Attempt:
    """An attempt at a model, now or after its turn in the queue. Raises LimitExceeded, Overloaded, EngineError."""
    route = entry.route
    granted: Any = route.acquire(x.request, x.principal, session, tried, x.deadline, False)  # type: ignore[arg-type]
    if not isinstance(granted, float):
        attempt: Attempt = granted
        return attempt
    place = await _place(x, places, granted)
    try:
        granted = route.acquire(x.request, x.principal, session, tried, x.deadline, True)  # type: ignore[arg-type]
        return await queued(x, entry, granted) if isinstance(granted, WAITS) else granted
    finally:
        granted = None
        place.settle(None)


async def _place(x: Exchange, places: Limiter, after: float) -> Reservation:
    """A place in the queue. after: seconds until one is likely to be free."""
    try:
        place: Any = places.reserve(x.principal, x.request)  # type: ignore[arg-type]
        if isinstance(place, WAITS):
            place = await place
    except LimitExceeded as error:
        error.retry_after = after
        raise
    found: Reservation = place
    if found.not_enforced:
        x.detail = {**(x.detail or {}), "queues_not_enforced": list(found.not_enforced)}
    return found


def note_route(x: Exchange, word: str) -> None:
    """Notes for the record what befell a request on its way to an engine, each thing once."""
    if word not in x.route:
        x.route = f"{x.route} {word}" if x.route else word


async def queued(x: Exchange, entry: ModelEntry, waiting: Any) -> Attempt:
    """The attempt of a request that is in the queue."""
    note_route(x, "queued")
    began = perf_counter_ns()
    try:
        await Completion(waiting)  # a Signal's own wait, which ends with the value, costs 1,900 instructions
        check(waiting.error)
        attempt: Attempt = waiting.value
    except BaseException:
        entry.route.abandon(waiting)
        raise
    finally:
        entry.meter.waited((perf_counter_ns() - began) * 1e-9)
        waiting = None  # it holds the error whose traceback would hold it
    return attempt
