"""The feed of the store's changes: every one once, in order, or the news that some were missed."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.core.errors import StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.core.storage import ChangePage, StoreChange
from gateway.store.feed import CHANGE, PAGE, RESYNC, ChangePoller
from tests.waiting import reached


class Log:
    """The changes as a database has them. `slow`: a read gives up the turn between reading and answering."""

    def __init__(self) -> None:
        self.changes: list[StoreChange] = []
        self.forgotten = 0
        self.error: Exception | None = None
        self.reads = 0

    def write(self, name: str = "k") -> StoreChange:
        self.changes.append(StoreChange(len(self.changes) + 1, "keys", name, "updated", 0.0))
        return self.changes[-1]

    async def changes_since(self, seq: int, limit: int = 1000) -> ChangePage:
        self.reads += 1
        if self.error is not None:
            raise self.error
        head = len(self.changes)
        found = tuple(c for c in self.changes if c.seq > max(seq, self.forgotten))[:limit]
        page = ChangePage(found, head, gap=seq > head or (seq < head and (not found or found[0].seq != seq + 1)))
        await asyncio.sleep(0)
        return page


class Heard:
    def __init__(self, feed: LocalFeed) -> None:
        self.changes: list[tuple[str, int]] = []
        feed.subscribe(self._hear)

    def _hear(self, change: Change) -> None:
        _, kind, payload = change
        self.changes.append((kind, payload.seq if kind == CHANGE else payload))


async def started(log: Log, interval: float = 3600.0) -> tuple[ChangePoller, Heard]:
    feed = LocalFeed()
    poller = ChangePoller(log, feed, interval)
    await poller.start()
    return poller, Heard(feed)


async def test_what_was_before_the_start_is_not_told() -> None:
    log = Log()
    log.write()
    poller, heard = await started(log)
    await poller.poll()
    assert (poller.position, heard.changes) == (1, [])
    await poller.aclose()


async def test_a_local_write_is_told_at_once_and_only_once() -> None:
    log = Log()
    poller, heard = await started(log)
    poller.written(log.write())
    assert heard.changes == [(CHANGE, 1)]
    await poller.poll()
    assert heard.changes == [(CHANGE, 1)]
    await poller.aclose()


async def test_changes_of_others_come_with_the_poll() -> None:
    log = Log()
    poller, heard = await started(log, 0.01)
    for _ in range(PAGE + 5):
        log.write()
    await reached(lambda: len(heard.changes) == PAGE + 5)
    assert heard.changes == [(CHANGE, n + 1) for n in range(PAGE + 5)]
    await poller.aclose()


async def test_a_local_write_behind_those_of_others_fetches_them_now() -> None:
    log = Log()
    poller, heard = await started(log)  # would not poll for an hour
    log.write()
    log.write()
    poller.written(log.write())
    assert heard.changes == []
    await reached(lambda: len(heard.changes) == 3)
    assert heard.changes == [(CHANGE, 1), (CHANGE, 2), (CHANGE, 3)]
    await poller.aclose()


async def test_a_local_write_while_a_poll_is_under_way_is_told_once() -> None:
    log = Log()
    poller, heard = await started(log)
    first = log.write()
    polling = asyncio.ensure_future(poller.poll())
    await asyncio.sleep(0)  # it has read, and not answered
    poller.written(first)
    poller.written(log.write())
    await polling
    assert heard.changes == [(CHANGE, 1), (CHANGE, 2)]
    await poller.aclose()


async def test_after_the_end_nothing_is_told() -> None:
    log = Log()
    poller, heard = await started(log)
    await poller.aclose()
    poller.written(log.write())
    poller.hinted(log.write().seq)
    await asyncio.sleep(0)
    assert heard.changes == []


async def test_missed_changes_are_told_as_such() -> None:
    log = Log()
    poller, heard = await started(log)
    for _ in range(10):
        log.write()
    log.forgotten = 5
    await poller.poll()
    assert heard.changes == [(RESYNC, 10)]
    log.write()
    await poller.poll()
    assert heard.changes == [(RESYNC, 10), (CHANGE, 11)]
    await poller.aclose()


async def test_a_store_that_was_set_back_is_told_as_missed_changes() -> None:
    log = Log()
    for _ in range(5):
        log.write()
    poller, heard = await started(log)
    del log.changes[2:]
    await poller.poll()
    assert heard.changes == [(RESYNC, 2)]
    poller.written(log.write())
    assert heard.changes[1:] == [(CHANGE, 3)]
    await poller.aclose()


@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize("heard_by", ["written", "polled"])
async def test_numbers_that_are_given_anew_after_a_failover_are_missed_changes(heard_by: str, more: int) -> None:
    """The standby had not got the last change, and others have written since."""
    log = Log()
    poller, heard = await started(log)
    for _ in range(3):
        log.write()
        if heard_by == "written":
            poller.written(log.changes[-1])
    await poller.poll()
    log.changes.pop()
    for _ in range(1 + more):
        log.write("another")
    await poller.poll()
    head = 3 + more
    assert heard.changes == [(CHANGE, 1), (CHANGE, 2), (CHANGE, 3), (RESYNC, head)]
    log.write()
    await poller.poll()
    await poller.poll()
    assert heard.changes[4:] == [(CHANGE, head + 1)]
    await poller.aclose()


async def test_a_write_of_this_process_that_gets_a_known_number_anew_is_told_at_once() -> None:
    log = Log()
    poller, heard = await started(log)
    poller.written(log.write())
    log.changes.pop()
    poller.written(log.write("revoked"))
    assert heard.changes == [(CHANGE, 1), (RESYNC, 1)]
    poller.written(log.write())
    assert heard.changes == [(CHANGE, 1), (RESYNC, 1), (CHANGE, 2)]
    await poller.aclose()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError("a bug")])
async def test_polling_goes_on_after_a_failure(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    poller, heard = await started(log, 0.01)
    log.error = error
    before = log.reads
    await reached(lambda: log.reads > before + 2)
    log.error = None
    log.write()
    await reached(lambda: heard.changes == [(CHANGE, 1)])
    await poller.aclose()


@pytest.mark.parametrize("seed", range(20))
async def test_any_interleaving_tells_every_change_once_in_order(seed: int) -> None:
    chance, log = random.Random(seed), Log()
    poller, heard = await started(log, 0.001)
    for _ in range(200):
        match chance.randrange(4):
            case 0:
                log.write()
            case 1:
                poller.written(log.write())
            case 2:
                await poller.poll()
            case _:
                await asyncio.sleep(0)
    await reached(lambda: len(heard.changes) == len(log.changes))
    assert heard.changes == [(CHANGE, n + 1) for n in range(len(log.changes))]
    await poller.aclose()


@pytest.mark.parametrize("local", [True, False])
async def test_a_change_that_somebody_failed_to_take_is_fetched_anew_until_all_have(local: bool) -> None:
    log, feed = Log(), LocalFeed()
    poller = ChangePoller(log, feed, 3600.0)
    await poller.start()
    failures = [RuntimeError("one"), RuntimeError("two")]

    def fails(change: Change) -> None:
        if failures:
            raise failures.pop()

    feed.subscribe(fails)
    heard = Heard(feed)
    change = log.write()
    if local:
        poller.written(change)  # the write is committed: whoever wrote is not told of a failure
    else:
        await poller.poll()
    assert heard.changes == [(CHANGE, 1)], "those after the one that failed hear it all the same"
    await poller.poll()  # fails once more
    await poller.poll()
    await poller.poll()
    assert heard.changes == [(CHANGE, 1), (RESYNC, 1), (RESYNC, 1)]
    await poller.aclose()


# --- hints


async def test_a_hint_has_the_next_change_fetched_now() -> None:
    log = Log()
    poller, heard = await started(log)  # would not poll for an hour
    log.write()
    poller.hinted(1)
    await reached(lambda: heard.changes == [(CHANGE, 1)])
    await poller.aclose()


async def test_a_hint_at_what_is_known_costs_nothing() -> None:
    log = Log()
    poller, _ = await started(log)
    poller.written(log.write())
    reads = log.reads
    for seq in (1, 0, -5):
        poller.hinted(seq)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.reads == reads
    await poller.aclose()


async def test_false_hints_are_looked_at_less_and_less_often() -> None:
    log = Log()
    poller, heard = await started(log, 0.2)
    loop = asyncio.get_running_loop()
    began, reads = loop.time(), log.reads
    while (took := loop.time() - began) < 0.5 or log.reads < reads + 4:
        poller.hinted(10**9)
        await asyncio.sleep(0)
    assert 4 <= log.reads - reads <= 7 + took / 0.2  # pauses of 10, 20, 40, 80, 160 and then 200 ms
    log.write()
    poller.hinted(1)
    await reached(lambda: heard.changes == [(CHANGE, 1)])
    await poller.aclose()


async def test_while_hints_are_sure_it_asks_less_often_and_doubts_what_it_finds() -> None:
    log, doubts = Log(), list[int]()
    poller, heard = await started(log, 0.05)
    poller.relaxed = True
    poller.unhinted = lambda: doubts.append(poller.position)
    await reached(lambda: log.reads > 3)
    assert not doubts
    log.write()
    await reached(lambda: heard.changes == [(CHANGE, 1)] and doubts == [1])
    log.write()
    poller.hinted(2)
    await reached(lambda: heard.changes == [(CHANGE, 1), (CHANGE, 2)])
    await asyncio.sleep(0)
    assert doubts == [1]
    await poller.aclose()
