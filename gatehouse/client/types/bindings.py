"""Types of the operations below /bindings. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class BindingPatch(TypedDict):
    name: NotRequired[str]
    role: NotRequired[str]
    subjects: NotRequired[list[str] | None]
    effect: NotRequired[Literal["allow", "deny"] | None]
    when: NotRequired[str | None]
    tenant: NotRequired[str | None]
    principal: NotRequired[str | None]


class BindingSettings(TypedDict):
    """As in the configuration. tenant: of the callers that it applies to, a pattern. principal: short for the subject `principal/ID`."""

    name: str
    role: str
    subjects: NotRequired[list[str]]
    effect: NotRequired[Literal["allow", "deny"]]
    when: NotRequired[str | None]
    tenant: NotRequired[str]
    principal: NotRequired[str | None]


class BindingViewDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: BindingViewView


class BindingViewPage(TypedDict):
    items: list[BindingViewView]
    cursor: str | None


class BindingViewView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    name: str
    role: str
    subjects: list[str]
    effect: NotRequired[Literal["allow", "deny"] | None]
    when: NotRequired[str | None]
    tenant: NotRequired[str | None]
