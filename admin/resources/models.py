"""Models: what is public, which engines serve it; load, unload and reload the engines behind one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Change
from admin.resources.engines import engine_view, find


class ModelView(msgspec.Struct, kw_only=True):
    """pool: its engines, with the version in force, the state of the endpoint and the rollout that is under way (its version, share and
    step). queued: requests that wait for a slot. source: where it is defined."""

    name: str
    source: str
    ready: bool
    pool: list[dict[str, Any]]
    aliases: list[str] = []
    fallbacks: list[str] = []
    queued: int = 0


class EngineState(msgspec.Struct):
    engine: str
    state: str
    version: str


class ModelAction(msgspec.Struct):
    """The engines acted on, with their present state."""

    model: str
    action: str
    engines: list[EngineState]


class ModelDryRun(msgspec.Struct):
    dry_run: bool
    diff: list[Change]
    result: ModelAction


Force = Annotated[bool, Meta(description="also engines that are pinned")]
StopFirst = Annotated[
    bool,
    Meta(description="if old and new do not fit into memory together, stop the old process first (requests wait) instead of refusing"),
]


class Unload(Written):
    """What may be unloaded."""

    force: Force = False


class Reload(Written):
    """How processes may be replaced."""

    stop_first: StopFirst = False
    force: Force = False


async def load(call: Call) -> Answer:
    async def act(engines: list[str]) -> None:
        for engine in engines:
            await call.ports.control.load(engine)

    return await _act(call, "load", act)


async def unload(call: Call) -> Answer:
    async def act(engines: list[str]) -> None:
        for engine in engines:
            await call.ports.control.unload(engine, force=call.query.force)

    return await _act(call, "unload", act, stops=True)


async def reload(call: Call) -> Answer:
    """All engines or none: their new processes are ready and warm before the first one gets traffic."""

    async def act(engines: list[str]) -> None:
        await call.ports.control.reload(engines, stop_first=call.query.stop_first, force=call.query.force)

    return await _act(call, "reload", act, stops=call.query.stop_first)


async def abort(call: Call) -> Answer:
    """Those that are being replaced, and with them all engines of the same change."""

    async def act(engines: list[str]) -> None:
        await call.ports.control.abort(engines, reason=f"aborted by {call.actor}")

    return await _act(call, "abort", act, replaced=True)


def model_view(model: dict[str, Any]) -> dict[str, Any]:
    """A model in force as it is shown."""
    return {**model, "pool": [engine_view(member) for member in model["pool"]]}


async def _act(
    call: Call, action: str, act: Callable[[list[str]], Awaitable[None]], *, stops: bool = False, replaced: bool = False
) -> Answer:
    """On every engine of the pool that Gatehouse started. stops: it stops them, so that one that is pinned keeps all as they are.
    replaced: only on those that are being replaced."""
    name = call.path["name"]
    call.target = f"models/{name}"
    model = find(call.ports.fleet.models([name]), name, "model")
    engines = {engine["name"]: engine for engine in call.ports.fleet.engines([member["engine"] for member in model["pool"]])}
    members = [m["engine"] for m in model["pool"] if engines.get(m["engine"], {}).get("runtime", "external") != "external"]
    if not members:
        raise problems.simple(
            409, "not_managed", f"No engine of the model {name!r} was started by Gatehouse: there is nothing to {action}."
        )
    pinned = next((m for m in members if (engines[m].get("lifecycle") or {}).get("pinned")), None)
    if stops and pinned is not None and not call.query.force:
        raise problems.simple(409, "pinned", f"The engine {pinned!r} is pinned (lifecycle.pinned): it is only stopped with force.")
    if replaced and not (members := [m for m in members if engines[m].get("rollout") is not None]):
        raise problems.simple(409, "no_rollout", f"No engine of the model {name!r} is being replaced: there is nothing to {action}.")
    call.diff = values.diff({}, {"action": action, "engines": members})
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": _result(call, name, action, members)})
    await act(members)
    return Answer(_result(call, name, action, members))


def _result(call: Call, name: str, action: str, members: list[str]) -> dict[str, Any]:
    now = {engine["name"]: (engine["state"], engine["version"]) for engine in call.ports.fleet.engines(members)}
    states = [(member, *now.get(member, ("gone", ""))) for member in members]
    return {"model": name, "action": action, "engines": [{"engine": e, "state": s, "version": v} for e, s, v in states]}


def operations() -> list[Operation]:
    either = (ModelAction, ModelDryRun)
    return [
        Operation(
            "POST", "models/{name}/load", "models:load", "Start a model's engines, wait until ready", load, either, Written, engine=True
        ),
        Operation("POST", "models/{name}/unload", "models:unload", "Drain and stop a model's engines", unload, either, Unload, engine=True),
        Operation(
            "POST", "models/{name}/reload", "models:reload", "Replace a model's engines, all or none", reload, either, Reload, engine=True
        ),
        Operation("POST", "models/{name}/abort", "models:abort", "Take back the replacement of a model's engines", abort, either, Written),
    ]
