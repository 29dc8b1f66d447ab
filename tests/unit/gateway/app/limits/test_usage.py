"""Usage is counted from the audit log exactly once: by several counters, over restarts, and after the store was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.limits.usage import UsageCounter, counted
from gateway.audit.crypto import load_signer
from gateway.audit.sinks.file import FileSink
from gateway.audit.writer import ChainWriter
from gateway.core.clock import SystemClock
from gateway.core.errors import MasterUnavailable, StoreUnavailable
from gateway.core.types import OutcomeRecord
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated

PEPPER = "p" * 32
NEW_YEAR = 1_767_225_600.0


class Log:
    """The audit log of one writer."""

    def __init__(self, state_dir: Path, writer: str) -> None:
        sink = FileSink(state_dir / "audit", writer, segment_bytes=4000, sync=False)
        self.writer = ChainWriter(sink, load_signer(str(state_dir)), SystemClock())
        self.writer.open()

    def spend(self, times: int = 1, *, time: float = NEW_YEAR, **more: Any) -> None:
        outcome = OutcomeRecord(time, "r", "ok", 200, tenant="t", principal="k", model="m", attempts=1, prompt_tokens=2, **more)
        self.writer.write([outcome] * times)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, given_pepper=PEPPER, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def requests(store: Store) -> int:
    return sum(row["requests"] for row in await store.report_usage())


async def test_the_newest_lines_are_counted_by_the_next_look(store: Store, tmp_path: Path) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit")
    log.spend(3)
    await counter.count()
    assert await requests(store) == 0 and counter.behind > 0
    await counter.count()
    assert await requests(store) == 3 and counter.behind == 0
    log.spend(2)
    await counter.count(settled=True)
    assert await requests(store) == 5


async def test_what_is_not_counted_is_told_while_the_store_is_away(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit")
    await counter.count(settled=True)
    assert counter.behind == 0

    async def away(*parts: object) -> bool:
        raise StoreUnavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_usage", away)
        for _ in range(2):  # over several segments
            before = counter.behind
            log.spend(20)
            with pytest.raises(StoreUnavailable):
                await counter.count(settled=True)
            assert counter.behind > before + 2000
    await counter.count(settled=True)
    assert await requests(store) == 40 and counter.behind == 0


async def test_two_counters_of_the_same_files_count_each_request_once(store: Store, tmp_path: Path) -> None:
    logs = [Log(tmp_path, name) for name in "abc"]
    first, second = (UsageCounter(store, tmp_path / "audit") for _ in range(2))
    expected = 0
    for number in range(12):
        for log in logs:
            log.spend(number)
            expected += number
        await asyncio.gather(first.count(settled=number % 3 == 0), second.count(settled=number % 2 == 0))
        if number == 5:
            second = UsageCounter(store, tmp_path / "audit")  # it was killed, and another one starts
    for counter in (first, second, first, second):
        await counter.count(settled=True)
    assert await requests(store) == expected
    assert (await store.report_usage())[0]["prompt_tokens"] == 2 * expected


async def test_what_the_store_did_not_take_is_counted_later(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit")
    counter.started = True
    log.spend(4)

    async def away(*args: Any) -> bool:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_usage", away)
        assert not await counted(counter)
    assert await requests(store) == 0
    log.spend(1)
    assert await counted(counter)
    assert await requests(store) == 5


async def test_records_that_cannot_be_opened_at_the_end_are_counted_later(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit")
    counter.started = True
    log.spend(4)

    async def no_key(*args: Any) -> None:
        raise MasterUnavailable("sealed")

    with monkeypatch.context() as patched:
        patched.setattr(counter, "_count_writer", no_key)
        assert not await counted(counter)
    assert await counted(counter)
    assert await requests(store) == 4


async def test_a_transaction_whose_answer_is_lost_counts_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit")
    counter.started = True
    log.spend(4)
    add = store.add_usage

    async def committed_but_not_heard(*args: Any) -> bool:
        await add(*args)
        raise StoreUnavailable("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_usage", committed_but_not_heard)
        assert not await counted(counter)
    log.spend(2)
    for _ in range(2):
        assert await counted(counter)
    assert await requests(store) == 6


async def test_an_older_copy_of_the_log_is_not_counted_twice(store: Store, tmp_path: Path) -> None:
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit", began=NEW_YEAR)
    log.spend(40)
    kept = {path: path.read_bytes() for path in (tmp_path / "audit").glob("audit-a-*.jsonl")}
    log.spend(40)
    log.writer.close()
    await counter.count(settled=True)
    assert await requests(store) == 80
    for path in (tmp_path / "audit").iterdir():
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    log, counter = Log(tmp_path, "a"), UsageCounter(store, tmp_path / "audit", began=NEW_YEAR + 1.0)
    await counter.count(settled=True)
    assert await requests(store) == 80
    log.spend(3, time=NEW_YEAR + 2.0)
    log.spend(1, time=NEW_YEAR)  # somebody has set the clock back
    await counter.count(settled=True)
    assert await requests(store) == 84
    log.writer.close()
    await UsageCounter(store, tmp_path / "audit", began=NEW_YEAR + 3.0).count(settled=True)
    assert await requests(store) == 84


async def test_a_counter_that_never_began_asks_for_nothing_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bare = Store("sqlite", tmp_path, keys, given_pepper=PEPPER)  # a start that was refused has made no tables
    assert not await counted(UsageCounter(bare, tmp_path / "audit"))
    assert caplog.messages == []
