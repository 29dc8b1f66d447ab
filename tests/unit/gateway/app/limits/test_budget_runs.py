"""What a killed process had in hand of a budget comes back: the audit log says what it used (`budget_log`, `budget_runs`)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.limits import times
from gateway.app.limits.budget_log import Processes, Tally, read, spent_in
from gateway.app.limits.budget_runs import FILE, BudgetRuns
from gateway.app.limits.times import LimitTimes
from gateway.audit.crypto import load_signer
from gateway.audit.sinks.file import FileSink
from gateway.audit.writer import ChainWriter
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError
from gateway.core.specs import BudgetSpec, ConfigSpec, LimitSpec, RateSpec
from gateway.core.specs.limits import LimitMatchSpec, RollingSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.identity import keys
from gateway.limits.counter import Ask, counted, used
from gateway.limits.meter import meters_of
from gateway.store.store import Store
from tests.morning import TIMEZONE
from tests.stores import migrated

DAY = LimitSpec(name="day", per="tenant", budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE))
WEEK = LimitSpec(name="week", per="tenant", budget=BudgetSpec(amount=1000, window=RollingSpec(rolling=7 * 86400.0)))


class Log:
    """The audit log of one writer, with the clock of the store."""

    def __init__(self, state_dir: Path, store: Store, writer: str = "a") -> None:
        self.sink = FileSink(state_dir / "audit", writer, segment_bytes=10**6, sync=False)
        self.writer = ChainWriter(self.sink, load_signer(str(state_dir)), SystemClock())
        self.writer.open()
        self.number = 0

    def intent(self, id: str, reserved: int = 50, **more: Any) -> None:
        began = more.pop("time", SystemClock().wall())
        record = IntentRecord(began, id, "t", "k", "api_key", "192.0.2.1", "chat", "m", False, 1, reserved_prompt=reserved, **more)
        self.writer.write([record])

    def outcome(self, id: str, tokens: int, outcome: str = "ok", **more: Any) -> None:
        facts = {"tenant": "t", "principal": "k", "model": "m", "operation": "chat", "charged": True, "attempts": 1, **more}
        self.writer.write([OutcomeRecord(SystemClock().wall(), id, outcome, 200, prompt_tokens=tokens, **facts)])

    def spend(self, tokens: int) -> None:
        self.number += 1
        self.intent(f"r{self.number}")
        self.outcome(f"r{self.number}", tokens)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def ask(store: Store, limit: LimitSpec, holder: str, **said: Any) -> None:
    meter = meters_of(limit)[0]

    def change(now: float, bodies: Any) -> list[tuple[str, float]]:
        state, _ = counted(json.loads(bodies[0] or "{}"), Ask(limit.name, meter, ("t",), holder, **said), now)
        return [(json.dumps(state), now + 10**7)]

    await store.change_counters([(limit.name, meter.name, ("t",))], change)


async def state_of(store: Store, limit: LimitSpec) -> dict[str, Any]:
    (row,) = await store.counters_of(limit.name)
    found: dict[str, Any] = json.loads(row.body)
    return found


def runs(store: Store, tmp_path: Path, holder: str, tasks: TaskOwner, *limits: LimitSpec) -> BudgetRuns:
    spec = ConfigSpec(version=1, limits=limits)
    in_force = LimitTimes(tmp_path)
    in_force.applied(limits)
    return BudgetRuns(store, holder, tmp_path, tmp_path / "audit", lambda: spec, in_force, tasks, lambda: None)


@pytest.mark.parametrize("limit", [DAY, WEEK])
async def test_what_a_killed_process_had_in_hand_comes_back(store: Store, tmp_path: Path, limit: LimitSpec) -> None:
    tasks = TaskOwner("test")
    earlier = Log(tmp_path, store)
    earlier.spend(7)
    await ask(store, limit, "a:0", need=7, want=7)
    first = runs(store, tmp_path, "a:1", tasks, limit)
    await first.begin()
    assert not first.ended
    earlier.writer.close()
    log = Log(tmp_path, store)
    await ask(store, limit, "a:1", need=100, want=100)
    await ask(store, limit, "b:1", need=30, want=30)
    log.spend(20)
    log.intent("open", 50)
    log.writer.abandon()  # it is killed: one request is under way
    second = runs(store, tmp_path, "a:2", tasks, limit)
    await second.begin()
    await ask(store, limit, "a:2", need=5, want=5)
    assert len(second.ended) == 1 and not await second.settle(), "the request has no outcome yet"
    log = Log(tmp_path, store)
    log.spend(5)
    ended = list(second.ended)
    assert await second.settle() and not second.ended
    second._runs[:0] = ended
    await ask(store, limit, "a:2", need=1, want=1)
    assert await second.settle(), "a process that is killed while it settles leaves that to the next one"
    await ask(store, limit, "a:2", back=1, first=True)
    assert "settled" not in await state_of(store, limit)
    assert used(await state_of(store, limit), meters_of(limit)[0], SystemClock().wall()) == 7 + 20 + 50 + 30 + 5
    await second.aclose(handed=False, given_back=True)
    assert json.loads((tmp_path / FILE).read_bytes()) == []


async def test_a_budget_is_not_charged_for_what_came_before_it_was_added(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "SWITCH", 50.0)  # what is spent just before it counts, however long that takes here
    tasks = TaskOwner("test")
    first = runs(store, tmp_path, "a:1", tasks)
    await first.begin()
    log = Log(tmp_path, store)
    log.intent("early", time=SystemClock().wall() - 60)
    log.outcome("early", 900)
    await ask(store, DAY, "a:1", need=100, want=100)
    log.spend(20)
    log.writer.close()
    second = runs(store, tmp_path, "a:2", tasks, DAY)
    await second.begin()
    assert await second.settle()
    assert used(await state_of(store, DAY), meters_of(DAY)[0], SystemClock().wall()) == 20


async def test_what_another_program_goes_on_with_is_not_given_back(store: Store, tmp_path: Path) -> None:
    tasks = TaskOwner("test")
    first = runs(store, tmp_path, "a:1", tasks, DAY)
    await first.begin()
    await first.aclose(handed=True, given_back=False)
    second = runs(store, tmp_path, "a:2", tasks, DAY)
    await second.begin()
    assert not second.ended


async def test_a_full_disk_does_not_break_the_end_off(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is closed after it still tells Redis, leaves the roll of replicas, and closes the audit log. A start says why it fails."""
    tasks, in_the_way = TaskOwner("test"), tmp_path / f".{FILE}.new"
    first = runs(store, tmp_path, "a:1", tasks, DAY)
    await first.begin()
    in_the_way.mkdir()
    await first.aclose(handed=False, given_back=True)
    assert f"{FILE} cannot be written" in caplog.text
    second = runs(store, tmp_path, "a:2", tasks, DAY)
    with pytest.raises(ConfigError, match=f"{FILE} cannot be written") as caught:
        await second.begin()
    assert caught.value.path == "state_dir"
    in_the_way.rmdir()
    third = runs(store, tmp_path, "a:3", tasks, DAY)
    await third.begin()
    assert [one.holders for one in third.ended] == [["a:1"]], "as if it had been killed"


