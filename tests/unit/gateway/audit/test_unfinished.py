"""Requests whose process ended before they did get an outcome when the log is opened again, once, with what they had reserved."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.types import OutcomeRecord


def reopened(bench: Any) -> list[dict[str, Any]]:
    """The outcomes `unknown` that opening the log wrote."""
    writer = bench.writer()
    writer.open()
    writer.abandon()
    return [record for record in bench.records(1) if record.get("code") == "outcome_unknown"]


def test_an_intent_without_an_outcome_is_charged_what_it_had_reserved(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    more = {"user": "ann", "agent": "bot", "session": "s", "reserved_prompt": 10, "reserved_completion": 64, "reserved_cost": 7}
    writer.write([make.intent("done"), make.intent("open", currency="usd", price="v1", **more), make.outcome("done", attempts=1)])
    writer.abandon()
    (unknown,) = reopened(log_bench)
    fields = ("request_id", "outcome", "tenant", "principal", "operation", "model", "attempts", "prompt_tokens", "completion_tokens")
    assert [unknown[name] for name in fields] == ["open", "unknown", "acme", "ci", "chat", "demo-chat", 1, 10, 64]
    assert [unknown[name] for name in ("cost", "currency", "price", "user", "agent", "session", "estimated")] == [
        *(7, "usd", "v1", "ann", "bot", "s", True)
    ]
    assert len(reopened(log_bench)) == 1  # the next start finds nothing more to do


def test_requests_that_share_an_id_are_told_apart_by_their_number(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("same"), make.intent("same"), make.intent("same"), make.outcome("same")])
    writer.abandon()
    assert len(reopened(log_bench)) == 2


def test_a_refused_request_with_the_id_of_one_under_way_ends_nothing(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    refused = OutcomeRecord(time=1001.0, request_id="mine", outcome="denied", status=401, peer="10.0.0.9")
    writer.write([make.intent("mine"), refused])
    writer.abandon()
    assert [record["request_id"] for record in reopened(log_bench)] == ["mine"]


def test_texts_that_look_like_records_end_nothing(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("r"), make.intent('x","kind":"outcome","request_id":"r'), make.intent("y", rule='"kind":"outcome"')])
    writer.abandon()
    assert len(reopened(log_bench)) == 3


def test_a_log_that_was_closed_is_not_searched(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("lost outcome")])
    writer.close()
    assert reopened(log_bench) == []


def test_segments_are_searched_from_the_end(log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log_bench.writer(segment_bytes=2000)
    writer.open()
    for number in range(20):
        writer.write([make.intent(f"r{number}")])
    writer.abandon()
    assert writer.sink.segment > 2
    monkeypatch.setattr("gateway.audit.unfinished.SEARCHED", 1500)
    writer = log_bench.writer(segment_bytes=2000)
    writer.open()
    found = writer.written
    writer.abandon()
    assert 2 < found < 10


def test_an_outcome_ends_no_request_of_another_tenant_or_caller_with_the_same_id(log_bench: Any, make: Any) -> None:
    """Whoever learns the id of a request under way cannot have it charged to somebody as if it had never ended."""
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("same", "acme"), make.intent("same", "globex")])
    writer.write([make.outcome("same", tenant="globex", principal="ci"), make.outcome("same", tenant="acme", principal="other")])
    writer.abandon()
    (unknown,) = reopened(log_bench)
    assert (unknown["tenant"], unknown["principal"]) == ("acme", "ci")
