"""Requests for moderation. A guardrail that asks a model answers them, not an engine.

They pass every phase of a request: credentials, permissions (`moderations`), limits, the model's guardrails, the audit log. Only the
guardrail that answers does not read the request first: it would refuse the very texts that it is asked about.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from gateway.core.errors import EngineError
from gateway.core.moderation import Moderator
from gateway.core.snapshot import Inspector, Snapshot
from gateway.core.types import InferenceRequest, ResponseHead
from gateway.core.waiting import Completion, Signal, check
from gateway.pipeline.exchange import Exchange

OK: Final = ResponseHead(200, [])


def choose(snapshot: Snapshot, request: InferenceRequest) -> None:
    """Puts the model that answers in place of the name asked for. Raises RequestError."""
    asked = request.model
    entry = snapshot.models.get(asked)
    model = snapshot.moderations.model(asked if entry is None else entry.name, entry is not None)
    if entry is None and model != asked:
        request.asked = asked
        request.api.rename(request, model)


def before(x: Exchange, guardrails: tuple[Inspector, ...]) -> tuple[Inspector, ...]:
    """The guardrails that read the request: all but the one that answers it."""
    assert x.entry is not None
    moderator = x.snapshot.moderations.of(x.entry.name)
    return guardrails if moderator is None else tuple(guardrail for guardrail in guardrails if guardrail.name != moderator.name)


async def judged(x: Exchange, moderator: Moderator, ticket: Signal[None]) -> bytes:
    """The answer. Raises EngineError where there is none."""
    request, principal = x.request, x.principal
    assert request is not None and principal is not None
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    texts = request.api.judged(request)
    x.sent_ns = perf_counter_ns()
    try:
        found = await moderator.moderate(texts, principal, max(0.001, x.deadline - x.plane.now), request.labels)
    finally:
        x.engine_ns += perf_counter_ns() - x.sent_ns
    if len(found.results) != len(texts):
        raise EngineError("The model did not judge every text.")
    x.usage = found.usage
    flagged = sum(result.flagged for result in found.results)
    x.detail = {**(x.detail or {}), "moderation": {"guardrail": moderator.name, "texts": len(texts), "flagged": flagged}}
    return request.api.judgement(request, x.request_id.decode(), found.results)