async def test_without_the_log_everything_counts_as_used(store: Store, tmp_path: Path) -> None:
    tasks = TaskOwner("test")
    Log(tmp_path, store).writer.close()
    first = runs(store, tmp_path, "a:1", tasks, DAY)
    await first.begin()
    await ask(store, DAY, "a:1", need=100, want=100)
    for path in (tmp_path / "audit").glob("*.jsonl"):
        path.unlink()
    second = runs(store, tmp_path, "a:2", tasks, DAY)
    await second.begin()
    assert await second.settle()
    assert used(await state_of(store, DAY), meters_of(DAY)[0], SystemClock().wall()) == 100


def tally(limit: LimitSpec, since: float = 0.0) -> Tally:
    return Tally(limit, meters_of(limit)[0], SystemClock().wall(), {("t",): since})


def test_an_outcome_is_of_an_intent_of_its_own_caller(store: Store, tmp_path: Path) -> None:
    """Callers choose the ids of their requests: those of two may have the same."""
    log = Log(tmp_path, store)
    log.intent("same", 50)
    log.writer.write(
        [IntentRecord(SystemClock().wall(), "same", "u", "k", "api_key", "192.0.2.1", "chat", "n", False, 1, reserved_prompt=9)]
    )
    log.outcome("same", 7, tenant="u", model="n")
    found = tally(DAY)
    read(tmp_path / "audit", [found])
    assert found.under_way == {("t",): 50} and spent_in(found, found.spent) == {("u",): 7}


