"""Model files that replicas share: who has them, and what is on its way here (docs/models.md)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation


class ModelCopyView(msgspec.Struct, kw_only=True):
    """A model that replicas share. digest: stands for its content. replicas: who gives it to others. state: what it is at this replica:
    `differs`: another one of this name is here, `removed`: it was deleted, and somebody still has it. fetched: bytes that have come so far,
    from the replica `source`. problem: why it could not be fetched, deleted or shared."""

    name: str
    revision: int
    digest: str
    size: int
    replicas: list[str]
    state: Literal["here", "fetching", "absent", "differs", "removed"]
    fetched: int
    source: str | None
    problem: str | None
    changed_at: Timestamp


class ModelCopyList(msgspec.Struct):
    items: list[ModelCopyView]
    cursor: str | None = None


async def index(call: Call) -> Answer:
    copies = call.ports.model_copies
    found: list[dict[str, Any]] = [] if copies is None else await copies.view()
    return Answer({"items": [shown(item, "changed_at") for item in found], "cursor": None})


def operations() -> list[Operation]:
    return [Operation("GET", "model-copies", "files:read", "List model files that replicas share", index, ModelCopyList, disk=True)]
