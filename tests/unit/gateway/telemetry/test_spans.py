"""The spans of a settled request: one tree, with the right times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from gateway.core.types import OutcomeRecord
from gateway.telemetry.observer import Seen
from gateway.telemetry.spans import spans_of
from gateway.telemetry.tracing import Trace

MS = 1_000_000
RECORD = OutcomeRecord(
    1_700_000_000.0, "req-1", "ok", 200, tenant="acme", principal="k1", operation="chat", model="m", endpoint="m/0", attempts=1,
    prompt_tokens=7, completion_tokens=3, duration_ms=100.0, sent_ms=40.0, first_ms=60.0, finish="stop", user="ann", session="s-1",
)  # fmt: skip
MARKS = [
    ("", 0), ("receive", 1 * MS), ("inspect", 3 * MS), ("intent", 4 * MS), ("select", 39 * MS), ("dispatch", 41 * MS),
    ("engine", 95 * MS), ("settle", 100 * MS),
]  # fmt: skip


def traced(record: OutcomeRecord = RECORD, marks: list[tuple[str, int]] = MARKS, sent: int = 40 * MS, parent: str = "b" * 16) -> Seen:
    trace = Trace("a" * 32, parent)
    trace.calls.append(("c" * 16, sent))
    return Seen(record, trace, marks)


def test_the_spans_of_a_stream_are_one_tree_in_one_trace() -> None:
    seen = traced()
    found = {span.name if span.kind != "client" else "call": span for span in spans_of(seen)}
    assert list(found) == ["chat m", "guardrails", "queue", "call", "prefill", "decode"]
    own, call = found["chat m"], found["call"]
    assert {span.trace for span in found.values()} == {"a" * 32}
    assert (own.parent, own.kind, own.error) == ("b" * 16, "server", "")
    assert [found[name].parent for name in ("guardrails", "queue", "call")] == [own.span] * 3
    assert [found[name].parent for name in ("prefill", "decode")] == [call.span] * 2
    at = {name: ((span.begin - own.begin) // MS, (span.end - own.begin) // MS) for name, span in found.items()}
    assert at == {"chat m": (0, 100), "guardrails": (1, 3), "queue": (4, 39), "call": (40, 95), "prefill": (40, 60), "decode": (60, 95)}
    assert own.end == 1_700_000_000 * 10**9
    assert call.attributes["gen_ai.usage.input_tokens"] == 7
    assert call.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert not any(name.startswith("gen_ai") for name in own.attributes), "sums over a trace would count tokens twice"
    assert (own.attributes["user.id"], own.attributes["session.id"]) == ("ann", "s-1")
    assert own.attributes["gatehouse.phase.inspect"] == 2.0


def test_each_call_of_a_retried_request_ends_where_the_next_begins() -> None:
    marks = [
        ("", 0),
        ("select", 1 * MS),
        ("dispatch", 2 * MS),
        ("select", 10 * MS),
        ("dispatch", 11 * MS),
        ("engine", 50 * MS),
        ("settle", 51 * MS),
    ]
    seen = traced(marks=marks, sent=1 * MS)
    assert seen.trace is not None
    seen.trace.calls.append(("d" * 16, 10 * MS + 1))
    calls = [span for span in spans_of(seen) if span.kind == "client"]
    assert [(call.begin - calls[0].begin) // MS for call in calls] == [0, 9]
    assert (calls[0].end - calls[0].begin, calls[1].end - calls[1].begin) == (9 * MS, 40 * MS - 1)
    assert "gen_ai.usage.output_tokens" not in calls[0].attributes


def engine_of(header: bytes, record: OutcomeRecord = RECORD) -> dict[str, tuple[int, int, str]]:
    """The spans below the call: when they begin and end after the request's begin, in milliseconds, and the name of the span above."""
    found = list(spans_of(replace(traced(record), phases=header)))
    names = {span.span: span.name if span.kind != "client" else "call" for span in found}
    begin = found[0].begin
    below = found[[span.kind for span in found].index("client") + 1 :]
    return {span.name: ((span.begin - begin) // MS, (span.end - begin) // MS, names[span.parent]) for span in below}


def header(*phases: tuple[str, int]) -> bytes:
    return ";".join(f"{name}={at * MS}" for name, at in phases).encode()


WHOLE = changed(RECORD, first_ms=0.0)
UNTIL_READ = (("received", 41), ("prepare", 42), ("queue", 50), ("prefill", 58))


def test_an_engine_that_tells_its_phases_has_spans_of_its_own() -> None:
    assert engine_of(header(*UNTIL_READ)) == {
        "engine": (41, 95, "call"), "prepare": (41, 42, "engine"), "queue": (42, 50, "engine"), "prefill": (50, 58, "engine"),
        "decode": (58, 95, "engine"),
    }  # fmt: skip
    whole = engine_of(header(*UNTIL_READ, ("decode", 90)), WHOLE)
    assert (whole["engine"], whole["decode"]) == ((41, 90, "call"), (58, 90, "engine"))
    assert engine_of(header(("received", 41), ("prepare", 42), ("queue", 42), ("run", 80)), WHOLE) == {
        "engine": (41, 80, "call"), "prepare": (41, 42, "engine"), "run": (42, 80, "engine"),
    }  # fmt: skip


def test_a_stream_that_said_early_that_the_engine_works_has_the_gateways_view_of_the_rest() -> None:
    assert engine_of(header(*UNTIL_READ[:2])) == {
        "engine": (41, 95, "call"), "prepare": (41, 42, "engine"), "prefill": (42, 60, "engine"), "decode": (60, 95, "engine"),
    }  # fmt: skip


def test_phases_say_how_many_tokens_they_had_without_being_counted_twice() -> None:
    found = {span.name: span for span in spans_of(replace(traced(changed(RECORD, cached_tokens=2)), phases=header(*UNTIL_READ)))}
    assert found["prefill"].attributes == {"gatehouse.tokens_read": 5, "gatehouse.tokens_reused": 2}
    assert found["decode"].attributes == {"gatehouse.tokens_written": 3}


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"received", b"received=x;prefill=y", header(("prefill", 50)), header(("received", 39), ("prefill", 50)),
        header(("received", 41), ("prefill", 96)), header(("received", 60), ("prefill", 50), ("decode", 70)),
        header(("received", 41)) + b";" + header(("prefill", 42)) * 50, b"received=" + b"9" * 30,
    ],
)  # fmt: skip
def test_what_no_sidecar_of_ours_says_is_not_believed(wrong: bytes) -> None:
    assert engine_of(wrong) == {"prefill": (40, 60, "call"), "decode": (60, 95, "call")}


