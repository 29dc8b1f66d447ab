"""Types of the operations below /keys. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class KeyChange(TypedDict):
    """What may be decided about a key. cidrs: networks it may be used from."""

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


class KeyChangePatch(TypedDict):
    models: NotRequired[list[str] | None]
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
        | None
    ]
    cidrs: NotRequired[list[str] | None]
    expires: NotRequired[str | float | None]
    limits: NotRequired[list[str] | None]
    roles: NotRequired[list[Literal["admin", "auditor", "operator", "tenant-admin", "viewer"]] | None]
    priority: NotRequired[Literal["batch", "interactive", "standard"] | None]
    description: NotRequired[str | None]


class KeyCreation(TypedDict):
    """id: a name for the key; one is made up otherwise."""

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
    tenant: str
    id: NotRequired[str | None]


class KeyPage(TypedDict):
    items: list[KeyView]
    cursor: str | None


class KeyView(TypedDict):
    """prefix: the secret's beginning, to recognise it by. overlap_until: until when the secret before is accepted, after a rotation.
    rotated_to: the key that replaced this one, in earlier versions. last_used: up to a minute late. user: whose own key it is. groups:
    of a key of the configuration file.
    """

    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    id: str
    tenant: str
    user: str
    groups: list[str]
    state: Literal["active", "expired", "revoked", "rotated"]
    suspended: bool
    prefix: str
    models: list[str]
    operations: list[str]
    cidrs: list[str]
    limits: list[str]
    roles: list[str]
    priority: Literal["batch", "interactive", "standard"]
    description: str
    expires: NotRequired[str | None]
    rotated_to: NotRequired[str | None]
    overlap_until: NotRequired[str | None]
    revoked: NotRequired[str | None]
    last_used: NotRequired[str | None]


class KeysRotation(TypedDict):
    """overlap: seconds for which the old secret is accepted beside the new one; 0 ends it at once."""

    overlap: NotRequired[float]


class NewKeyDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: NewKeyView


class NewKeyView(TypedDict):
    """secret: the key itself, this once; null when the answer is a repeated one. warnings: why it may not do what was meant."""

    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    id: str
    tenant: str
    user: str
    groups: list[str]
    state: Literal["active", "expired", "revoked", "rotated"]
    suspended: bool
    prefix: str
    models: list[str]
    operations: list[str]
    cidrs: list[str]
    limits: list[str]
    roles: list[str]
    priority: Literal["batch", "interactive", "standard"]
    description: str
    expires: NotRequired[str | None]
    rotated_to: NotRequired[str | None]
    overlap_until: NotRequired[str | None]
    revoked: NotRequired[str | None]
    last_used: NotRequired[str | None]
    secret: str | None
    warnings: list[str]


class ResourceKeyDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: KeyView
