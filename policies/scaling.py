"""How many replicas a pool, or an engine, should have. Pure: it is told the time and what is measured, and remembers what it advised.

    need      replicas that the load fills: (running + waiting) / (slots x target), or by the KV memory in use, whichever is more
    up        as many as the need, once it has lasted for a tenth of the time that a replica takes to load (1 to 15 s). A queue that stands
              for `max_wait` although nothing is being started asks for one more, whatever the slots say
    down      only to the most that was needed at any time within `stabilization`, or within twice the time that loading takes if that is
              longer: what is dear to start is kept for longer. What is kept has a margin of MARGIN, so that a load at the edge of a number
              does not move it

So a load that swings never moves the number down while its peaks come more often than the window is long, and up only once.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

MARGIN: Final = 0.1
"""How much more than the need must fit into what is left after one is taken away."""
LEAST_CONFIRM: Final = 1.0
MOST_CONFIRM: Final = 15.0
"""Seconds for which a need must have lasted before more are started."""
CONFIRM_SHARE: Final = 0.1
"""Of the time that a replica takes to load."""
KEEP_LOADS: Final = 2.0
"""Times that a replica takes to load, for which it is kept at least."""
_EPSILON: Final = 1e-9


class ScaleRules(Struct, frozen=True, kw_only=True):
    """See `ScaleSpec`; the times are seconds."""

    min: int = 1
    max: int = 1
    target: float = 0.8
    target_kv: float = 0.9
    max_wait: float = 2.0
    stabilization: float = 300.0


class Load(Struct, frozen=True, kw_only=True):
    """What is measured. replicas: those that serve or are being started; ready: those that serve. slots: requests that one runs at once.
    busy: requests that run; waiting: that wait for a slot, here or in the engines. queued_for: seconds for which some have been waiting
    without a break. kv: share of the KV memory in use over those that serve. load_seconds: how long one takes until it serves. own: busy,
    waiting and kv without what others have at the engines, as far as they say that there is more; None: it is all."""

    replicas: int
    ready: int
    slots: float
    busy: float = 0.0
    waiting: float = 0.0
    queued_for: float = 0.0
    kv: float | None = None
    load_seconds: float | None = None
    own: tuple[float, float, float | None] | None = None


class Advice(Struct, frozen=True):
    """desired: replicas. need: what the load fills, a fraction. reason: what decided."""

    desired: int
    need: float
    reason: str


def need_of(load: Load, rules: ScaleRules) -> tuple[float, str]:
    """How many replicas the load fills, not rounded, and what says so."""
    by_slots = max(0.0, load.busy + load.waiting) / (max(load.slots, 1.0) * rules.target)
    if load.kv is None or load.ready <= 0:
        return by_slots, "slots"
    by_kv = load.ready * min(max(load.kv, 0.0), 1.0) / rules.target_kv
    return (by_kv, "kv") if by_kv > by_slots else (by_slots, "slots")


def own_need_of(load: Load, rules: ScaleRules) -> float:
    """The part of the need that is this gateway's. Several gateways at the same engines can be added up."""
    if load.own is None:
        return need_of(load, rules)[0]
    busy, waiting, kv = load.own
    return need_of(replace(load, busy=busy, waiting=waiting, kv=kv), rules)[0]


class _Window:
    """The largest (or smallest) value of the last seconds, in constant time for each on average."""

    def __init__(self, smallest: bool = False) -> None:
        self._kept: deque[tuple[float, float]] = deque()
        self._sign = -1.0 if smallest else 1.0

    def put(self, now: float, value: float, seconds: float) -> float:
        kept, signed = self._kept, self._sign * value
        while kept and kept[-1][1] <= signed:
            kept.pop()
        kept.append((now, signed))
        while kept[0][0] < now - seconds:
            kept.popleft()
        return self._sign * kept[0][1]


class Scaler:
    """Of one pool or engine. desired: what was advised last."""

    def __init__(self, desired: int = 1) -> None:
        self.desired = desired
        self._most, self._least = _Window(), _Window(smallest=True)
        self._since: float | None = None

    def decide(self, now: float, load: Load, rules: ScaleRules) -> Advice:
        """Call it about once a second. now: monotonic seconds."""
        need, by = need_of(load, rules)
        loading = load.load_seconds or 0.0
        if self._since is None:
            self._since = now
        wanted = max(1, math.ceil(need - _EPSILON))
        lasting = load.waiting > 0 and load.queued_for >= rules.max_wait and load.ready >= min(self.desired, load.replicas)
        if lasting and load.replicas >= self.desired and wanted <= self.desired:
            wanted, by = self.desired + 1, "wait"
        confirm = min(max(loading * CONFIRM_SHARE, LEAST_CONFIRM), MOST_CONFIRM)
        keep = max(rules.stabilization, KEEP_LOADS * loading)
        lasted = self._least.put(now, float(wanted), confirm)
        kept = self._most.put(now, float(max(wanted, math.ceil(need * (1 + MARGIN) - _EPSILON))), keep)
        before = self.desired
        if now - self._since >= confirm and lasted > self.desired:
            self.desired = int(lasted)
        elif now - self._since >= keep and kept < self.desired:
            self.desired = int(kept)
        self.desired = min(max(self.desired, rules.min), rules.max)
        return Advice(self.desired, need, self._reason(before, wanted, by, rules))

    def _reason(self, before: int, wanted: int, by: str, rules: ScaleRules) -> str:
        if wanted > rules.max and self.desired == rules.max:
            return f"{by}: {wanted} are needed, and max is {rules.max}"
        if self.desired > before:
            return f"{by}: {wanted} are needed"
        if self.desired < before:
            return "fewer have been enough for long enough"
        return "enough" if wanted <= self.desired else f"{by}: {wanted} are needed, if that lasts"