@given(st.binary(max_size=600) | st.text("receivd=;0123456789", max_size=80).map(str.encode))
def test_no_header_makes_spans_outside_of_their_call(value: bytes) -> None:
    assert all(40 <= begin <= end <= 95 for begin, end, _ in engine_of(value).values())


def test_langfuse_gets_the_moment_of_the_first_token_and_the_cost() -> None:
    [call] = [span for span in spans_of(traced(changed(RECORD, cost=1_500_000, currency="USD"))) if span.kind == "client"]
    assert call.attributes["gen_ai.usage.cost"] == 0.0015
    assert call.attributes["langfuse.observation.completion_start_time"] == "2023-11-14T22:13:19.960Z"
    assert (call.attributes["user.id"], call.attributes["session.id"]) == ("ann", "s-1")


def test_langfuse_does_not_add_up_cached_tokens_twice() -> None:
    """It takes each `gen_ai.usage.*` for a kind of its own, unless it is told which there are."""

    def told(cached: int) -> object:
        [call] = [span for span in spans_of(traced(changed(RECORD, cached_tokens=cached))) if span.kind == "client"]
        assert call.attributes["gen_ai.usage.input_tokens"] == 7
        return call.attributes.get("langfuse.observation.usage_details")

    assert (told(0), told(2)) == (None, '{"input": 5, "input_cached_tokens": 2, "output": 3}')


def test_a_stream_that_breaks_has_its_error_on_the_request_and_on_the_call() -> None:
    own, *below = spans_of(traced(changed(RECORD, outcome="failed", code="engine_failed")))
    [call] = [span for span in below if span.kind == "client"]
    for span in (own, call):
        assert (span.error, span.attributes["error.type"]) == ("engine_failed", "engine_failed")
    assert own.attributes["http.response.status_code"] == 200
    assert not any("error.type" in span.attributes for span in spans_of(traced()))


def test_a_failure_that_was_not_sampled_is_one_span_with_its_error() -> None:
    record = OutcomeRecord(5.0, "req-2", "failed", 502, code="engine_error", operation="chat", model="m", duration_ms=10.0)
    [own] = spans_of(Seen(record, Trace("a" * 32, ""), []))
    assert (own.begin, own.end, own.error) == (4_990_000_000, 5_000_000_000, "engine_error")
