"""Revealing texts of the audit log: asked for with a reason, approved by somebody else, fetched once by whoever asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import RevealControl
from admin.resource import Cursor, Tenant, location
from admin.resources.data_keys import Reason
from gateway.core.errors import NotFound, RequestError, StoreUnavailable
from gateway.core.vault import RevealedText

REVEAL, APPROVE = "audit:reveal", "audit:approve"
RevealState = Literal["pending", "approved", "denied", "used", "expired"]


class RevealSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """tenant: needed only where several tenants have requests of this id."""

    request_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    reason: Reason
    tenant: Tenant | None = None


class RevealDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Reason


class RevealQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None


class RevealView(msgspec.Struct, kw_only=True):
    id: str
    state: RevealState
    request_id: str
    tenant: str
    reason: str
    asked_by: str
    created_at: Timestamp
    expires_at: Timestamp
    decided_by: str
    decided_at: Timestamp | None
    decision_reason: str
    used_at: Timestamp | None


class RevealPage(msgspec.Struct):
    items: list[RevealView]
    cursor: str | None = None


class RevealDryRun(msgspec.Struct):
    result: RevealView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class TextView(msgspec.Struct, kw_only=True):
    """kind: `intent` (the prompt) or `outcome` (the answer). state: `shredded` where its key was destroyed, `lost` where it does not open
    (`why`). text: `body` as it was sent; of a stream `texts` by their places; `cut` where it was longer than what is kept."""

    kind: str
    time: Timestamp
    state: Literal["text", "shredded", "lost"]
    key: str
    text: dict[str, Any] | None
    why: str


class Revealed(msgspec.Struct):
    reveal: RevealView
    texts: list[TextView]


async def index(call: Call) -> Answer:
    """The oldest first; those that the caller may ask for or decide."""
    query: RevealQuery = call.query
    held = [call.access.tenants(permission) for permission in (REVEAL, APPROVE)]
    tenants = None if None in held else sorted(frozenset().union(*(one for one in held if one is not None)))
    part, _, after = (query.cursor or "store:").partition(":")
    if part != "store":
        raise RequestError("This cursor did not come from a page.", param="cursor")
    page = await _port(call).page(tenants, query.limit, after or None)
    items = [_view(call, one) for one in page.items]
    return Answer({"items": items, "cursor": None if page.cursor is None else f"store:{page.cursor}"})


async def show(call: Call) -> Answer:
    return Answer(_view(call, await _visible(call)))


async def create(call: Call) -> Answer:
    """Asks. Nothing of the text is read yet."""
    wanted: RevealSettings = call.body
    call.target = f"audit/reveals/{wanted.request_id}"
    port = _port(call)
    there = [one for one in await port.tenants(wanted.request_id) if call.access.may(REVEAL, one)]
    chosen = [one for one in there if wanted.tenant in (None, one)]
    if not chosen:
        raise NotFound(f"The audit log of this replica has no text of the request {wanted.request_id!r}.")
    if len(chosen) > 1:
        raise RequestError(f"tenant: name one of {', '.join(chosen)}, which all have requests of this id.", param="tenant")
    made = await port.ask(wanted.request_id, chosen[0], wanted.reason, call.access.principal, call.actor, dry_run=call.dry_run)
    return _changed(call, made, None, 201)


async def approve(call: Call) -> Answer:
    return await _decide(call, True)


async def deny(call: Call) -> Answer:
    return await _decide(call, False)


async def _decide(call: Call, yes: bool) -> Answer:
    found = await _visible(call)
    call.require(APPROVE, found.tenant)
    call.target = f"audit/reveals/{found.id}"
    wanted: RevealDecision = call.body
    made = await _port(call).decide(found.id, yes, wanted.reason, call.access.principal, call.actor, dry_run=call.dry_run)
    return _changed(call, made, found.body.state, 200)


async def fetch(call: Call) -> Answer:
    """The texts, once. They are in this answer and nowhere else."""
    found = await _visible(call)
    call.require(REVEAL, found.tenant)
    call.target = f"audit/reveals/{found.id}"
    if call.dry_run:
        return Answer({"reveal": _view(call, found), "texts": []})
    used, texts = await _port(call).open(found.id, call.access.principal, call.actor)
    call.diff = [{"path": "state", "from": found.body.state, "to": "used"}]
    return Answer({"reveal": _view(call, used), "texts": [_text(one) for one in texts]})


async def _visible(call: Call) -> Any:
    """Raises NotFound, also for one of a tenant whose texts the caller may neither ask for nor release."""
    id = call.path["id"]
    found = await _port(call).get(id)
    if not (call.access.may(REVEAL, found.tenant) or call.access.may(APPROVE, found.tenant)):
        raise NotFound(f"There is no reveal {id[:64]!r}.")
    return found


def _changed(call: Call, made: Any, before: str | None, status: int) -> Answer:
    call.diff = [{"path": "state", "from": before, "to": made.body.state}]
    view = _view(call, made)
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": view})
    return Answer(view, status, location=location("audit/reveals", made.id) if status == 201 else None)


def _view(call: Call, one: Any) -> dict[str, Any]:
    body = one.body
    return {
        "id": one.id,
        "state": one.state(call.ports.clock.wall()),
        "request_id": body.request_id,
        "tenant": one.tenant,
        "reason": body.reason,
        "asked_by": body.by,
        "created_at": timestamp(body.created),
        "expires_at": timestamp(body.expires),
        "decided_by": body.decider,
        "decided_at": None if body.decided is None else timestamp(body.decided),
        "decision_reason": body.decision_reason,
        "used_at": None if body.used is None else timestamp(body.used),
    }


def _text(one: RevealedText) -> dict[str, Any]:
    return {"kind": one.kind, "time": timestamp(one.time), "state": one.state, "key": one.key, "text": one.text, "why": one.why}


def _port(call: Call) -> RevealControl:
    if call.ports.texts is None:
        raise StoreUnavailable("This installation has no store, so nothing can be revealed.")
    return call.ports.texts.reveals


def operations() -> list[Operation]:
    at, one = "audit/reveals", "audit/reveals/{id}"
    either = (RevealView, RevealDryRun)
    decision: dict[str, Any] = {"answer": either, "query": Written, "body": RevealDecision, "finds": True, "refuses": (409,)}
    return [
        Operation("GET", at, REVEAL, "List reveals", index, RevealPage, query=RevealQuery),
        Operation(
            "POST", at, REVEAL, "Ask for a request's texts", create, either, Written, RevealSettings, 201, finds=True, refuses=(409,)
        ),
        Operation("GET", one, REVEAL, "Show a reveal", show, RevealView, finds=True),
        Operation("POST", f"{one}/approve", APPROVE, "Approve a reveal", approve, **decision),
        Operation("POST", f"{one}/deny", APPROVE, "Deny a reveal", deny, **decision),
        Operation("POST", f"{one}/fetch", REVEAL, "Fetch the texts, once", fetch, Revealed, query=Written, finds=True, refuses=(409, 410)),
    ]
