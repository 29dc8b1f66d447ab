"""Types of the operations below /batches. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class BatchDryRun(TypedDict):
    result: BatchView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class BatchErrorView(TypedDict):
    """line: of the input, from 1; null for one of the whole batch."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchPage(TypedDict):
    items: list[BatchView]
    cursor: NotRequired[str | None]


class BatchView(TypedDict):
    """creator: the credential that made it, as `tenant/id`. repeated, unknown: lines that were run again after a crash, and lines whose
    outcome it took. moments: when each state began. holder: the process that works on it; "" for none.
    """

    id: str
    tenant: str
    creator: str
    state: Literal["cancelled", "cancelling", "completed", "expired", "failed", "finalizing", "in_progress", "validating"]
    endpoint: str
    input_file: str
    output_file: str
    error_file: str
    total: int
    completed: int
    failed: int
    repeated: int
    unknown: int
    errors: list[BatchErrorView]
    created_at: str
    expires_at: str
    moments: dict[str, str]
    holder: str
