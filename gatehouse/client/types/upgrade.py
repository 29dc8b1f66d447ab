"""Types of the operations below /upgrade. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class LastUpgrade(TypedDict):
    """before: the version that was replaced. seconds: from the hand-over to the last replaced worker."""

    outcome: Literal["done", "refused"]
    at: str
    reason: NotRequired[str]
    actor: NotRequired[str]
    before: NotRequired[str]
    seconds: NotRequired[float]


class UpgradeView(TypedDict):
    """state: `renewing` is when the new program replaces the workers one by one. version: of the program that runs. upgrades: since the
    process was started. to: the version that takes over. stuck: why a worker of the new program does not start; it is tried again, and
    another upgrade may begin.
    """

    state: Literal["checking", "handing over", "idle", "renewing"]
    version: str
    upgrades: int
    last: NotRequired[LastUpgrade | None]
    to: NotRequired[str]
    stuck: NotRequired[str]
