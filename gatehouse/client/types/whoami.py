"""Types of the operations below /whoami. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, TypedDict


class StatusCaller(TypedDict):
    """The caller. grants: roles with the tenant they count in (null: everywhere)."""

    tenant: str
    id: str
    kind: str
    grants: list[dict[str, Any]]
