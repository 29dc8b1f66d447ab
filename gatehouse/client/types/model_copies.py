"""Types of the operations below /model_copies. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class ModelCopyList(TypedDict):
    items: list[ModelCopyView]
    cursor: NotRequired[str | None]


class ModelCopyView(TypedDict):
    """A model that replicas share. digest: stands for its content. replicas: who gives it to others. state: what it is at this replica:
    `differs`: another one of this name is here, `removed`: it was deleted, and somebody still has it. fetched: bytes that have come so
    far, from the replica `source`. problem: why it could not be fetched, deleted or shared.
    """

    name: str
    revision: int
    digest: str
    size: int
    replicas: list[str]
    state: Literal["absent", "differs", "fetching", "here", "removed"]
    fetched: int
    source: str | None
    problem: str | None
    changed_at: str
