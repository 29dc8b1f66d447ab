"""Types of the operations below /approvals. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ApprovalDryRun(TypedDict):
    result: ApprovalView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class ApprovalPage(TypedDict):
    items: list[ApprovalView]
    cursor: NotRequired[str | None]


class ApprovalView(TypedDict):
    """kind: `answer` is kept, or a `request` waits. calls: whole, in the view of one approval, until they are erased."""

    id: str
    state: Literal["approved", "denied", "expired", "pending", "used"]
    kind: Literal["answer", "request"]
    tool: str
    arguments_sha256: str
    requester: RequesterView
    model: str
    operation: str
    guardrail: str
    request_id: str
    tools: list[ToolView]
    approvers: list[str]
    created_at: str
    expires_at: str
    decided_at: str | None
    decided_by: str
    reason: str
    used_at: str | None
    bytes: int
    calls: NotRequired[list[UseView] | None]


class Decision(TypedDict):
    """reason: for the record. arguments_sha256: of the arguments that were seen; the decision fails if others are kept."""

    reason: str
    arguments_sha256: NotRequired[str | None]


class RequesterView(TypedDict):
    tenant: str
    id: str
    kind: str
    user: str
    agent: str


class ToolView(TypedDict):
    tool: str
    arguments_sha256: str
    action: str
    reversibility: str


class UseView(TypedDict):
    """One use of a tool. of: `call`, `result` or `definition`. action: what the rule said; -1 as `rule`: none fitted."""

    tool: str
    of: str
    arguments: Any
    arguments_sha256: str
    action: str
    rule: int
    reversibility: str
    place: str
