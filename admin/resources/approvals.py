"""Approvals: tool calls that wait for a person's decision, seen whole and decided with a reason, never by whoever asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import ApprovalControl
from admin.resource import Cursor, Tenant
from gateway.core.approvals import MAX_REASON, ApprovalRecord
from gateway.core.canonical import parsed
from gateway.core.errors import PermissionDenied, RequestError, StoreUnavailable

READ, DECIDE = "approvals:read", "approvals:decide"
ApprovalState = Literal["pending", "approved", "denied", "expired", "used"]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """reason: for the record. arguments_sha256: of the arguments that were seen; the decision fails if others are kept."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON)]
    arguments_sha256: Digest | None = None


class RequesterView(msgspec.Struct, kw_only=True):
    tenant: str
    id: str
    kind: str
    user: str
    agent: str


class UseView(msgspec.Struct, kw_only=True):
    """One use of a tool. of: `call`, `result` or `definition`. action: what the rule said; -1 as `rule`: none fitted."""

    tool: str
    of: str
    arguments: Any
    arguments_sha256: str
    action: str
    rule: int
    reversibility: str
    place: str


class ToolView(msgspec.Struct, kw_only=True):
    tool: str
    arguments_sha256: str
    action: str
    reversibility: str


class ApprovalView(msgspec.Struct, kw_only=True):
    """kind: `answer` is kept, or a `request` waits. calls: whole, in the view of one approval, until they are erased."""

    id: str
    state: ApprovalState
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
    created_at: Timestamp
    expires_at: Timestamp
    decided_at: Timestamp | None
    decided_by: str
    reason: str
    used_at: Timestamp | None
    bytes: int
    calls: list[UseView] | None = None


class ApprovalPage(msgspec.Struct):
    items: list[ApprovalView]
    cursor: str | None = None


class ApprovalDryRun(msgspec.Struct):
    result: ApprovalView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class Wanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """state: as it is now; by default all. cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None
    state: ApprovalState | None = None
    tenant: Tenant | None = None


async def index(call: Call) -> Answer:
    """The oldest first."""
    wanted: Wanted = call.query
    held = call.access.tenants(READ)
    if wanted.tenant is not None:
        call.require(READ, wanted.tenant)
        held = frozenset({wanted.tenant})
    part, _, after = (wanted.cursor or "store:").partition(":")
    if part != "store":
        raise RequestError("This cursor did not come from a page.", param="cursor")
    tenants = None if held is None else sorted(held)
    page = await _port(call).page(tenant=tenants, state=wanted.state, limit=wanted.limit, cursor=after or None)
    return Answer({"items": [_view(one) for one in page.items], "cursor": None if page.cursor is None else f"store:{page.cursor}"})


async def show(call: Call) -> Answer:
    """With the calls whole. That they were seen is in the audit log."""
    record = await _visible(call)
    seen, uses = await _port(call).show(record.id, call.actor)
    calls = None
    if uses is not None:
        calls = [
            {
                "tool": use.tool,
                "of": use.of,
                "arguments": _arguments(use.arguments),
                "arguments_sha256": use.sha256,
                "action": use.action,
                "rule": use.rule,
                "reversibility": use.reversibility,
                "place": use.place,
            }
            for use in uses
        ]
    return Answer({**_view(seen), "calls": calls})


async def approve(call: Call) -> Answer:
    return await _decide(call, True)


async def deny(call: Call) -> Answer:
    return await _decide(call, False)


async def _decide(call: Call, approve: bool) -> Answer:
    record = await _visible(call)
    call.require(DECIDE, record.requester.tenant)
    call.target = f"approvals/{record.id}"
    _one_of_the_approvers(call, record)
    wanted: Decision = call.body
    decided = await _port(call).decide(
        record.id,
        approve,
        wanted.reason,
        call.access.principal,
        call.actor,
        wanted.arguments_sha256,
        dry_run=call.dry_run,
    )
    call.diff = values.diff({"state": record.state, "reason": ""}, {"state": decided.state, "reason": decided.reason})
    view = _view(decided)
    return Answer({"dry_run": True, "diff": call.diff, "result": view} if call.dry_run else view)


async def _visible(call: Call) -> ApprovalRecord:
    """Raises NotFound, also for one of a tenant whose approvals the caller may not read."""
    id = call.path["id"]
    record = await _port(call).get(id)
    call.seen(READ, record.requester.tenant, "approval", id[:64])
    return record


def _one_of_the_approvers(call: Call, record: ApprovalRecord) -> None:
    """Raises PermissionDenied for somebody whom the guardrail does not name."""
    if not record.approvers:
        return
    access, tenant = call.access, record.requester.tenant
    roles = {f"role/{grant.role}" for grant in access.grants if grant.tenant is None or grant.tenant == tenant}
    others = [subject for subject in record.approvers if not subject.startswith("role/")]
    if roles.isdisjoint(record.approvers) and not (others and call.ports.roles.concerns(access.principal, others, "*")):
        raise PermissionDenied(f"This is for {', '.join(record.approvers)} to decide.", code="not_an_approver")


def _arguments(text: str) -> Any:
    """As JSON where that says the same, for people to read; else the text."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return parsed(text)
    except ValueError:  # it has more than one reading, so it is shown as it is
        return text


def _view(record: ApprovalRecord) -> dict[str, Any]:
    held = record.held
    requester = record.requester
    return {
        "id": record.id,
        "state": record.state,
        "kind": "answer" if record.form else "request",
        "tool": held.tool,
        "arguments_sha256": held.sha256,
        "requester": {name: getattr(requester, name) for name in RequesterView.__struct_fields__},
        "model": record.model,
        "operation": record.operation,
        "guardrail": record.guardrail,
        "request_id": record.request_id,
        "tools": [
            {"tool": tool, "arguments_sha256": digest, "action": action, "reversibility": reversibility}
            for tool, digest, action, reversibility in record.tools
        ],
        "approvers": list(record.approvers),
        "created_at": timestamp(record.created),
        "expires_at": timestamp(record.expires),
        "decided_at": timestamp(record.decided),
        "decided_by": record.decider,
        "reason": record.reason,
        "used_at": timestamp(record.used),
        "bytes": record.size,
    }


def _port(call: Call) -> ApprovalControl:
    if call.ports.approvals is None:
        raise StoreUnavailable("This installation has no store, so nothing is kept for approval.")
    return call.ports.approvals


def operations() -> list[Operation]:
    either = (ApprovalView, ApprovalDryRun)
    one = "approvals/{id}"
    decision: dict[str, Any] = {"answer": either, "query": Written, "body": Decision, "finds": True, "refuses": (409,)}
    return [
        Operation("GET", "approvals", READ, "List approvals", index, ApprovalPage, Wanted),
        Operation("GET", one, READ, "Get an approval with its calls", show, ApprovalView, finds=True),
        Operation("POST", f"{one}/approve", DECIDE, "Approve", approve, **decision),
        Operation("POST", f"{one}/deny", DECIDE, "Deny", deny, **decision),
    ]
