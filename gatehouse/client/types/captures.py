"""Types of the operations below /captures. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class CaptureDryRun(TypedDict):
    result: CaptureView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class CapturePage(TypedDict):
    items: list[CaptureView]
    cursor: NotRequired[str | None]


class CaptureSettings(TypedDict):
    """key: the id of an API key. seconds: for how long. reason: for the record."""

    key: str
    seconds: NotRequired[float]
    reason: str


class CaptureView(TypedDict):
    key: str
    tenant: str
    until: str
    reason: str
    actor: str
