"""Types of the operations below /roles. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class RoleDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: RoleView


class RolePage(TypedDict):
    items: list[RoleView]
    cursor: str | None


class RolePatch(TypedDict):
    name: NotRequired[str]
    permissions: NotRequired[list[str]]
    description: NotRequired[str | None]
    confined: NotRequired[bool | None]


class RoleSettings(TypedDict):
    """As in the configuration."""

    name: str
    permissions: list[str]
    description: NotRequired[str]
    confined: NotRequired[bool]


class RoleView(TypedDict):
    """confined: what belongs to a tenant is reached in its holder's own only. Those of the store have a version and times."""

    name: str
    description: str
    permissions: list[str]
    confined: bool
    source: Literal["built-in", "file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
