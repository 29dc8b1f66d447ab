"""The broker with its journal: who waits for the chain and who does not, and what a process that ends in between leaves behind."""

import asyncio
import errno
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.audit import leftover, verify
from gateway.audit.broker import AuditBroker
from gateway.audit.chain import payload
from gateway.audit.chain_walk import Walk
from gateway.audit.fastpath import AHEAD
from gateway.audit.journal import Journal, journal_name, left_over
from gateway.audit.reader import LogReader
from gateway.audit.reliance import BUSY, PERIOD, STEADY
from gateway.audit.verify import JournalReport, verify_log
from gateway.audit.writer import RESERVE
from gateway.core.errors import AuditUnavailable


@pytest.fixture
def roomy(bench: Any) -> Any:
    bench.disk.room = RESERVE
    return bench


def journal_path(bench: Any) -> Path:
    return Path(bench.directory) / journal_name("0")


def ids(bench: Any, kind: str = "intent") -> list[str]:
    return [record["request_id"] for record in bench.records() if record["kind"] == kind]


def kinds(bench: Any) -> list[str]:
    return [record.get("request_id") or record.get("event") or record["kind"] for record in bench.records()]


async def proven(bench: Any, make: Any, **settings: Any) -> AuditBroker:
    """A broker whose log has just been written, for which one record is a steady load; its writer has nothing to do, until the loop's next
    turn."""
    broker: AuditBroker = await bench.broker(**{"steady": 1, "cpu": lambda: 0.0, **settings})
    first = broker.intent(make.intent("first"))
    assert not first.done
    await make.settled(first)
    await make.until(lambda: broker._writing.batch is None)
    looked_at(broker)
    return broker


def looked_at(broker: AuditBroker) -> None:
    """The end of a PERIOD in which a record was written."""
    broker._reliance._written = broker._writer.written - 1
    look(broker)


def look(broker: AuditBroker) -> None:
    if broker._reliance._timer is not None:
        broker._reliance._timer.cancel()
    broker._reliance._decide(asyncio.get_running_loop())


