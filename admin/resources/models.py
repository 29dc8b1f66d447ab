"""Models: what is public, which engines serve it; load, unload and reload the engines behind one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from admin import problems, values
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Change
from admin.resources.engines import find
from gateway.core.errors import ConfigError, GatehouseError


class ModelView(msgspec.Struct, kw_only=True):
    """pool: its engines. queued: requests that wait for a slot. source: where it is defined."""

    name: str
    source: str
    ready: bool
    pool: list[dict[str, Any]]
    aliases: list[str] = []
    fallbacks: list[str] = []
    queued: int = 0


class ModelList(msgspec.Struct):
    items: list[ModelView]
    cursor: str | None = None


class EngineState(msgspec.Struct):
    engine: str
    state: str


class ModelAction(msgspec.Struct):
    """What was done: the engines that were acted on, with the state they are in now."""

    model: str
    action: str
    engines: list[EngineState]


class ModelDryRun(msgspec.Struct):
    dry_run: bool
    diff: list[Change]
    result: ModelAction


async def index(call: Call) -> Answer:
    return Answer({"items": call.ports.fleet.models(), "cursor": None})


async def show(call: Call) -> Answer:
    return Answer(find(call.ports.fleet.models(), call.path["name"], "model"))


async def load(call: Call) -> Answer:
    return await _act(call, "load", call.ports.control.load)


async def unload(call: Call) -> Answer:
    return await _act(call, "unload", call.ports.control.unload)


async def reload(call: Call) -> Answer:
    return await _act(call, "reload", call.ports.control.reload)


async def _act(call: Call, action: str, act: Callable[[str], Awaitable[None]]) -> Answer:
    """On every engine of the pool that Gatehouse started, one after the other, so that the others serve meanwhile."""
    name = call.path["name"]
    call.target = f"models/{name}"
    model = find(call.ports.fleet.models(), name, "model")
    engines = {engine["name"]: engine for engine in call.ports.fleet.engines()}
    members = [m["engine"] for m in model["pool"] if engines.get(m["engine"], {}).get("runtime", "external") != "external"]
    if not members:
        raise problems.simple(
            409, "not_managed", f"No engine of the model {name!r} was started by Gatehouse: there is nothing to {action}."
        )
    call.diff = values.diff({}, {"action": action, "engines": members})
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": _result(call, name, action, members)})
    for member in members:
        try:
            await act(member)
        except ConfigError as error:
            raise GatehouseError(error.message, status=502, code="engine_failed", param=member) from None
    return Answer(_result(call, name, action, members))


def _result(call: Call, name: str, action: str, members: list[str]) -> dict[str, Any]:
    now = {engine["name"]: engine["state"] for engine in call.ports.fleet.engines()}
    return {"model": name, "action": action, "engines": [{"engine": m, "state": now.get(m, "gone")} for m in members]}


def operations() -> list[Operation]:
    either = (ModelAction, ModelDryRun)
    return [
        Operation("GET", "models", "models:read", "List models", index, ModelList),
        Operation("GET", "models/{name}", "models:read", "Show a model", show, ModelView),
        Operation(
            "POST", "models/{name}/load", "models:load", "Start a model's engines, wait until ready", load, either, Written, engine=True
        ),
        Operation(
            "POST", "models/{name}/unload", "models:unload", "Drain and stop a model's engines", unload, either, Written, engine=True
        ),
        Operation(
            "POST", "models/{name}/reload", "models:reload", "Replace a model's engines one by one", reload, either, Written, engine=True
        ),
    ]
