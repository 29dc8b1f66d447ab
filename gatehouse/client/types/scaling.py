"""Types of the operations below /scaling. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class HintView(TypedDict):
    """desired: replicas that there should be, between min and max. need: that the load fills, a fraction. replicas: that there are,
    those that start included; ready: that serve. slots: requests that one runs at once. busy, waiting: requests that run, and that wait
    for a slot. queued_seconds: for how long some have been waiting. kv: share of the KV memory in use (null: no engine says).
    load_seconds: how long the last start took. blocked: why a copy could not be started; it is tried again.
    """

    name: str
    desired: int
    need: float
    reason: str
    replicas: int
    ready: int
    slots: float
    busy: float
    waiting: float
    queued_seconds: float
    min: int
    max: int
    kv: NotRequired[float | None]
    load_seconds: NotRequired[float | None]
    blocked: NotRequired[str]


class ScalingView(TypedDict):
    """pools: by the name of the model. engines: those with `scale`."""

    pools: list[HintView]
    engines: list[HintView]
