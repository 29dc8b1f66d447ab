"""What endpoints carry, as scaling reads it: what the gateway counts, and what engines say of themselves in their probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.routing.endpoints import Endpoint
from gateway.routing.mirror import Mirror
from gateway.routing.registry import EndpointRegistry
from policies.scaling import Load

SERVING: Final = ("ready", "half_open")
GONE: Final = ("down", "unloaded", "draining")


class Loads:
    """Every endpoint in force with the requests under way there over all workers."""

    def __init__(self, registry: EndpointRegistry, mirror: Mirror | None) -> None:
        self._registry, self._mirror = registry, mirror

    def __call__(self) -> dict[str, tuple[Endpoint, int]]:
        elsewhere = {} if self._mirror is None else self._mirror.in_flight()
        return {e.name: (e, e.in_flight + elsewhere.get(e.name, 0)) for e in self._registry.in_force()}


def said(details: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """(running, waiting, share of KV memory in use) as the last probe heard them; None for what was not said.

    Of a sidecar's KV memory only what requests hold counts: it gives what it keeps of ended ones to the next that needs it.
    """
    load = details.get("load")
    if isinstance(load, dict):
        return _number(load.get("running")), _number(load.get("waiting")), _number(load.get("kv"))
    return _number(details.get("in_use")), _number(details.get("queue")), _number(details.get("kv_held", details.get("kv_used")))


def load_of(members: Sequence[tuple[Endpoint, int]], queued: float, queued_for: float) -> Load:
    """The load of these endpoints together. queued: requests that wait for them here; queued_for: for how long some have.

    An engine with requests waiting inside runs as many at once as it can, whatever its slots are said to be. What an engine says is about
    the requests of all its clients; the gateway's own part is theirs by number.
    """
    there = [(endpoint, count) for endpoint, count in members if endpoint.state not in GONE]
    serving = [(endpoint, count) for endpoint, count in there if endpoint.state in SERVING]
    busy = waiting = slots = own_busy = own_waiting = own_kv = 0.0
    memory = []
    for endpoint, count in serving:
        running, inside, kv = said(endpoint.details)
        held = min(inside or 0.0, float(count)) if running is None else (inside or 0.0)
        runs = max(count - held, running or 0.0)
        busy, waiting = busy + runs, waiting + held
        own = min(1.0, count / (runs + held)) if runs + held else 1.0
        own_busy, own_waiting = own_busy + own * runs, own_waiting + own * held
        slots += min(endpoint.slots, running) if held and running else endpoint.slots
        if kv is not None:
            memory.append(min(kv, 1.0))
            own_kv += own * memory[-1]
    ending = sum(count for endpoint, count in members if endpoint.state not in SERVING)
    busy, own_busy = busy + ending, own_busy + ending
    times = [endpoint.load_seconds for endpoint, _ in members if endpoint.load_seconds is not None]
    each = slots / len(serving) if serving else max((endpoint.slots for endpoint, _ in members), default=1)
    return Load(
        replicas=len(there),
        ready=len(serving),
        slots=float(each),
        busy=busy,
        waiting=waiting + queued,
        queued_for=queued_for,
        kv=sum(memory) / len(memory) if memory else None,
        load_seconds=max(times, default=None),
        own=(own_busy, own_waiting + queued, own_kv / len(memory) if memory else None),
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if usable else None
