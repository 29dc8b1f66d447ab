"""Types of the operations below /tenants. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class Suspension(TypedDict):
    """reason: for operators and the audit log; never for the suspended."""

    reason: NotRequired[str]


class TenantDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: TenantView


class TenantPage(TypedDict):
    items: list[TenantView]
    cursor: str | None


class TenantPatch(TypedDict):
    name: NotRequired[str]
    display_name: NotRequired[str | None]
    description: NotRequired[str | None]
    models: NotRequired[list[str] | None]
    cost_centre: NotRequired[str | None]
    networks: NotRequired[list[str] | None]


class TenantSettings(TypedDict):
    """models: patterns of the models that its keys may be allowed to use. networks: where its credentials may be used. cost_centre: who
    pays for it, in reports of usage.
    """

    name: str
    display_name: NotRequired[str]
    description: NotRequired[str]
    models: NotRequired[list[str]]
    cost_centre: NotRequired[str]
    networks: NotRequired[list[str]]


class TenantView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    suspended: bool
    name: str
    display_name: NotRequired[str | None]
    description: NotRequired[str | None]
    models: NotRequired[list[str] | None]
    cost_centre: NotRequired[str | None]
    networks: NotRequired[list[str] | None]
