"""Types of the operations below /groups. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class GroupDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: GroupView


class GroupPage(TypedDict):
    items: list[GroupView]
    cursor: str | None


class GroupPatch(TypedDict):
    name: NotRequired[str]
    description: NotRequired[str | None]
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
    own_keys: NotRequired[OwnKeysSettings | None]


class GroupSettings(TypedDict):
    """models: patterns of models that members may use, and of no others, whatever their roles say; without any, the group says nothing
    of models. operations: those that they may call on them. own_keys: absent: the group allows no keys of one's own.
    """

    name: str
    description: NotRequired[str]
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
    own_keys: NotRequired[OwnKeysSettings | None]


class GroupView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    name: str
    description: str
    models: list[str]
    operations: list[str]
    own_keys: NotRequired[OwnKeysView | None]


class Member(TypedDict):
    """user: NAME@TENANT, of the group's tenant."""

    user: str


class OwnKeysSettings(TypedDict):
    """count: active keys of one member. life: the longest life of a secret. login_within: keys are accepted for so long after their
    user's last login; absent: for as long as they live. Of several groups the most generous counts.
    """

    count: NotRequired[int]
    life: NotRequired[float]
    login_within: NotRequired[float | None]


class OwnKeysView(TypedDict):
    """life, login_within: durations such as `30d`."""

    count: int
    life: str
    login_within: NotRequired[str | None]
