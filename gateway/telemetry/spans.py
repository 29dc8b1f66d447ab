"""Spans of a settled request, by OpenTelemetry's conventions for HTTP and generative AI (1.37, where the latter are in development).

One request is one SERVER span. Below it: `queue` where it waited for an engine, `guardrails`, and a CLIENT span for each call to an engine.
The last of these has `engine`, where the engine is our sidecar and says what it did when (`prepare`, `queue`, `prefill`, `decode`; `run`
where nothing is generated), else `prefill` and `decode`, where a stream shows the difference. Langfuse and others group by `user.id`
and `session.id`. No span has a text of the request or of its answer. Only the call's span has what was generated: tools that sum tokens
over all spans of a trace (Phoenix does) would count them twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, Literal

from gateway.core.types import OutcomeRecord
from gateway.telemetry.detail import OPERATIONS
from gateway.telemetry.observer import Seen, failed
from gateway.telemetry.tracing import span_id

QUEUED_NS: Final = 1_000_000
"""From here on a wait for an engine is a span of its own."""
MOST_PHASES: Final = 512
"""Bytes of the header in which an engine tells them."""
_PHASE: Final = re.compile(rb"(?:^|;)([a-z_]{1,16})=([0-9]{1,19})(?=;|$)")
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
            call.attributes |= _there({"error.type": record.code})
        if last and record.first_ms:  # Langfuse's name for the moment of the first token
            call.attributes["langfuse.observation.completion_start_time"] = _moment(begin + shift + int(record.first_ms * 1e6))
        yield call
        if last:
            first = min(max(begin + int(record.first_ms * 1e6), sent), ends) if record.first_ms else 0
            yield from _engine(seen, call, read_phases(seen.phases, sent, ends), first, shift)


def read_phases(header: bytes, sent: int, ends: int) -> list[tuple[str, int]]:
    """What an engine says that it did, each step with its end in nanoseconds of the phases' clock, `received` first. What is not of this
    form, or not between sent and ends, is nothing: it may come from an engine that is not ours."""
    found = [(match[1].decode(), int(match[2])) for match in _PHASE.finditer(header)] if len(header) < MOST_PHASES else []
    times = [at for _, at in found]
    right = found and found[0][0] == "received" and sent <= times[0] and times[-1] <= ends and times == sorted(times)
    return found if right else []


def _engine(seen: Seen, call: Span, phases: list[tuple[str, int]], first: int, shift: int) -> Iterator[Span]:
    """The spans below a call. first: when the first part of a streamed answer came; 0 where it was not streamed."""
    parent = call.span
    if phases:
        last = phases[-1][1] + shift
        streamed = first and phases[-1][0] != "decode"
        engine = Span("engine", "internal", call.trace, span_id(), parent, phases[0][1] + shift, call.end if streamed else last)
        engine.attributes = _there({"gatehouse.endpoint": seen.record.endpoint})
        yield engine
        parent = engine.span
        for (_, before), (name, at) in pairwise(phases):
            if name != "queue" or at - before >= QUEUED_NS:
                yield Span(name, "internal", call.trace, span_id(), parent, before + shift, at + shift, _tokens(seen.record, name))
        if not streamed:
            return
        if phases[-1][0] == "prefill":
            yield Span("decode", "internal", call.trace, span_id(), parent, last, call.end, _tokens(seen.record, "decode"))
            return
    if first:
        begin = max(call.begin, phases[-1][1] + shift) if phases else call.begin
        yield Span("prefill", "internal", call.trace, span_id(), parent, begin, max(begin, first + shift), _tokens(seen.record, "prefill"))
        yield Span("decode", "internal", call.trace, span_id(), parent, max(begin, first + shift), call.end, _tokens(seen.record, "decode"))


def _tokens(record: OutcomeRecord, phase: str) -> dict[str, Value]:
    """What a phase had to do. Under names of ours: those of the conventions would be summed up with the call's."""
    if phase == "prefill":
        read = max(0, record.prompt_tokens - record.cached_tokens)
        return _there({"gatehouse.tokens_read": read, "gatehouse.tokens_reused": record.cached_tokens})
    return _there({"gatehouse.tokens_written": record.completion_tokens}) if phase == "decode" else {}


def _own(record: OutcomeRecord, trace: str, span: str, parent: str, begin: int, end: int) -> Span:
    operation = OPERATIONS.get(record.operation, record.operation)
    name = f"{operation} {record.model}".strip() or "request"
    found: dict[str, Value] = {
        "http.request.method": "POST",
        "http.response.status_code": record.status,
        "client.address": record.peer,
        "error.type": record.code if record.status >= 400 or failed(record) else "",
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
        "gen_ai.usage.cost": record.cost / 1e9 if record.currency == "USD" else 0.0,
        "gen_ai.response.finish_reasons": (record.finish,) if record.finish else (),
    }


def _call(record: OutcomeRecord, last: bool) -> dict[str, Value]:
    """The span of a call to an engine. How earlier calls were answered is not in the record."""
    if last:
        beside = {"server.address": record.endpoint, "user.id": record.user, "session.id": record.session}
        return _there({**_generation(record), **beside, "langfuse.observation.usage_details": _apart(record)})
    return _there({"gen_ai.request.model": record.model})


def _apart(record: OutcomeRecord) -> str:
    """For Langfuse, which adds up all kinds of tokens, while the conventions count those from an engine's cache among the input."""
    if not record.cached_tokens:
        return ""
    read = max(0, record.prompt_tokens - record.cached_tokens)
    return json.dumps({"input": read, "input_cached_tokens": record.cached_tokens, "output": record.completion_tokens})


def _moment(at: int) -> str:
    """Nanoseconds since the epoch in ISO 8601."""
    return datetime.fromtimestamp(at / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _there(found: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in found.items() if value not in ("", 0, ())}
