"""Model files that replicas share: who has them, and what is on its way here (docs/models.md)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from admin import values
from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Change
from gateway.core.errors import NotFound


class ModelCopyView(msgspec.Struct, kw_only=True):
    """A model that replicas share. digest: stands for its content. replicas: who has it. away: replicas that have or had it and have not
    said for five minutes that they are there. stored: whether the store of model files has it. state: what it is at this replica:
    `differs`: another one of this name is here, `removed`: it was deleted, and somebody still has it. fetched: bytes that have come so far,
    from `source`, a replica or the store. problem: why it could not be fetched, deleted, shared or put into the store."""

    name: str
    revision: int
    digest: str
    size: int
    replicas: list[str]
    away: list[str]
    stored: bool
    state: Literal["here", "fetching", "absent", "differs", "removed"]
    fetched: int
    source: str | None
    problem: str | None
    changed_at: Timestamp


class ModelStoreView(msgspec.Struct, kw_only=True):
    """The S3-compatible store of model files, as this replica sees it. problem: why the last call failed. since: from when on all have."""

    place: str
    up: bool
    problem: str | None
    since: Timestamp | None


class ModelCopyList(msgspec.Struct):
    """store: null where model files are kept by the replicas alone."""

    items: list[ModelCopyView]
    store: ModelStoreView | None = None
    cursor: str | None = None


class ForgottenView(msgspec.Struct):
    """models: how many it was known to have."""

    replica: str
    models: int


class ForgottenDryRun(msgspec.Struct):
    result: ForgottenView
    diff: list[Change]
    dry_run: bool = True


async def index(call: Call) -> Answer:
    copies = call.ports.model_copies
    found: list[dict[str, Any]] = [] if copies is None else await copies.view()
    store = None if copies is None else copies.store()
    if store is not None:
        store = {**store, "since": None if store["since"] is None else shown(store, "since")["since"]}
    return Answer({"items": [shown(item, "changed_at") for item in found], "store": store, "cursor": None})


async def forget(call: Call) -> Answer:
    """What a replica has that will not come back."""
    replica = call.path["replica"]
    call.target = f"model-copies/{replica}"
    if call.ports.model_copies is None:
        raise NotFound("No model files are shared.")
    count = await call.ports.model_copies.forget(replica, dry_run=call.dry_run)
    call.diff = values.diff({"models": count}, None)
    found = {"replica": replica, "models": count}
    return Answer({"dry_run": True, "diff": call.diff, "result": found} if call.dry_run else found)


def operations() -> list[Operation]:
    return [
        Operation("GET", "model-copies", "files:read", "List model files that replicas share", index, ModelCopyList, disk=True),
        Operation(
            "DELETE",
            "model-copies/{replica}",
            "files:write",
            "Forget the copies of a replica that is away",
            forget,
            (ForgottenView, ForgottenDryRun),
            Written,
        ),
    ]
