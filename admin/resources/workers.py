"""The processes that serve requests, where several do."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation, Written
from gateway.core.errors import NotFound


class WorkerView(msgspec.Struct, kw_only=True):
    """id: also of its audit writer. ready: what its /readyz says. in_flight, connections, held_bytes: as of the last second. audit:
    whether its audit log takes records. lag: changes that it has not put into force yet. compiled: whether its hot path runs as machine
    code."""

    id: str
    pid: int
    state: Literal["starting", "ready", "draining", "gone", "failed"]
    started_at: Timestamp
    ready: bool
    in_flight: int
    connections: int
    held_bytes: int
    audit: bool
    lag: int
    compiled: bool


class WorkerList(msgspec.Struct):
    items: list[WorkerView]
    cursor: str | None = None


class WorkerDryRun(msgspec.Struct):
    result: WorkerView
    diff: list[dict[str, Any]] = []
    dry_run: bool = True


async def show(call: Call) -> Answer:
    return Answer({"items": _views(call), "cursor": None})


async def replace(call: Call) -> Answer:
    """Answers once the new worker serves."""
    id = call.path["id"]
    call.target = f"workers/{id}"
    found = next((view for view in _views(call) if view["id"] == id), None)
    workers = call.ports.workers
    if found is None or workers is None:
        raise NotFound(f"There is no worker {id!r}.")
    if call.dry_run:
        return Answer({"dry_run": True, "diff": [], "result": found})
    await workers.replace(id)
    return Answer({"items": _views(call), "cursor": None})


def _views(call: Call) -> list[dict[str, Any]]:
    return [] if call.ports.workers is None else [shown(view, "started_at") for view in call.ports.workers.views()]


def operations() -> list[Operation]:
    either = (WorkerList, WorkerDryRun)
    return [
        Operation("GET", "workers", "workers:read", "List the processes that serve requests", show, WorkerList),
        Operation("POST", "workers/{id}/replace", "workers:replace", "Replace a worker", replace, either, Written, engine=True),
    ]
