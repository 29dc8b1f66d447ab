"""Types of the operations below /machines. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class MachineDryRun(TypedDict):
    result: MachineView
    diff: NotRequired[list[dict[str, Any]]]
    dry_run: NotRequired[bool]


class MachinePage(TypedDict):
    items: list[MachineView]
    cursor: NotRequired[str | None]


class MachineView(TypedDict):
    """state: as this gateway hears it; `away`: it does not. serves: engines of the configuration that it brings. engines: all that it
    tells of, with its own figures. may_serve: patterns, from its token.
    """

    name: str
    state: Literal["away", "lost", "there"]
    drained: bool
    address: str | None
    seen: str | None
    serves: list[str]
    may_serve: list[str]
    engines: list[dict[str, Any]]
    load: dict[str, Any] | None
    reason: str
    token: str
    joined_at: str
