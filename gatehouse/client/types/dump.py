"""Types of the operations below /dump. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Dump(TypedDict):
    tenants: NotRequired[list[dict[str, Any]] | None]
    groups: NotRequired[list[dict[str, Any]] | None]
    users: NotRequired[list[dict[str, Any]] | None]
    limits: NotRequired[list[dict[str, Any]] | None]
    guardrails: NotRequired[list[dict[str, Any]] | None]
    roles: NotRequired[list[dict[str, Any]] | None]
    bindings: NotRequired[list[dict[str, Any]] | None]
    engines: NotRequired[list[dict[str, Any]] | None]
    models: NotRequired[list[dict[str, Any]] | None]
    prices: NotRequired[list[dict[str, Any]] | None]
    keys: NotRequired[list[dict[str, Any]] | None]
