"""Types of the operations below /workers. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class WorkerDryRun(TypedDict):
    result: WorkerView
    diff: NotRequired[list[dict[str, Any]]]
    dry_run: NotRequired[bool]


class WorkerList(TypedDict):
    items: list[WorkerView]
    cursor: NotRequired[str | None]


class WorkerView(TypedDict):
    """id: also of its audit writer. ready: what its /readyz says. in_flight, connections, held_bytes: as of the last second. audit:
    whether its audit log takes records. lag: changes that it has not put into force yet. compiled: whether its hot path runs as machine
    code.
    """

    id: str
    pid: int
    state: Literal["draining", "failed", "gone", "ready", "starting"]
    started_at: str
    ready: bool
    in_flight: int
    connections: int
    held_bytes: int
    audit: bool
    lag: int
    compiled: bool
