"""Types of the operations below /my. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class OwnKeyCreation(TypedDict):
    """models: patterns; without any, all that the user may use. expires: the longest life that the groups allow, if absent. roles: of
    the admin API, of those that the user has.
    """

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
    roles: NotRequired[list[Literal["admin", "auditor", "operator", "tenant-admin", "viewer"]]]
    description: NotRequired[str]


class OwnKeysAllowed(TypedDict):
    """count: active keys. life, login_within: durations such as `90d`."""

    allowed: bool
    count: NotRequired[int]
    life: NotRequired[str | None]
    login_within: NotRequired[str | None]
