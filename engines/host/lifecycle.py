"""The life of a sidecar as one table: (state, event) -> next state. Anything that is not in the table cannot happen.

stopped ──start──▶ starting ──loading──▶ loading ──ready──▶ ready ──drain──▶ draining ──exited──▶ stopped
                      └──────────── failed / exited ─▶ failed ──start──▶ starting (after a growing pause)
stopped ──adopt──▶ ready: it was ready when the program before this one handed it over
"""

from __future__ import annotations

from typing import Literal

from gateway.core.specs import EngineSpec

State = Literal["stopped", "starting", "loading", "ready", "draining", "failed"]
Event = Literal["start", "adopt", "loading", "ready", "drain", "failed", "exited"]

TABLE: dict[tuple[State, Event], State] = {
    ("stopped", "start"): "starting",
    ("stopped", "adopt"): "ready",
    ("failed", "start"): "starting",
    ("starting", "loading"): "loading",
    ("starting", "ready"): "ready",
    ("loading", "loading"): "loading",
    ("loading", "ready"): "ready",
    ("ready", "ready"): "ready",
    ("starting", "drain"): "draining",
    ("loading", "drain"): "draining",
    ("ready", "drain"): "draining",
    ("draining", "drain"): "draining",
    ("failed", "drain"): "stopped",
    ("stopped", "drain"): "stopped",
    ("starting", "failed"): "failed",
    ("loading", "failed"): "failed",
    ("ready", "failed"): "failed",
    ("starting", "exited"): "failed",
    ("loading", "exited"): "failed",
    ("ready", "exited"): "failed",
    ("failed", "exited"): "failed",
    ("draining", "exited"): "stopped",
    ("draining", "failed"): "stopped",
    ("stopped", "exited"): "stopped",
}

BACKOFF_FIRST = 0.5
BACKOFF_MAX = 30.0
CRASHING_MAX = 300.0
"""Seconds between starts where each one so far has ended in a crash before the engine was ready: so will the next one, most likely."""
STABLE_SECONDS = 60.0
"""A sidecar that was ready for this long restarts after the shortest pause again."""


class IllegalTransition(RuntimeError):
    """An event that is impossible in this state: a bug in the supervisor."""


def next_state(state: State, event: Event) -> State:
    """The state after an event. Raises IllegalTransition."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"a sidecar that is {state} cannot take {event}") from None


def backoff(failures: int, *, crashing: bool = False) -> float:
    """Seconds to wait before start number `failures` + 1: 0.5, 1, 2 ... 30, or 300 where it does nothing but crash."""
    return min(CRASHING_MAX if crashing else BACKOFF_MAX, BACKOFF_FIRST * 2.0 ** max(0, min(failures, 20) - 1))


def on_demand(spec: EngineSpec) -> bool:
    """Whether a request loads the engine if it is not loaded: it is lazy, or unloaded when idle."""
    return spec.lifecycle.load == "lazy" or (spec.lifecycle.idle_ttl > 0 and not spec.lifecycle.pinned)
