"""Types of the operations below /sync. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.bindings import BindingSettings
    from gatehouse.client.types.engines import EngineSettings
    from gatehouse.client.types.groups import GroupSettings
    from gatehouse.client.types.guardrails import GuardrailSpec
    from gatehouse.client.types.limits import LimitSpec
    from gatehouse.client.types.model_copies import ResourceChange
    from gatehouse.client.types.models import ModelSpec
    from gatehouse.client.types.prices import PriceSettings
    from gatehouse.client.types.roles import RoleSettings
    from gatehouse.client.types.tenants import TenantSettings
    from gatehouse.client.types.users import UserSettings


class KeyDecided(TypedDict):
    """A key without its secret."""

    models: NotRequired[list[str]]
    operations: NotRequired[
        list[
            Literal[
                "chat",
                "classify",
                "completions",
                "embeddings",
                "images",
                "infer",
                "moderations",
                "rerank",
                "score",
                "speech",
                "tokenize",
                "transcriptions",
                "translations",
            ]
        ]
    ]
    cidrs: NotRequired[list[str]]
    expires: NotRequired[str | float | None]
    limits: NotRequired[list[str]]
    roles: NotRequired[list[Literal["admin", "auditor", "operator", "tenant-admin", "viewer"]]]
    priority: NotRequired[Literal["batch", "interactive", "standard"]]
    description: NotRequired[str]
    id: str
    tenant: str


class SyncWanted(TypedDict):
    tenants: NotRequired[list[TenantSettings] | None]
    groups: NotRequired[list[GroupSettings] | None]
    users: NotRequired[list[UserSettings] | None]
    limits: NotRequired[list[LimitSpec] | None]
    guardrails: NotRequired[list[GuardrailSpec] | None]
    roles: NotRequired[list[RoleSettings] | None]
    bindings: NotRequired[list[BindingSettings] | None]
    engines: NotRequired[list[EngineSettings] | None]
    models: NotRequired[list[ModelSpec] | None]
    prices: NotRequired[list[PriceSettings] | None]
    keys: NotRequired[list[KeyDecided] | None]


class Synced(TypedDict):
    """unchanged: how many are equal already. plan: a digest of the differences."""

    items: list[SyncedView]
    unchanged: int
    plan: str
    dry_run: NotRequired[bool]


class SyncedView(TypedDict):
    """One difference. missing: a key that has to be created, as only that makes a secret. revives: a key that has expired would be valid
    again.
    """

    kind: str
    name: str
    action: Literal["created", "deleted", "missing", "replaced"]
    diff: list[ResourceChange]
    revives: NotRequired[bool]
