"""Engines and their endpoints: list, drain, resume, hold a breaker. An endpoint has its engine's name."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec

from admin import values
from admin.moments import shown
from admin.operation import Answer, Call, Operation, Written
from admin.permissions import FIELDS
from admin.resource import Change, Paged, portion
from gateway.core import durations
from gateway.core.errors import NotFound
from gateway.core.specs import LifecycleSpec
from gateway.core.units import written


class EngineView(msgspec.Struct, kw_only=True):
    """Settings of an engine with the state of its process; more by runtime. plan: where the model's layers go, and the bytes they need.
    sha256: of the model's file, where it was computed. rollout: how far the replacement of its process is. idle: time since its
    last use. restarts: starts after it had ended by itself. last_end: when (`at`) and why (`reason`, `reason_code`) it last did.
    confinement: what its process may still do. machines: where it is, if joined machines start it for the gateway."""

    name: str
    runtime: str
    state: str
    source: str
    reason: str | None = ""
    reason_code: str | None = None
    plan: dict[str, Any] | None = None
    model: str | None = None
    slots: int | None = None
    device: str | None = None
    version: str = "1"
    sha256: str | None = None
    lifecycle: dict[str, Any] | None = None
    rollout: dict[str, Any] | None = None
    idle: str | None = None
    confinement: dict[str, Any] | None = None
    restarts: int = 0
    last_end: dict[str, Any] | None = None
    machines: list[dict[str, Any]] | None = None


class BreakerView(msgspec.Struct, kw_only=True):
    state: str
    forced: str | None = None
    failures: int = 0
    openings: int = 0


class EndpointView(msgspec.Struct, kw_only=True):
    """limit: requests that it takes now. address: only for callers who may read it. shift: the share on its engine's new process."""

    name: str
    engine: str
    runtime: str
    state: str
    reason: str
    slots: int
    limit: int
    in_flight: int
    drained: bool
    healthy: bool
    breaker: BreakerView
    address: str | None = None
    health: dict[str, Any] = {}
    shift: float | None = None


class EndpointList(msgspec.Struct):
    items: list[EndpointView]
    cursor: str | None = None


class EndpointDryRun(msgspec.Struct):
    dry_run: bool
    diff: list[Change]
    result: EndpointView


class Breaker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """state: hold it `open` (no requests) or `closed` (requests whatever happens); `auto` lets it decide again."""

    state: Literal["open", "closed", "auto"]


def engine_view(engine: dict[str, Any]) -> dict[str, Any]:
    """An engine, or a member of a pool, with the beginning of its rollout as it is shown."""
    view = dict(engine)
    if (rollout := engine.get("rollout")) is not None:
        view["rollout"] = shown(rollout, "since")
    if (end := engine.get("last_end")) is not None:
        view["last_end"] = shown(end, "at")
    if (lifecycle := engine.get("lifecycle")) is not None:
        view["lifecycle"] = durations.shown(lifecycle, LifecycleSpec)
    if "idle_seconds" in view:
        idle = view.pop("idle_seconds")
        view["idle"] = None if idle is None else written(round(idle, 3))
    return view


def endpoint_view(call: Call, endpoint: dict[str, Any]) -> dict[str, Any]:
    view = dict(endpoint)
    if not call.access.may(FIELDS["endpoints", "address"]):
        view["address"] = None
    return view


async def endpoints(call: Call) -> Answer:
    fleet = call.ports.fleet
    names, cursor = portion(call.query, fleet.endpoint_names(), str)
    return Answer({"items": [endpoint_view(call, e) for e in fleet.endpoints(names)], "cursor": cursor})


async def endpoint(call: Call) -> Answer:
    return Answer(endpoint_view(call, find(call.ports.fleet.endpoints([call.path["name"]]), call.path["name"], "endpoint")))


def find(items: list[dict[str, Any]], name: str, kind: str) -> dict[str, Any]:
    found = next((item for item in items if item["name"] == name), None)
    if found is None:
        raise NotFound(f"There is no {kind} {name!r}.")
    return found


async def drain(call: Call) -> Answer:
    return await _change(call, lambda name: call.ports.control.drain(name), drained=True)


async def resume(call: Call) -> Answer:
    return await _change(call, lambda name: call.ports.control.resume(name), drained=False)


async def breaker(call: Call) -> Answer:
    wanted: Breaker = call.body
    forced = None if wanted.state == "auto" else wanted.state
    return await _change(call, lambda name: call.ports.control.force_breaker(name, forced), forced=forced)


async def _change(call: Call, act: Any, **expected: Any) -> Answer:
    """Acts on an endpoint unless this is a dry run. Does not wait for a drain to finish: `in_flight` falls to 0."""
    name = call.path["name"]
    call.target = f"engines/{name}"
    before = endpoint_view(call, find(call.ports.fleet.endpoints([name]), name, "endpoint"))
    was = {key: before["breaker"]["forced"] if key == "forced" else before[key] for key in expected}
    call.diff = values.diff(was, expected)
    if call.dry_run:
        after = {**before, "breaker": {**before["breaker"], **expected}} if "forced" in expected else {**before, **expected}
        return Answer({"dry_run": True, "diff": call.diff, "result": after})
    await act(name)
    return Answer(endpoint_view(call, find(call.ports.fleet.endpoints([name]), name, "endpoint")))


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """lines: the last so many."""

    lines: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200


class EngineLog(msgspec.Struct, kw_only=True):
    """The last lines that the processes of an engine have written, the newest last."""

    engine: str
    lines: list[str]


async def log(call: Call) -> Answer:
    """What the engine itself says may hold prompts: its permission is not the one to see the fleet."""
    name, query = call.path["name"], call.query
    found = find(call.ports.fleet.engines([name]), name, "engine")
    if found["runtime"] == "external":
        raise NotFound(f"{name!r} is an external engine: Gatehouse did not start it and has no log of it.")
    return Answer({"engine": name, "lines": await asyncio.to_thread(call.ports.fleet.engine_log, name, query.lines)})


def operations() -> list[Operation]:
    either = (EndpointView, EndpointDryRun)
    return [
        Operation("POST", "engines/{name}/drain", "engines:drain", "Send an engine no new requests", drain, either, Written),
        Operation("POST", "engines/{name}/resume", "engines:resume", "Send an engine requests again", resume, either, Written),
        Operation("POST", "engines/{name}/breaker", "engines:breaker", "Hold a breaker, or let it go", breaker, either, Written, Breaker),
        Operation("GET", "engines/{name}/log", "engines:log", "Show what an engine's process wrote", log, EngineLog, LogQuery),
        Operation("GET", "endpoints", "endpoints:read", "List endpoints", endpoints, EndpointList, query=Paged),
        Operation("GET", "endpoints/{name}", "endpoints:read", "Show an endpoint", endpoint, EndpointView),
    ]
