"""The replicas that share the store, and the jobs that one of them does for all."""

from __future__ import annotations

from typing import Literal

import msgspec

from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation


class ReplicaView(msgspec.Struct, kw_only=True):
    """state: `lost` is one that has not been heard of for a while and did not end in order. here: the one that answers.

    duplicate: another one that serves has the same id. data, admin: addresses of its listeners. workers: its data workers, 0 when it
    serves itself. clock_skew: seconds by which its clock is ahead of the store's.
    """

    id: str
    state: Literal["serving", "lost"]
    here: bool
    duplicate: bool
    host: str
    data: str
    admin: str
    version: str
    workers: int
    started_at: Timestamp
    seen_at: Timestamp
    clock_skew: float


class JobView(msgspec.Struct, kw_only=True):
    """holder: the replica that does it now; "": nobody. done_at: when it was last finished."""

    name: str
    holder: str
    done_at: Timestamp | None = None


class ReplicaList(msgspec.Struct):
    items: list[ReplicaView]
    jobs: list[JobView]


async def show(call: Call) -> Answer:
    found = await call.ports.replicas()
    return Answer(
        {
            "items": [shown(one, "started_at", "seen_at") for one in found["replicas"]],
            "jobs": [shown(job, "done_at") for job in found["jobs"]],
        }
    )


def operations() -> list[Operation]:
    return [Operation("GET", "replicas", "replicas:read", "List the replicas that share the store", show, ReplicaList)]
