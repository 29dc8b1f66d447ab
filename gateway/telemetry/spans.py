"""Spans of a settled request, by OpenTelemetry's conventions for HTTP and generative AI (1.37, where the latter are in development).

One request is one SERVER span. Below it: `queue` where it waited for an engine, `guardrails`, and a CLIENT span for each call to an engine;
the last of these has `prefill` and `decode`, where a stream shows the difference. Langfuse and others group by `user.id` and `session.id`.
No span has a text of the request or of its answer. Only the call's span has what was generated: tools that sum tokens over all spans of a
trace (Phoenix does) would count them twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from gateway.core.types import OutcomeRecord
from gateway.telemetry.detail import OPERATIONS
from gateway.telemetry.observer import Seen, failed
from gateway.telemetry.tracing import span_id

QUEUED_NS: Final = 1_000_000
"""From here on a wait for an engine is a span of its own."""
Value = str | int | float | bool | tuple[str, ...]


@dataclass(slots=True)
class Span:
    """One span. trace, span, parent: hexadecimal. begin, end: nanoseconds since the epoch."""

    name: str
    kind: Literal["server", "client", "internal"]
    trace: str
    span: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str = ""


def spans_of(seen: Seen) -> Iterator[Span]:
    """All spans of one request, its own first."""
    record, trace, marks = seen.record, seen.trace, seen.marks
    assert trace is not None
    ended = int(record.time * 1e9)
    if not marks:  # it was not sampled, and failed
        own = _own(record, trace.trace, trace.span, trace.parent, ended - int(record.duration_ms * 1e6), ended)
        own.attributes |= _there(_generation(record))
        yield own
        return
    shift = ended - marks[-1][1]
    begin = marks[0][1]
    own = _own(record, trace.trace, trace.span, trace.parent, begin + shift, ended)
    if not trace.calls:
        own.attributes |= _there(_generation(record))
    for (_, before), (phase, at) in pairwise(marks):
        name = f"gatehouse.phase.{phase}"
        own.attributes[name] = round(float(own.attributes.get(name, 0.0)) + (at - before) / 1e6, 4)  # type: ignore[arg-type]
    yield own
    for (_, before), (phase, at) in pairwise(marks):
        if phase == "inspect" or (phase == "select" and at - before >= QUEUED_NS):
            name = "guardrails" if phase == "inspect" else "queue"
            yield Span(name, "internal", trace.trace, span_id(), trace.span, before + shift, at + shift)
    for number, (span, sent) in enumerate(trace.calls):
        last = number == len(trace.calls) - 1
        ends = next((at for phase, at in marks if at > sent and phase != "dispatch"), marks[-1][1])
        call = Span(own.name, "client", trace.trace, span, trace.span, sent + shift, ends + shift, _call(record, last))
        if last and failed(record):
            call.error = record.code
        yield call
        if last and record.first_ms:
            first = min(max(begin + int(record.first_ms * 1e6), sent), ends) + shift
            yield Span("prefill", "internal", trace.trace, span_id(), span, call.begin, first)
            yield Span("decode", "internal", trace.trace, span_id(), span, first, call.end)


def _own(record: OutcomeRecord, trace: str, span: str, parent: str, begin: int, end: int) -> Span:
    operation = OPERATIONS.get(record.operation, record.operation)
    name = f"{operation} {record.model}".strip() or "request"
    found: dict[str, Value] = {
        "http.request.method": "POST",
        "http.response.status_code": record.status,
        "client.address": record.peer,
        "error.type": record.code if record.status >= 400 else "",
        "user.id": record.user,
        "session.id": record.session,
        "gatehouse.request_id": record.request_id,
        "gatehouse.outcome": record.outcome,
        "gatehouse.tenant": record.tenant,
        "gatehouse.principal": record.principal,
        "gatehouse.agent": record.agent,
        "gatehouse.endpoint": record.endpoint,
        "gatehouse.attempts": record.attempts,
        "gatehouse.route": record.route,
        "gatehouse.guardrail": record.guardrail,
        "gatehouse.cost_nano": record.cost,
        "gatehouse.currency": record.currency,
    }
    return Span(name, "server", trace, span, parent, begin, end, _there(found), record.code if failed(record) else "")


def _generation(record: OutcomeRecord) -> dict[str, Value]:
    return {
        "gen_ai.operation.name": OPERATIONS.get(record.operation, record.operation),
        "gen_ai.provider.name": "gatehouse",
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.finish_reasons": (record.finish,) if record.finish else (),
    }


def _call(record: OutcomeRecord, last: bool) -> dict[str, Value]:
    """Of a call to an engine. What earlier calls were answered is not in the record."""
    if last:
        return _there({**_generation(record), "server.address": record.endpoint})
    return _there({"gen_ai.request.model": record.model})


def _there(found: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in found.items() if value not in ("", 0, ())}