def test_refusals_count_as_the_record_says(store: Store, tmp_path: Path) -> None:
    log = Log(tmp_path, store)
    calls = LimitSpec(name="calls", per="tenant", budget=BudgetSpec(amount=10, unit="requests", window="month", timezone=TIMEZONE))
    log.spend(1)
    log.outcome("x", 0, "denied", peer="192.0.2.1", code="policy_denied")
    log.outcome("y", 0, "denied", peer="192.0.2.1", code="policy_denied", charged=False)
    log.outcome("z", 0, peer="192.0.2.1", detail={"limits_not_enforced": ["calls"]})
    found = tally(calls)
    read(tmp_path / "audit", [found])
    assert spent_in(found, found.spent) == {("t",): 2}


def test_metadata_counts_as_the_operation_infer_as_its_reservation_did(store: Store, tmp_path: Path) -> None:
    log = Log(tmp_path, store)
    budget = BudgetSpec(amount=10, unit="requests", window="month")
    log.outcome("x", 0, peer="192.0.2.1", operation="metadata")
    log.outcome("y", 0, peer="192.0.2.1", operation="infer")
    log.outcome("z", 0, peer="192.0.2.1", operation="chat")
    infer, other = [
        tally(LimitSpec(name=name, per="tenant", match=LimitMatchSpec(operation=name), budget=budget)) for name in ("infer", "metadata")
    ]
    read(tmp_path / "audit", [infer, other])
    assert spent_in(infer, infer.spent) == {("t",): 2} and not other.spent


def test_a_request_counts_when_it_began_for_the_model_that_it_asked_for(store: Store, tmp_path: Path) -> None:
    log = Log(tmp_path, store)
    now = SystemClock().wall()
    log.intent("old", time=now - 40 * 86400)
    log.outcome("old", 100)
    log.intent("under way", 33)
    log.spend(5)
    log.intent("fallback")
    log.outcome("fallback", 11, model="other")
    month = LimitSpec(
        name="l", per="tenant", match=LimitMatchSpec(model="m"), budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE)
    )
    found, forgiven = tally(month), tally(month, now + 60)
    read(tmp_path / "audit", [found, forgiven])
    assert spent_in(found, found.spent) == {("t",): 16} and found.under_way == {("t",): 33}
    assert not forgiven.spent and not forgiven.under_way


def test_groups_and_limits_that_keys_name_are_known_from_the_record(store: Store, tmp_path: Path) -> None:
    log = Log(tmp_path, store)
    log.intent("1", caller={"groups": ["x", "y"], "limits": ["named"]})
    log.outcome("1", 9)
    log.intent("2", caller={})
    log.outcome("2", 4)
    group = tally(
        LimitSpec(
            name="group", per="group", match=LimitMatchSpec(group="x*"), budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE)
        )
    )
    named = tally(
        LimitSpec(
            name="named", per="tenant", match=LimitMatchSpec(key=""), budget=BudgetSpec(amount=1000, window="month", timezone=TIMEZONE)
        )
    )
    read(tmp_path / "audit", [group, named])
    assert spent_in(group, group.spent) == {("t", "x"): 9} and spent_in(named, named.spent) == {("t",): 9}
    assert not group.unsure
    log.spend(1)
    read(tmp_path / "audit", [group])
    assert group.unsure, "a record of an earlier version"


def test_a_rate_is_replayed(store: Store, tmp_path: Path) -> None:
    log = Log(tmp_path, store)
    now = SystemClock().wall()
    for index, ago in enumerate((7200.0, 1800.0, 1.0)):
        log.intent(f"r{index}", time=now - ago)
        log.outcome(f"r{index}", 1000)
    rate = tally(LimitSpec(name="rate", per="tenant", tokens=RateSpec(rate=1000, per=3600.0, burst=5000)))
    read(tmp_path / "audit", [rate])
    (left,) = rate.debts().values()
    assert 1490 <= left <= 1500