async def test_once_the_log_is_proven_a_request_need_not_wait(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    assert broker.intent(make.intent("a")).done
    broker.outcome(make.outcome("a"))
    assert [entry.startswith(b',"kind":"') for entry in left_over(journal_path(roomy))] == [True, True]
    await make.until(lambda: ids(roomy) == ["first", "a"] and ids(roomy, "outcome") == ["a"])
    await make.until(lambda: left_over(journal_path(roomy)) == [])
    assert verify_log(roomy.directory, roomy.signer.verifier).ok


async def test_a_journaled_record_gives_the_same_line(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    broker.intent(make.intent("first", "t\u00e9nant\n", detail={"a": 1}))
    await make.until(lambda: len(ids(roomy)) == 2)
    broker._path.open = False
    await make.settled(broker.intent(make.intent("first", "t\u00e9nant\n", detail={"a": 1})))
    one, other = ({**record, "seq": 0, "hash": ""} for record in roomy.records()[-2:])
    assert one == other


async def test_what_is_in_the_journal_is_linked_before_the_writer_gets_it(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    for number in range(AHEAD):
        broker.intent(make.intent(f"r{number}"))
    broker.outcome(make.outcome("r0"))
    assert broker._path.draft is not None and broker._path.draft.count == AHEAD, "one request links so many records at most"
    broker.outcome(make.outcome("r1"))
    draft = broker._path.draft
    assert draft.count == len(broker._gathering.entries) == AHEAD + 2
    await make.until(lambda: len(ids(roomy, "outcome")) == 2)
    assert b"".join(roomy.lines()[-AHEAD - 2 :]) == draft.data
    assert verify_log(roomy.directory, roomy.signer.verifier).ok


async def test_a_checkpoint_voids_what_was_linked_ahead(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    broker.intent(make.intent("a"))
    broker.outcome(make.outcome("a"))
    assert broker._path.draft is not None and broker._path.draft.count == 2
    broker._order(broker._writer.checkpoint)
    broker.intent(make.intent("b"))
    broker.outcome(make.outcome("b"))
    assert broker._path.draft is None, "the writer has the chain"
    await make.until(lambda: ids(roomy, "outcome") == ["a", "b"])
    assert kinds(roomy)[-5:] == ["checkpoint", "a", "a", "b", "b"]
    assert verify_log(roomy.directory, roomy.signer.verifier).ok


async def test_what_was_linked_before_a_failure_is_linked_anew(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    roomy.disk.error = errno.EIO
    broker.intent(make.intent("a"))
    broker.outcome(make.outcome("a"))
    assert broker._path.draft is not None and broker._path.draft.count == 2
    await make.until(lambda: not broker.accepting)
    roomy.disk.error = None
    await make.until(lambda: broker.accepting)
    await make.until(lambda: kinds(roomy)[-3:] == ["audit.recovered", "a", "a"])
    assert verify_log(roomy.directory, roomy.signer.verifier).ok


@pytest.mark.parametrize("durability", ["async", "fsync"])
async def test_other_durabilities_have_no_journal(roomy: Any, make: Any, durability: str) -> None:
    broker = await roomy.broker(durability=durability)
    for number in range(3):
        await make.settled(broker.intent(make.intent(f"r{number}")))
    assert not journal_path(roomy).exists() and not broker._path.open


async def test_occasional_requests_always_wait(roomy: Any, make: Any) -> None:
    """However soon after the last one: if the disk failed in between, the request must not be forwarded."""
    broker = await roomy.broker(cpu=lambda: 0.0)
    for number in range(20):
        signal = broker.intent(make.intent(f"r{number}"))
        assert not signal.done
        await make.settled(signal)
        look(broker)


async def test_a_steady_load_need_not_wait(roomy: Any, make: Any) -> None:
    broker = await roomy.broker(cpu=lambda: 0.0)
    await make.settled(broker.intent(make.intent("first")))
    broker._reliance._timer.cancel()
    signals = [broker.intent(make.intent(f"r{number}")) for number in range(STEADY)]
    await make.settled(signals[-1])
    look(broker)
    assert broker.intent(make.intent("a")).done


async def test_on_a_disk_that_is_almost_full_every_request_waits(bench: Any, make: Any) -> None:
    bench.disk.room = RESERVE - 1
    broker = await proven(bench, make)
    assert not broker.intent(make.intent("a")).done and not journal_path(bench).exists()


async def test_a_disk_that_fills_is_noticed_with_the_next_batch(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    roomy.disk.room = RESERVE - 1
    assert broker.intent(make.intent("a")).done
    await make.until(lambda: ids(roomy) == ["first", "a"] and broker._writing.batch is None)
    looked_at(broker)
    assert not broker.intent(make.intent("b")).done


async def test_after_a_pause_requests_wait_until_the_log_is_proven_again(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    await make.until(lambda: not broker._path.open)
    again = broker.intent(make.intent("a"))
    assert not again.done
    await make.settled(again)
    looked_at(broker)
    assert broker.intent(make.intent("b")).done


async def test_a_busy_loop_lets_requests_wait_together(roomy: Any, make: Any) -> None:
    used = 0.0
    broker = await proven(roomy, make, cpu=lambda: used)
    await make.settled(broker.intent(make.intent("a")))
    used += 1000.0 * BUSY * PERIOD
    looked_at(broker)
    assert not broker.intent(make.intent("b")).done
    await make.until(lambda: ids(roomy)[-1] == "b" and broker._writing.batch is None)
    looked_at(broker)  # and no longer when it is idle
    assert broker.intent(make.intent("c")).done


async def test_what_finds_no_room_in_the_journal_waits(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    roomy.disk.released.clear()
    signals = [broker.intent(make.intent(f"r{n}", "t" * 1000)) for n in range(300)]
    assert signals[0].done and not signals[-1].done
    roomy.disk.released.set()
    await make.settled(signals[-1])
    assert ids(roomy) == ["first", *(f"r{n}" for n in range(300))]


async def test_a_write_that_fails_keeps_what_was_forwarded_and_refuses_the_next(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    roomy.disk.fill(after=20)
    assert broker.intent(make.intent("forwarded")).done
    await make.until(lambda: not broker.accepting)
    with pytest.raises(AuditUnavailable):
        broker.intent(make.intent("refused"))
    broker.outcome(make.outcome("forwarded"))
    assert len(left_over(journal_path(roomy))) == 1
    roomy.disk.error = None
    await make.until(lambda: broker.accepting)
    await make.until(lambda: left_over(journal_path(roomy)) == [])
    await make.until(lambda: kinds(roomy)[-4:] == ["first", "audit.recovered", "forwarded", "forwarded"])  # nobody waits for an outcome
    assert verify_log(roomy.directory, roomy.signer.verifier).ok


async def test_a_write_that_hangs_lets_the_next_requests_wait_and_then_refuses(
    roomy: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await proven(roomy, make, clock=roomy.clock)
    roomy.disk.released.clear()
    assert broker.intent(make.intent("forwarded")).done
    await make.until(lambda: not broker._path.open)
    waiting = broker.intent(make.intent("refused"))
    assert not waiting.done
    await make.until(lambda: roomy.disk.hanging == 1)
    await roomy.ticked(broker, 5.0)  # the setting's default
    with pytest.raises(AuditUnavailable, match="takes no records"):
        await make.settled(waiting)
    assert "a write has been waiting for 5 s" in caplog.text
    assert len(left_over(journal_path(roomy))) == 1
    roomy.disk.released.set()
    await make.until(lambda: broker.accepting and left_over(journal_path(roomy)) == [])
    assert "forwarded" in ids(roomy)


async def test_a_clean_close_leaves_no_journal(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    broker.intent(make.intent("a"))
    broker.outcome(make.outcome("a"))
    await broker.aclose()
    assert not journal_path(roomy).exists() and ids(roomy) == ["first", "a"] and roomy.events()[-1] == "audit.closed"


async def test_a_close_that_cannot_write_leaves_the_journal_to_the_next_start(roomy: Any, make: Any) -> None:
    broker = await proven(roomy, make)
    roomy.disk.error = errno.EIO
    broker.intent(make.intent("a"))
    await broker.aclose()
    roomy.disk.error = None
    assert len(left_over(journal_path(roomy))) == 1
    await roomy.broker()
    assert ids(roomy) == ["first", "a"]


def killed(bench: Any, entries: list[bytes]) -> None:
    """What a process that is killed after its last batch leaves behind: a segment without a clean end, and a journal."""
    journal = Journal(journal_path(bench))
    for entry in entries:
        assert journal.append(entry)
    journal._map = None  # as a kill: nobody tidies


def entry(make: Any, request_id: str) -> bytes:
    return payload(make.intent(request_id))


def started(bench: Any) -> None:
    writer = bench.writer()
    writer.open()
    writer.close()


def test_a_start_chains_what_the_journal_holds_once(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("written"), make.outcome("written")])
    writer.abandon()
    killed(log_bench, [entry(make, "written"), entry(make, "a"), entry(make, "b")])
    started(log_bench)
    opened = [record["detail"] for record in log_bench.records() if record.get("event") == "audit.opened"]
    assert ids(log_bench) == ["written", "a", "b"] and [detail.get("from_journal") for detail in opened] == [None, 2]
    assert not journal_path(log_bench).exists()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_a_start_that_ends_before_it_removes_the_journal_repeats_nothing(log_bench: Any, make: Any) -> None:
    log_bench.directory.mkdir()
    killed(log_bench, [entry(make, "a"), entry(make, "b")])
    kept = journal_path(log_bench).read_bytes()
    for _ in range(3):
        journal_path(log_bench).write_bytes(kept)
        started(log_bench)
    assert ids(log_bench) == ["a", "b"]


def test_what_was_chained_in_an_earlier_segment_is_not_repeated(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer(segment_bytes=600)
    writer.open()
    for number in range(4):
        writer.write([make.intent(f"r{number}")])
    assert writer.sink.segment > 2
    writer.abandon()
    killed(log_bench, [entry(make, f"r{number}") for number in range(5)])
    started(log_bench)
    reader = LogReader(log_bench.directory, log_bench.signer.verifier)
    assert [record["request_id"] for record in reader.records(kind="intent")] == [f"r{number}" for number in range(5)]


def test_after_damage_the_journal_is_chained_in_the_new_segment(log_bench: Any, make: Any) -> None:
    log_bench.log()
    lines = log_bench.lines()
    lines[2] = lines[2].replace(b"acme", b"evil")
    log_bench.segment().write_bytes(b"".join(lines))
    killed(log_bench, [entry(make, "a")])
    started(log_bench)
    assert [record["request_id"] for record in log_bench.records(2) if record["kind"] == "intent"] == ["a"]


def test_the_verification_says_what_a_journal_holds(log_bench: Any, make: Any) -> None:
    log_bench.log()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).writers[0].journal is None
    written = payload(make.intent("r3"))
    killed(log_bench, [written, entry(make, "a"), entry(make, "b")])
    report = verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0)
    assert report.writers[0].journal == JournalReport(records=3, unchained=2, unreadable=0)
    assert [(problem.file, problem.reason) for problem in report.problems] == [
        ("audit-0.journal", "2 records are in the journal and not in the log; the gateway chains them when it runs again")
    ]
    started(log_bench)
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_the_verification_counts_what_in_a_journal_is_no_record(log_bench: Any, make: Any) -> None:
    log_bench.log()
    killed(log_bench, [b"nothing of ours", b',"kind":"intent",not json', payload(make.intent("r3"))])
    report = verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0)
    assert report.writers[0].journal == JournalReport(records=1, unchained=0, unreadable=2)
    assert [problem.reason for problem in report.problems] == ["entries that are not records: 2"]


def test_a_journal_whose_log_is_gone_is_verified_too(log_bench: Any, make: Any) -> None:
    log_bench.directory.mkdir()
    killed(log_bench, [entry(make, "a")])
    report = verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0)
    assert not report.ok and report.writers[0].journal == JournalReport(records=1, unchained=1, unreadable=0)


def test_the_journal_is_compared_with_the_log_before_that_is_read(log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a long log takes minutes, in which a busy one grows past the part that is searched for the journal's records."""
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("a")])
    killed(log_bench, [entry(make, "a")])
    monkeypatch.setattr(leftover, "RECENT", 2000)
    walk = Walk.run

    def grows(*arguments: Any) -> Any:
        writer.write([make.intent(f"later{number}") for number in range(20)])
        return walk(*arguments)

    monkeypatch.setattr(Walk, "run", grows)
    report = verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0)
    assert report.ok and report.writers[0].journal == JournalReport(records=1, unchained=0, unreadable=0)
    writer.abandon()


async def test_what_a_writer_at_work_has_not_chained_yet_is_waited_for(roomy: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await proven(roomy, make)
    roomy.disk.released.clear()
    broker.intent(make.intent("a"))
    await make.until(lambda: roomy.disk.hanging == 1)

    def waits(seconds: float) -> None:
        roomy.disk.released.set()
        time.sleep(0.001)

    monkeypatch.setattr(verify, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waits))
    check = partial(verify_log, roomy.directory, roomy.signer.verifier, patience=60.0)
    report = await asyncio.get_running_loop().run_in_executor(None, check)
    found = report.writers[0]
    assert found.journal == JournalReport(records=1, unchained=0, unreadable=0) and not found.problems


def test_entries_that_are_no_records_are_not_chained(log_bench: Any, make: Any) -> None:
    log_bench.directory.mkdir()
    killed(log_bench, [b"nothing of ours", b',"kind":"intent","a":1\n{"seq":9', entry(make, "a")])
    content = journal_path(log_bench).read_bytes()
    started(log_bench)
    (opened,) = [record["detail"] for record in log_bench.records() if record.get("event") == "audit.opened"]
    assert ids(log_bench) == ["a"] and not journal_path(log_bench).exists()
    assert (log_bench.directory / opened["unreadable_journal"]).read_bytes() == content, "kept for whoever can read it"


def test_a_file_that_is_no_journal_is_kept(log_bench: Any, make: Any) -> None:
    log_bench.log()
    journal_path(log_bench).write_bytes(b"GHAJRNL9" + bytes(100))
    report = verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0)
    assert report.writers[0].journal == JournalReport(records=0, unchained=0, unreadable=1) and not report.ok
    started(log_bench)
    assert [path.read_bytes()[:8] for path in log_bench.directory.glob("*.journal.unreadable-*")] == [b"GHAJRNL9"]
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


@pytest.mark.parametrize("content", [b"", bytes(100)])
def test_a_journal_whose_process_ended_while_making_it_holds_nothing(log_bench: Any, make: Any, content: bytes) -> None:
    log_bench.log()
    journal_path(log_bench).write_bytes(content)
    assert verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0).ok
    started(log_bench)
    assert not list(log_bench.directory.glob("*.journal*"))


@pytest.mark.parametrize("recent", [1, 40, 75, 76, 600])
def test_where_the_recent_part_of_the_log_begins_does_not_matter(log_bench: Any, make: Any, monkeypatch: Any, recent: int) -> None:
    """It may begin inside a line, even inside its hash."""
    log_bench.log()
    monkeypatch.setattr(leftover, "RECENT", recent)
    killed(log_bench, [entry(make, "a")])
    started(log_bench)
    assert ids(log_bench)[-1] == "a" and verify_log(log_bench.directory, log_bench.signer.verifier).ok


async def test_a_journal_that_cannot_be_made_lets_requests_wait(roomy: Any, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        broker = await proven(roomy, make)
    assert "has no journal (Operation not supported)" in caplog.text
    second = broker.intent(make.intent("a"))
    assert not second.done
    await asyncio.wait_for(make.settled(second), 60)
