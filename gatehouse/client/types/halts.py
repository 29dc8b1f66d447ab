"""Types of the operations below /halts. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class HaltDryRun(TypedDict):
    result: HaltPage
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class HaltPage(TypedDict):
    items: list[HaltView]
    cursor: NotRequired[str | None]


class HaltSettings(TypedDict):
    """target: `key/ID`, `agent/ID`, `user/NAME`, `user/NAME@TENANT`, `tenant/ID`, `model/NAME` or `all`. reason: for the operators, who
    see it, and for the audit log; never for callers.
    """

    target: str
    reason: str


class HaltView(TypedDict):
    """source: `store`, for every replica, or `file`, for this one alone."""

    target: str
    reason: str
    actor: str
    since: str | None
    source: Literal["file", "store"]
