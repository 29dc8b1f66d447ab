"""Types of the operations below /replicas. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class ReplicaList(TypedDict):
    items: list[ReplicaView]
    jobs: list[ReplicasJobView]


class ReplicaView(TypedDict):
    """state: `lost` is one that has not been heard of for a while and did not end in order. here: the one that answers. duplicate:
    another one that serves has the same id. data, admin: addresses of its listeners. workers: its data workers, 0 when it serves itself.
    clock_skew: seconds by which its clock is ahead of the store's.
    """

    id: str
    state: Literal["lost", "serving"]
    here: bool
    duplicate: bool
    host: str
    data: str
    admin: str
    version: str
    workers: int
    started_at: str
    seen_at: str
    clock_skew: float


class ReplicasJobView(TypedDict):
    """holder: the replica that does it now; "": nobody. done_at: when it was last finished."""

    name: str
    holder: str
    done_at: NotRequired[str | None]
