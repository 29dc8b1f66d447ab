"""Hooks see every request twice; what they raise refuses before it is forwarded and changes nothing once it has ended."""

from __future__ import annotations

import time

import pytest

from gateway.core.errors import PermissionDenied
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.pipeline.hooks import SLOW_SECONDS, HookedAudit
from tests.unit.gateway.pipeline.world import Audit

INTENT = IntentRecord(1.0, "r-1", "acme", "ci", "api_key", "192.0.2.1", "chat", "m", False, 10)
OUTCOME = OutcomeRecord(2.0, "r-1", "ok", 200)


class Noting:
    """Notes what it sees in a log that it shares. `failing`: raised by both methods."""

    def __init__(self, name: str, log: list[str], failing: Exception | None = None) -> None:
        self.name, self.log, self.failing = name, log, failing

    def before(self, request: IntentRecord) -> None:
        self.log.append(f"{self.name} before {request.request_id}")
        if self.failing is not None:
            raise self.failing

    def after(self, outcome: OutcomeRecord) -> None:
        self.log.append(f"{self.name} after {outcome.status}")
        if self.failing is not None:
            raise self.failing


def test_they_are_called_in_their_order_around_the_records() -> None:
    log: list[str] = []
    audit = Audit()
    hooked = HookedAudit(audit, [("a", Noting("a", log)), ("b", Noting("b", log))])
    hooked.intent(INTENT)
    hooked.outcome(OUTCOME)
    assert log == ["a before r-1", "b before r-1", "a after 200", "b after 200"]
    assert audit.intents == [INTENT] and audit.outcomes == [OUTCOME]
    assert hooked.accepting is audit.accepting and hooked.fault is audit.fault


@pytest.mark.parametrize("error", [PermissionDenied("Not on Sundays."), KeyError("x")])
def test_what_one_raises_before_is_the_end_of_the_request(error: Exception) -> None:
    log: list[str] = []
    audit = Audit()
    hooked = HookedAudit(audit, [("a", Noting("a", log, error)), ("b", Noting("b", log))])
    with pytest.raises(type(error)):
        hooked.intent(INTENT)
    assert log == ["a before r-1"] and audit.intents == []


def test_what_one_raises_after_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    audit = Audit()
    HookedAudit(audit, [("a", Noting("a", log, KeyError("x"))), ("b", Noting("b", log))]).outcome(OUTCOME)
    assert log == ["a after 200", "b after 200"] and audit.outcomes == [OUTCOME]
    assert "the hook a failed after a request" in caplog.text


def test_a_slow_one_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Noting):
        def after(self, outcome: OutcomeRecord) -> None:
            end = time.perf_counter() + 2 * SLOW_SECONDS
            while time.perf_counter() < end:
                pass

    hooked = HookedAudit(Audit(), [("tortoise", Slow("a", []))])
    hooked.outcome(OUTCOME)
    hooked.outcome(OUTCOME)
    assert caplog.text.count("the hook tortoise took") == 1