def started(tmp_path: Path, store: Store, process: str, writer: str = "a") -> Log:
    """The log of a process that counts in Redis."""
    log = Log.__new__(Log)
    log.sink = FileSink(tmp_path / "audit", writer, segment_bytes=10**6, sync=False)
    log.writer = ChainWriter(log.sink, load_signer(str(tmp_path)), SystemClock())
    log.writer.process = process
    log.writer.open()
    log.number = 0
    return log


def shares(tmp_path: Path, limit: LimitSpec, since: float = 0.0, created: float = 0.0) -> tuple[Tally, Processes]:
    found = Tally(limit, meters_of(limit)[0], SystemClock().wall(), {("t",): since}, created={("t",): created})
    processes = Processes()
    read(tmp_path / "audit", [found], processes=processes)
    return found, processes


def used_by(found: Tally) -> dict[str, int]:
    return {process: sum(one.used.values()) for process, keys in found.portions.items() for one in keys.values()}


@pytest.mark.parametrize("limit", [DAY, WEEK])
def test_the_log_says_which_process_used_what(store: Store, tmp_path: Path, limit: LimitSpec) -> None:
    earlier = Log(tmp_path, store)
    earlier.spend(3)
    earlier.writer.close()
    first = started(tmp_path, store, "p1")
    first.spend(7)
    first.intent("open", 50)
    found, processes = shares(tmp_path, limit)
    assert used_by(found) == {"": 3, "p1": 7} and found.under_way == {("t",): 50}
    assert not processes.ended and not processes.lost, "it lives"
    first.writer.abandon()
    found, processes = shares(tmp_path, limit)
    assert processes.lost == {"p1"} and not processes.ended, "it was killed, and its log is not recovered yet"
    second = started(tmp_path, store, "p2")
    second.spend(11)
    found, processes = shares(tmp_path, limit)
    assert used_by(found) == {"": 3, "p1": 57, "p2": 11} and not found.under_way
    assert processes.ended == {"p1"} and not processes.lost
    second.writer.close()
    found, processes = shares(tmp_path, limit)
    assert processes.ended == {"p1", "p2"}
    by_another = Log(tmp_path, store)
    by_another.writer.close()
    assert shares(tmp_path, limit)[1].ended == {"p1", "p2"}


def test_what_may_not_count_is_told_apart(store: Store, tmp_path: Path) -> None:
    now = SystemClock().wall()
    log = started(tmp_path, store, "p")
    for number, ago in enumerate((100.0, 61.0, 30.0, 5.0)):
        log.intent(f"at{number}", time=now - ago)
        log.outcome(f"at{number}", 10**number)
    found, _ = shares(tmp_path, DAY, since=now - 60.0, created=now - 20.0)
    (portion,) = found.portions["p"].values()
    assert (portion.used, portion.unsure, portion.before) == ({0: 1100}, 100, 10)
    found, _ = shares(tmp_path, WEEK)
    (portion,) = found.portions["p"].values()
    assert sum(portion.used.values()) == 1111 and all(slice == int(now / 10080) or slice == int(now / 10080) - 1 for slice in portion.used)


def test_a_clock_that_went_back_is_seen(store: Store, tmp_path: Path) -> None:
    log = started(tmp_path, store, "p")
    log.spend(1)
    log.spend(1)
    assert shares(tmp_path, DAY)[1].stepped < 1.0
    now = SystemClock().wall()
    facts: dict[str, Any] = {"tenant": "t", "principal": "k", "model": "m", "operation": "chat", "charged": True, "attempts": 1}
    log.writer.write([OutcomeRecord(now - 3600.0, "early", "ok", 200, prompt_tokens=1, peer="192.0.2.1", **facts)])
    assert 3599.0 < shares(tmp_path, DAY)[1].stepped < 3700.0


def test_a_process_that_began_before_what_is_read_is_known_by_its_segment(store: Store, tmp_path: Path) -> None:
    log = started(tmp_path, store, "p")
    log.spend(1)
    log.writer._rotate()
    log.spend(2)
    first, _ = sorted(one for one in (tmp_path / "audit").glob("*.jsonl") if "checkpoints" not in one.name)
    os.utime(first, (1.0, 1.0))
    found, processes = shares(tmp_path, DAY)
    assert used_by(found) == {"p": 2} and not processes.ended
