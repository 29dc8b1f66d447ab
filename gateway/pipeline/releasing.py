"""A kept answer on its way to the retry that names its approval: judged by what is in force then, not by what was as it was kept.

Guardrails read the request and the answer as if it had come now, the rules for tools and for the form of answers count, and the model that
gave it must still be one that may answer this caller. The answer is judged before it is taken, so that a refusal, also that of a
guardrail that fails, leaves the approval as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.approvals import Taken
from gateway.core.errors import EngineError, GuardrailViolation, PermissionDenied
from gateway.core.slices import at_once
from gateway.core.snapshot import ModelEntry
from gateway.core.tools import ToolUse
from gateway.core.types import ResponseHead
from gateway.pipeline import approvals, held, inspect, shapes, tools
from gateway.pipeline.exchange import Exchange
from gateway.wire.sse import PORTION, read_steps

_HEAD: Final = ResponseHead(200, [(b"content-type", b"application/json")])
_GONE: Final = "The model that gave the answer may not answer this request any more."
_CHANGED: Final = "A policy would rewrite the calls that were approved."


async def prepare(x: Exchange, asked: ModelEntry, model: str) -> ModelEntry:
    """The entry of the model that gave the answer: the one asked for, or a fallback. Guardrails have read the request then. Raises
    PermissionDenied where that model may not answer the caller now, GuardrailViolation or any error of the guardrails, AuditUnavailable."""
    inspect.recordable(x)
    entry, request = _answering(x, asked, model), x.request
    assert request is not None
    for one in (asked,) if entry is asked else (asked, entry):  # a fallback has only the guardrails that the other does not have
        if one.request_guardrails:
            await inspect.request(x, one.request_guardrails)
        if one.request_tools:  # what waits for approval in the request has been approved, or no answer would have been kept
            tools.judged(x, one.request_tools, request.api.tool_uses(request), True)
    return entry


def _answering(x: Exchange, asked: ModelEntry, model: str) -> ModelEntry:
    if model in ("", asked.name):
        return asked
    request, standing = x.request, x.plane.standing
    assert request is not None and x.principal is not None
    for fallback in asked.fallbacks:
        if fallback.name == model:
            request.api.rename(request, fallback.name)
            if x.snapshot.labels is not None and (labels := x.snapshot.labels.of_model(fallback.name)):
                inspect.labelled(x, labels)
            allowed = not standing.of_model(fallback.name) and x.snapshot.authorizer.decide(x.principal, request, x.peer, x.size).allow
            if not allowed:
                break
            x.entry = fallback
            return fallback
    raise PermissionDenied(_GONE, code="approval_mismatch", headers=approvals.NO_RETRY)


async def release(x: Exchange, found: Taken) -> None:
    """Gives the retry the answer that was found for it, once. Raises GuardrailViolation where what is in force now does not allow it, and
    any error of the guardrails: then the approval stays."""
    body = await approvals.in_form(x, found.form, await _judged(x, found.form, found.body))
    await approvals.asked(x, False)
    approvals.sent(x, body)


async def _judged(x: Exchange, form: str, body: bytes) -> bytes:
    """The answer as it may be passed on. A guardrail may rewrite its texts, but not the calls: those were approved as they are."""
    entry, request = x.entry, x.request
    assert entry is not None and request is not None
    if not body:
        raise EngineError("The kept answer cannot be read.")
    uses = await approvals.calls_of(x, form, body)
    if entry.response_guardrails or x.layers:
        passing = await (_whole(x, body) if form == "whole" else _stream(x, body))
        again = await approvals.calls_of(x, form, passing)
        if _said(again) != _said(uses):
            raise GuardrailViolation(_CHANGED, code=x.guardrail or "guardrail")
        body = passing
    tools.judged(x, entry.response_tools, uses)
    if x.shapes:
        shapes.judged(x, body if form == "whole" else await shapes.whole(x, body)).settle()
    return body


async def _whole(x: Exchange, body: bytes) -> bytes:
    passing, _ = await inspect.answer(x, x.entry.response_guardrails, _HEAD, body, True, True)  # type: ignore[union-attr]
    return passing


async def _stream(x: Exchange, body: bytes) -> bytes:
    request = x.request
    assert request is not None
    asked, request.include_usage = request.include_usage, True  # what was kept has what the first request asked for
    reader = request.api.reader(request)
    request.include_usage = asked
    reader.inspects = True
    steps = read_steps(reader, body)
    data = at_once(steps) if len(body) <= PORTION else await x.plane.turns.run(steps)
    data = await held.inspected(x, reader, data, True)
    return data if reader.ended else data + reader.ending()


def _said(uses: Sequence[ToolUse]) -> list[tuple[tuple[str, ...], str]]:
    return [(use.names, use.arguments) for use in uses]
