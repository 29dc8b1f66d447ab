"""Usage, counted on an outcome's way to the audit log."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.storage import UsageRow
from gateway.core.types import OutcomeRecord
from gateway.telemetry.usage import CountedAudit, UsageLedger, rows

NEW_YEAR = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def outcome(time: float = NEW_YEAR, attempts: int = 1, **fields: Any) -> OutcomeRecord:
    return OutcomeRecord(time, "r", "ok", 200, tenant="t", principal="k", model="m", attempts=attempts, **fields)


def test_usage_is_summed_by_day_key_and_model() -> None:
    ledger = UsageLedger()
    ledger.add(outcome(NEW_YEAR - 0.5, prompt_tokens=1))
    for _ in range(3):
        ledger.add(outcome(prompt_tokens=10, completion_tokens=5, cached_tokens=2))
    assert rows(ledger.take()) == [
        UsageRow("2025-12-31", "t", "k", "m", 1, 1),
        UsageRow("2026-01-01", "t", "k", "m", 3, 30, 15, 6),
    ]
    assert ledger.take() == {}


def test_what_reached_no_engine_uses_nothing() -> None:
    ledger = UsageLedger()
    ledger.add(outcome(attempts=0))
    assert ledger.take() == {}


def test_usage_that_could_not_be_written_is_not_lost() -> None:
    ledger = UsageLedger()
    ledger.add(outcome(prompt_tokens=1))
    taken = ledger.take()
    ledger.add(outcome(prompt_tokens=2))
    ledger.merge(taken)
    assert rows(ledger.take()) == [UsageRow("2026-01-01", "t", "k", "m", 2, 3)]


def test_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.telemetry.usage.MAX_USAGE_ROWS", 2)
    ledger = UsageLedger()
    for day in range(4):
        ledger.add(outcome(NEW_YEAR + day * 86400))
        ledger.add(outcome())
    assert (len(ledger.take()), ledger.lost) == (2, 2)


class Audit:
    """Remembers what it was given."""

    accepting, fault = True, None

    def __init__(self) -> None:
        self.outcomes: list[OutcomeRecord] = []

    def intent(self, record: Any) -> Any: ...

    def event(self, record: Any) -> Any: ...

    def hash_body(self, body: bytes | memoryview) -> str:
        return "h"

    def outcome(self, record: OutcomeRecord) -> None:
        self.outcomes.append(record)

    async def aclose(self) -> None: ...


def test_an_outcome_is_counted_and_goes_on() -> None:
    audit, ledger = Audit(), UsageLedger()
    counted = CountedAudit(audit, ledger)
    counted.outcome(outcome())
    assert len(audit.outcomes) == len(ledger.take()) == 1
    assert (counted.accepting, counted.fault, counted.hash_body(b"")) == (True, None, "h")
