"""What a process holds of the store: usage that is counted on its way to the audit log, and written when the store answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.control import Control
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.specs import ConfigSpec, StoreSpec
from gateway.core.storage import KeySettings, UsageRow
from gateway.core.types import OutcomeRecord, Peer, Principal
from gateway.identity import keys
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


def spec(directory: Path) -> ConfigSpec:
    return ConfigSpec(version=1, state_dir=str(directory), store=StoreSpec(poll_interval=0.05))


async def lookup(control: Control, key: str) -> Principal | None:
    answer = control.keys.lookup(keys.digest(key), key, Peer("127.0.0.1"))
    return answer if answer is None or isinstance(answer, Principal) else await answer


async def test_a_local_revocation_counts_before_the_write_returns(tmp_path: Path) -> None:
    control = Control(spec(tmp_path), {}, LocalFeed())
    await control.start()
    assert not control.has_keys
    record, secret = await control.store.create_key("t", KeySettings(models=("*",)), actor="x")
    assert control.has_keys and await lookup(control, secret.reveal()) is not None
    await control.store.revoke_key(record.id, actor="x")
    assert await lookup(control, secret.reveal()) is None
    await control.aclose()


async def test_counts_are_written_at_the_end_and_kept_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(spec(tmp_path), {}, LocalFeed())
    await control.start()
    record, secret = await control.store.create_key("t", KeySettings(models=("*",)), actor="x")
    await lookup(control, secret.reveal())
    control.usage.add(outcome(prompt_tokens=7))

    async def away(*args: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(control.store, "add_usage", away)
        await control.write()
    assert await control.store.report_usage() == []
    with monkeypatch.context() as patched:
        patched.setattr(control.store, "touch_keys", away)
        await control.write()
    assert (await control.store.get_key(record.id)).last_used is None
    await control.aclose()
    again = Control(spec(tmp_path), {}, LocalFeed())
    await again.start()
    assert again.has_keys
    assert [(row["prompt_tokens"], row["requests"]) for row in await again.store.report_usage()] == [(7, 1)]
    assert (await again.store.get_key(record.id)).last_used is not None
    await again.aclose()


async def test_much_usage_is_written_in_small_parts_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.control.BATCH", 10)
    control = Control(spec(tmp_path), {}, LocalFeed())
    await control.start()
    for number in range(25):
        control.usage.add(OutcomeRecord(NEW_YEAR, "r", "ok", 200, tenant="t", principal=f"k{number}", model="m", attempts=1))
    add, calls = control.store.add_usage, []

    async def fails_the_second_time(part: list[UsageRow]) -> None:
        calls.append(len(part))
        if len(calls) == 2:
            raise StoreUnavailable("away")
        await add(part)

    monkeypatch.setattr(control.store, "add_usage", fails_the_second_time)
    await control.write()
    assert [row["requests"] for row in await control.store.report_usage()] == [10]
    await control.write()
    assert calls == [10, 10, 10, 5]
    report = await control.store.report_usage(("key",))
    assert len(report) == 25 and {row["requests"] for row in report} == {1}
    await control.aclose()


async def test_a_store_that_cannot_be_used_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Control(spec(tmp_path), {"GATEHOUSE_PEPPER": "short"}, LocalFeed())
    control = Control(spec(tmp_path), {}, LocalFeed())
    await control.aclose()  # never started: nothing to write
