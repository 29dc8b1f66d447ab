"""How many replicas each pool, and each engine with `scale`, should have."""

from __future__ import annotations

import msgspec

from admin.operation import Answer, Call, Operation
from admin.resources.engines import find


class HintView(msgspec.Struct, kw_only=True):
    """desired: replicas that there should be, between min and max. need: that the load fills, a fraction. replicas: that there are, those
    that start included; ready: that serve. slots: requests that one runs at once. busy, waiting: requests that run, and that wait for a
    slot. queued_seconds: for how long some have been waiting. kv: share of the KV memory in use (null: no engine says). load_seconds: how
    long the last start took. blocked: why a copy could not be started; it is tried again."""

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
    kv: float | None = None
    load_seconds: float | None = None
    blocked: str = ""


class ScalingView(msgspec.Struct):
    """pools: by the name of the model. engines: those with `scale`."""

    pools: list[HintView]
    engines: list[HintView]


async def show(call: Call) -> Answer:
    return Answer(call.ports.scaling())


async def pool(call: Call) -> Answer:
    return Answer(find(call.ports.scaling()["pools"], call.path["name"], "pool"))


async def engine(call: Call) -> Answer:
    return Answer(find(call.ports.scaling()["engines"], call.path["name"], "engine with scale"))


def operations() -> list[Operation]:
    return [
        Operation("GET", "scaling", "endpoints:read", "Show how many replicas there should be", show, ScalingView),
        Operation("GET", "scaling/pools/{name}", "endpoints:read", "Show how many replicas a pool should have", pool, HintView),
        Operation("GET", "scaling/engines/{name}", "endpoints:read", "Show how many replicas an engine should have", engine, HintView),
    ]
