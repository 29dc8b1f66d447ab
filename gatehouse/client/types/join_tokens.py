"""Types of the operations below /join_tokens. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class JoinTokenDryRun(TypedDict):
    result: JoinTokenView
    diff: NotRequired[list[dict[str, Any]]]
    dry_run: NotRequired[bool]


class JoinTokenPage(TypedDict):
    items: list[JoinTokenView]
    cursor: NotRequired[str | None]


class JoinTokenSettings(TypedDict):
    """machines, engines: patterns of the names that a machine may have, and of the engines that it may serve. ttl: seconds. uses:
    machines that may join with it.
    """

    machines: list[str]
    engines: list[str]
    ttl: NotRequired[float]
    uses: NotRequired[int]


class JoinTokenView(TypedDict):
    """token: shown once, when it is made. left: machines that may still join with it."""

    id: str
    machines: list[str]
    engines: list[str]
    expires_at: str
    left: int
    created_at: str
    created_by: str
    token: NotRequired[str | None]
