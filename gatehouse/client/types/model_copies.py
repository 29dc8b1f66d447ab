"""Types of the operations below /model_copies. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ForgottenDryRun(TypedDict):
    result: ForgottenView
    diff: list[ResourceChange]
    dry_run: NotRequired[bool]


class ForgottenView(TypedDict):
    """models: how many it was known to have."""

    replica: str
    models: int


class ModelCopyList(TypedDict):
    """store: null where model files are kept by the replicas alone."""

    items: list[ModelCopyView]
    store: NotRequired[ModelStoreView | None]
    cursor: NotRequired[str | None]


class ModelCopyView(TypedDict):
    """A model that replicas share. digest: stands for its content. replicas: who has it. away: replicas that have or had it and have not
    said for five minutes that they are there. stored: whether the store of model files has it. state: what it is at this replica:
    `differs`: another one of this name is here, `removed`: it was deleted, and somebody still has it. fetched: bytes that have come so
    far, from `source`, a replica or the store. problem: why it could not be fetched, deleted, shared or put into the store.
    """

    name: str
    revision: int
    digest: str
    size: int
    replicas: list[str]
    away: list[str]
    stored: bool
    state: Literal["absent", "differs", "fetching", "here", "removed"]
    fetched: int
    source: str | None
    problem: str | None
    changed_at: str


class ModelStoreView(TypedDict):
    """The S3-compatible store of model files, as this replica sees it. problem: why the last call failed. since: from when on all have."""

    place: str
    up: bool
    problem: str | None
    since: str | None


ResourceChange = TypedDict("ResourceChange", {"path": "str", "from": "NotRequired[Any | None]", "to": "NotRequired[Any | None]"})
"""One difference: the path of a setting, its value before and after (secrets masked)."""
