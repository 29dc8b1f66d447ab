"""Types of the operations below /apply. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.bindings import BindingSettings
    from gatehouse.client.types.engines import EngineSettings
    from gatehouse.client.types.guardrails import GuardrailSpec
    from gatehouse.client.types.limits import LimitSpec
    from gatehouse.client.types.model_copies import ResourceChange
    from gatehouse.client.types.models import ModelSpec
    from gatehouse.client.types.roles import RoleSettings


class AppliedPage(TypedDict):
    """In the order of the request, kind by kind."""

    items: list[AppliedView]
    dry_run: NotRequired[bool]


class AppliedView(TypedDict):
    """The result for one resource."""

    kind: str
    name: str
    action: Literal["created", "replaced", "unchanged"]
    diff: list[ResourceChange]


class ApplyApplied(TypedDict):
    limits: NotRequired[list[LimitSpec]]
    guardrails: NotRequired[list[GuardrailSpec]]
    roles: NotRequired[list[RoleSettings]]
    bindings: NotRequired[list[BindingSettings]]
    engines: NotRequired[list[EngineSettings]]
    models: NotRequired[list[ModelSpec]]
