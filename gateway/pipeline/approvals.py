"""Answers and requests that wait for a person's decision: keeping them, and giving a kept answer to the retry that names its approval.

A retry passes everything that any request passes first: its credential, halts, suspensions, policy. Then it costs one request until the
kept answer is on its way, so that asking again and again is not free; the answer itself was charged when the engine gave it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gateway.core.approvals import HEADER, ApprovalDesk, Form, Held, HeldUse, Hold, Take, Taken, request_hash, requester_of
from gateway.core.errors import ApprovalPending, EngineError, GuardrailViolation, PermissionDenied
from gateway.core.slices import Steps, at_once
from gateway.core.snapshot import ModelEntry
from gateway.core.tools import CallReader, ToolFinding, ToolGuard, ToolUse
from gateway.pipeline import shapes
from gateway.pipeline.exchange import LAST_CHUNK, Exchange, chunked
from gateway.pipeline.held import AT_ONCE
from gateway.pipeline.memory import UNCOUNTED
from gateway.pipeline.stream import OK, STREAM_HEADERS

NO_RETRY: Final = (("x-should-retry", "false"),)
_ID: Final = re.compile(rb"[A-Za-z0-9-]{1,64}")
_REFUSALS: Final = {
    "denied": ("The call was denied.", "approval_denied"),
    "expired": ("The approval has expired.", "approval_expired"),
    "used": ("The approval has already been used; it is valid once.", "approval_used"),
    "other": ("The approval is for another request.", "approval_mismatch"),
    "unknown": ("There is no such approval for this caller.", "approval_unknown"),
}


def pending(held: Held) -> ApprovalPending:
    """What the client is told while nothing is decided."""
    error = ApprovalPending(f"The call of the tool {held.tool[:64]!r} waits for approval.", headers=NO_RETRY)
    error.approval = {"id": held.id, "tool": held.tool, "arguments_sha256": held.sha256, "expires_at": held.expires}
    return error


def _step(x: Exchange) -> tuple[ModelEntry, bool] | None:
    """The pipeline of which a request is a step (gateway.app.pipelines.calls), and whether it is the last one; None for any other."""
    told = None if x.detail is None else x.detail.get("pipeline")
    if told is None or "step" not in told:
        return None
    pipeline = x.snapshot.models[told["model"]]
    return pipeline, told["step"] == pipeline.spec.pipeline.steps[-1].name  # type: ignore[union-attr]


def judged_by_pipeline(x: Exchange, guard: ToolGuard, asked: bool) -> bool:
    """Whether a request is a step of a pipeline that a guardrail judges too: there it has held what the request brings (asked), and will
    hold what the last step answers. So it need not wait here, where it cannot."""
    found = _step(x)
    if found is None:
        return False
    pipeline, last = found
    return guard in pipeline.request_tools if asked else last and guard in pipeline.response_tools


async def hold(x: Exchange, guard: ToolGuard, findings: Sequence[ToolFinding], form: Form, body: bytes) -> None:
    """Keeps an answer (form `whole` or `stream`) or has a request wait (form ""). Raises ApprovalPending; GuardrailViolation where nothing
    can be kept; what the store raises."""
    desk: ApprovalDesk | None = x.plane.approvals
    request, principal = x.request, x.principal
    assert request is not None and principal is not None and x.entry is not None
    if desk is None:
        raise GuardrailViolation("The call needs an approval, but this gateway cannot hold calls for approval.", code=guard.name)
    if _step(x) is not None:  # the client cannot send the step's request again, only the pipeline's
        raise GuardrailViolation("The call needs an approval, which a step of a pipeline cannot wait for.", code=guard.name)
    uses = [
        HeldUse(
            tool=finding.use.name,
            of=finding.use.kind,
            arguments=finding.use.arguments,
            sha256=finding.sha256,
            action=finding.action,
            rule=finding.rule,
            reversibility=finding.reversibility,
            place=finding.use.place,
        )
        for finding in findings
    ]
    held: Held = await desk.hold(
        Hold(
            guardrail=guard.name,
            model=x.entry.name,
            operation=request.operation,
            request_id=x.request_id.decode(),
            peer=x.peer.address,
            requester=requester_of(principal),
            request=request_hash(x.path, x.body or b""),
            uses=uses,
            approvers=tuple(guard.approvers),
            seconds=guard.expires,
            form=form,
            began=x.started_ns * 1e-9,
            body=body,
        )
    )
    x.detail = {**(x.detail or {}), "approval": held.id}
    raise pending(held)


async def asked(x: Exchange, look: bool) -> Taken:
    """What there is on the approval that a retry names. look: change nothing, and read what is approved. Raises ApprovalPending,
    PermissionDenied for one that gives nothing."""
    desk: ApprovalDesk | None = x.plane.approvals
    principal = x.principal
    assert principal is not None
    given = x.headers[HEADER]
    if desk is None or _ID.fullmatch(given) is None:
        raise _refused("unknown")
    x.detail = {**(x.detail or {}), "approval": given.decode()}
    found: Taken = await desk.take(
        Take(
            id=given.decode(),
            requester=requester_of(principal),
            request=request_hash(x.path, x.body or b""),
            request_id=x.request_id.decode(),
            look=look,
            made=principal.made,
            read=look,
        )
    )
    if found.state == "pending" and found.held is not None:
        raise pending(found.held)
    if found.state not in ("approved", "taken"):
        raise _refused(found.state)
    return found


def _refused(state: str) -> PermissionDenied:
    message, code = _REFUSALS.get(state, _REFUSALS["unknown"])
    return PermissionDenied(message, code=code, headers=NO_RETRY)


async def in_form(x: Exchange, form: str, body: bytes) -> bytes:
    """An answer of this form in the one that the client asks for. Raises EngineError for one that has no such form."""
    request = x.request
    assert request is not None
    if request.stream:  # a stream that was kept may tell the usage, and this one may not ask for it
        return request.api.replayed(body, form == "stream", True, request.include_usage)
    return body if form == "whole" else await shapes.whole(x, body)


def sent(x: Exchange, body: bytes) -> None:
    """Gives the client an answer that is in the form that it asks for."""
    request = x.request
    assert request is not None
    if len(body) > UNCOUNTED:
        x.client.reserve(len(body))
    if request.stream:
        x.client.send(x.head(OK, STREAM_HEADERS))
        x.head_sent = True
        x.status = 200
        x.client.send(chunked(body) + LAST_CHUNK)
    else:
        lines = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        x.client.send(x.head(OK, lines) + body)
        x.head_sent = True
    x.answer_bytes = len(body)
    x.answer_hash = x.snapshot.audit.hash_body(body)


async def calls_of(x: Exchange, form: str, body: bytes) -> Sequence[ToolUse]:
    """The calls of a kept answer, to be judged by the rules in force now. Those of a long stream are read in turns of the loop. Raises
    EngineError."""
    request = x.request
    assert request is not None
    if form == "whole":
        return request.api.tool_calls(body)[1]
    reader = request.api.call_reader()
    if reader is None:
        raise EngineError("The kept answer cannot be read.")
    events = body.split(b"\n\n")[:-1]
    steps = _followed(reader, events)
    if len(events) <= AT_ONCE:
        at_once(steps)
    else:
        await x.plane.turns.run(steps)
    return reader.uses()


def _followed(reader: CallReader, events: Sequence[bytes]) -> Steps[None]:
    for event in events:
        reader.feed(event)
        yield
