"""Start, repair, rotation and checkpoints, without threads."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.audit.chain import Draft, payload
from gateway.audit.neighbours import holder
from gateway.audit.verify import verify_log


def verified(bench: Any) -> Any:
    return verify_log(bench.directory, bench.signer.verifier)


def start(bench: Any, **more: Any) -> Any:
    writer = bench.writer(**more)
    writer.open()
    return writer


def test_a_segment_begins_with_its_header(log_bench: Any, make: Any) -> None:
    start(log_bench).close()
    header = log_bench.records()[0]
    assert {k: header[k] for k in ("seq", "kind", "format", "segment", "writer", "previous")} == {
        "seq": 1, "kind": "segment", "format": 1, "segment": 1, "writer": "0", "previous": "0" * 64,
    }  # fmt: skip


def test_a_clean_stop_and_a_start_continue_the_chain(log_bench: Any, make: Any) -> None:
    for _ in range(3):
        writer = start(log_bench)
        writer.write([make.intent()])
        writer.close()
    assert log_bench.events() == ["audit.opened", "audit.closed"] * 3
    assert [r["detail"]["clean"] for r in log_bench.records() if r.get("event") == "audit.opened"] == [True, True, True]
    report = verified(log_bench)
    assert report.ok and report.writers[0].unsigned == 1  # the last checkpoint itself


def test_a_stop_without_farewell_is_told_by_the_next_start(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    writer.write([make.intent()])
    writer.checkpoint()
    writer.abandon()
    start(log_bench).close()
    assert log_bench.records()[-3]["detail"] == {"clean": False, "segment": 1, "outcomes_unknown": 1}
    assert verified(log_bench).ok


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_torn_last_line_is_moved_away_and_told(log_bench: Any, make: Any, keep: int) -> None:
    writer = start(log_bench)
    writer.write([make.intent("kept")])
    whole = log_bench.segment().read_bytes()
    writer.write([make.intent("torn")])
    last = log_bench.lines()[-1][:keep] if keep else b"\x00" * 4096
    writer.abandon()
    log_bench.segment().write_bytes(whole + last)
    start(log_bench).close()
    sides = list(log_bench.directory.glob("*.torn-*"))
    assert [side.read_bytes() for side in sides] == [last]
    assert log_bench.events() == ["audit.opened", "audit.repaired", "audit.opened", "audit.closed"]
    detail = next(r["detail"] for r in log_bench.records() if r.get("event") == "audit.repaired")
    assert (detail["bytes"], detail["offset"], detail["moved_to"]) == (len(last), len(whole), sides[0].name)
    assert verified(log_bench).ok


def test_a_last_line_whose_hash_does_not_fit_is_torn_too(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    writer.write([make.intent("kept"), make.intent("torn")])
    writer.abandon()
    path = log_bench.segment()
    path.write_bytes(path.read_bytes().replace(b'"torn"', b'"t\x00rn"'))
    start(log_bench).close()
    assert "audit.repaired" in log_bench.events() and verified(log_bench).ok


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_wherever_a_write_was_torn_what_came_before_is_kept(tmp_path_factory: Any, log_bench: Any, make: Any, data: st.DataObject) -> None:
    bench = type(log_bench)(tmp_path_factory.mktemp("torn"))
    writer = start(bench)
    writer.write([make.intent(f"r{n}") for n in range(3)])
    acknowledged = bench.segment().stat().st_size
    writer.write([make.intent(f"s{n}") for n in range(3)])
    writer.abandon()
    whole = bench.segment().read_bytes()
    size = data.draw(st.integers(acknowledged, len(whole)))
    garbage = data.draw(st.one_of(st.just(b""), st.just(b"\x00" * 100), st.binary(max_size=50)))
    bench.segment().write_bytes(whole[:size] + garbage)
    start(bench).close()
    report = verified(bench)
    assert report.ok, report.problems
    assert [r["request_id"] for r in bench.records() if r["kind"] == "intent"][:3] == ["r0", "r1", "r2"]


def test_damage_before_good_lines_is_not_repaired(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    writer.write([make.intent("a"), make.intent("b"), make.intent("c")])
    writer.abandon()
    path = log_bench.segment()
    damaged = path.read_bytes().replace(b'"request_id":"a"', b'"request_id":"x"')
    path.write_bytes(damaged)
    start(log_bench).close()
    assert path.read_bytes() == damaged
    header = log_bench.records(2)[0]
    assert header["broken"] == {"line": 3, "reason": "the hash does not match the record and the line before it", "segment": 1}
    assert header["seq"] == 6 and log_bench.events(2) == ["audit.broken", "audit.opened", "audit.closed"]
    report = verified(log_bench)
    assert [(p.file, p.line) for p in report.problems] == [(path.name, 3)]


def test_a_log_that_ends_before_its_signed_checkpoint_is_damage(log_bench: Any) -> None:
    log_bench.log()
    lines = log_bench.lines()
    log_bench.segment().write_bytes(b"".join(lines[:5]))
    start(log_bench).close()
    header = log_bench.records(2)[0]
    assert "before the signed checkpoint" in header["broken"]["reason"] and header["seq"] == len(lines)
    assert not verified(log_bench).ok


def test_a_log_that_vanished_is_damage(log_bench: Any) -> None:
    log_bench.log()
    log_bench.segment().unlink()
    start(log_bench).close()
    assert "before the signed checkpoint" in log_bench.records(2)[0]["broken"]["reason"]
    assert not verified(log_bench).ok


def test_a_signed_last_line_is_never_cut_off_as_torn(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    writer.write([make.intent("signed")])
    writer.checkpoint()
    writer.abandon()
    lines = log_bench.lines()[:-1]
    lines[-1] = lines[-1].replace(b"signed", b"edited")
    log_bench.segment().write_bytes(b"".join(lines))
    start(log_bench).close()
    assert log_bench.lines()[-1] == lines[-1] and "broken" in log_bench.records(2)[0]


def test_segments_rotate_and_the_chain_runs_through(log_bench: Any, make: Any) -> None:
    writer = start(log_bench, segment_bytes=1500)
    for number in range(40):
        writer.write([make.intent(f"r{number}"), make.outcome(f"r{number}")])
    writer.close()
    paths = sorted(log_bench.directory.glob("audit-0-*.jsonl"))
    assert len(paths) > 5 and all(path.stat().st_size < 3500 for path in paths)
    assert log_bench.records(1)[-1]["kind"] == "checkpoint"
    assert log_bench.records(2)[0]["previous"] == log_bench.records(1)[-1]["hash"]
    report = verified(log_bench)
    assert report.ok and report.writers[0].segments == len(paths)
    start(log_bench).close()
    assert verified(log_bench).ok


def test_a_header_comes_before_what_was_linked_ahead(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer(segment_bytes=1)
    writer.open()
    for number in range(2):
        record = make.intent(f"r{number}")
        draft = Draft(writer.chain)
        draft.extend([payload(record)])
        writer.write([record], draft)
    writer.close()
    assert [record["kind"] for record in log_bench.records(2)] == ["segment", "intent", "checkpoint"]
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


@pytest.mark.parametrize("begun", [b"", b'{"seq":9,"ki'])
def test_a_crash_while_a_segment_was_begun_is_healed(log_bench: Any, begun: bytes) -> None:
    log_bench.log()
    log_bench.segment(2).write_bytes(begun)
    start(log_bench).close()
    assert log_bench.records(2)[0]["previous"] == log_bench.records(1)[-1]["hash"]
    assert verified(log_bench).ok


def test_a_crash_while_the_first_segment_was_begun_is_healed(log_bench: Any) -> None:
    log_bench.directory.mkdir()
    log_bench.segment(1).write_bytes(b'{"seq":1,')
    start(log_bench).close()
    assert log_bench.records(1)[0]["seq"] == 1 and verified(log_bench).ok


def test_a_failed_rotation_leaves_the_old_segment_in_use(log_bench: Any, make: Any) -> None:
    writer = start(log_bench, segment_bytes=600)
    writer.write([make.intent("a"), make.intent("b")])
    log_bench.disk.fill()
    with pytest.raises(OSError, match="No space"):
        writer.write([make.intent("c")])
    log_bench.disk.error = None
    writer.write([make.intent("d")])
    writer.close()
    assert verified(log_bench).ok
    found = [r["request_id"] for n in (1, 2) for r in log_bench.records(n) if r["kind"] == "intent"]
    assert found == ["a", "b", "d"]


def test_a_segment_whose_entry_in_the_directory_could_not_be_synced_is_begun_anew(
    log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = start(log_bench, segment_bytes=600)
    writer.write([make.intent("a"), make.intent("b")])
    open_before = len(os.listdir("/proc/self/fd"))

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                writer.write([make.intent("c")])
    assert len(os.listdir("/proc/self/fd")) == open_before
    writer.write([make.intent("d")])
    writer.close()
    assert verified(log_bench).ok
    assert [r["request_id"] for r in log_bench.records(2) if r["kind"] == "intent"] == ["d"]


def test_a_header_that_could_not_be_written_is_written_later(log_bench: Any, make: Any) -> None:
    writer = start(log_bench, segment_bytes=600)
    writer.write([make.intent("a"), make.intent("b")])
    writer.checkpoint()
    log_bench.disk.fill(after=10)
    with pytest.raises(OSError, match="No space"):
        writer.write([make.intent("c")])
    assert log_bench.segment(2).read_bytes() == b""
    log_bench.disk.error = None
    writer.write([make.intent("d")])
    writer.close()
    assert verified(log_bench).ok and log_bench.records(2)[0]["kind"] == "segment"


def test_a_checkpoint_that_reached_its_file_but_not_the_chain_is_no_lie(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    writer.write([make.intent("a")])
    original = log_bench.disk.pwrite
    calls = []

    def fail_second(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(descriptor, data, offset)

    log_bench.disk.pwrite = fail_second
    with pytest.raises(OSError, match="No space"):
        writer.checkpoint()
    writer.checkpoint()
    writer.write([make.intent("b")])
    writer.close()
    report = verified(log_bench)
    assert report.ok and report.writers[0].checkpoints == 2


def test_a_kill_between_checkpoint_and_rotation_signs_nothing_twice(log_bench: Any, make: Any) -> None:
    writer = start(log_bench, segment_bytes=600)
    writer.write([make.event("a"), make.event("b"), make.event("c")])
    original = log_bench.disk.pwrite
    log_bench.disk.fill()
    log_bench.disk.pwrite = lambda descriptor, data, offset: (original if offset else os.pwrite)(descriptor, data, offset)
    with pytest.raises(OSError, match="No space"):
        writer.write([make.intent("c")])  # the checkpoint reaches its file, the chain does not get it
    writer.abandon()
    log_bench.disk.pwrite, log_bench.disk.error = original, None
    start(log_bench, segment_bytes=600).close()
    report = verified(log_bench)
    assert report.ok, report.problems
    assert report.writers[0].checkpoints == 2 and report.writers[0].segments == 2


def test_a_checkpoint_is_made_only_when_something_came_since(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    for _ in range(3):
        writer.checkpoint()
    writer.write([make.intent()])
    writer.checkpoint()
    writer.close()
    assert verified(log_bench).writers[0].checkpoints == 3


def test_a_torn_checkpoints_file_is_healed(log_bench: Any) -> None:
    log_bench.log()
    path: Path = log_bench.directory / "checkpoints-0.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time":1.0,"wri')
    start(log_bench).close()
    assert verified(log_bench).ok


def test_the_checkpoints_files_end_is_found_in_a_long_file(log_bench: Any, make: Any) -> None:
    log_bench.log(batches=40)
    start(log_bench).close()
    report = verified(log_bench)
    assert report.ok and report.writers[0].checkpoints == 42


DELETED = {
    "segment": ("audit-0-00000001.jsonl",),
    "checkpoints": ("checkpoints-0.jsonl",),
    "lock": ("audit-0.lock",),
    "everything": ("audit-0.lock", "audit-0-00000001.jsonl", "checkpoints-0.jsonl"),
}


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("gone", DELETED)
def test_files_that_were_deleted_under_a_writer_take_no_records_with_them(log_bench: Any, make: Any, gone: str, idle: bool) -> None:
    writer = start(log_bench)
    writer.write([make.intent("before")])
    writer.checkpoint()
    assert writer.damaged == 0
    for name in DELETED[gone]:
        (log_bench.directory / name).unlink()
    if gone == "everything":
        log_bench.directory.rmdir()
    writer.look = True
    if idle:
        writer.mind()
    writer.write([make.intent("after")])
    writer.checkpoint()
    assert holder(log_bench.directory, "0") == log_bench.signer.key_id
    writer.close()
    segment = 2 if gone in ("segment", "everything") else 1
    assert [record["request_id"] for record in log_bench.records(segment) if record["kind"] == "intent"][-1] == "after"
    (told,) = [record for record in log_bench.records(segment) if record.get("event") == "audit.broken"]
    deleted = ["lock", "segment", "checkpoints"] if gone == "everything" else [gone]
    assert told["detail"] == {"deleted": deleted, "segment": segment} and told["outcome"] == "failed"
    assert writer.damaged == told["time"]
    report = verified(log_bench)
    assert report.ok == (gone == "lock") and report.writers[0].last == log_bench.records(segment)[-1]["seq"]


def test_a_writer_that_another_process_has_taken_writes_nothing_more(log_bench: Any, make: Any) -> None:
    writer = start(log_bench)
    (log_bench.directory / "audit-0.lock").unlink()
    other = log_bench.sink()
    assert other.take()
    before = log_bench.segment().read_bytes()
    writer.look = True
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            writer.write([make.intent("a")])
    assert log_bench.segment().read_bytes() == before
    other.close()
    writer.write([make.intent("b")])
    writer.close()
    assert verified(log_bench).ok


def test_requests_do_not_rely_on_a_journal_that_was_deleted(log_bench: Any, make: Any) -> None:
    log_bench.disk.room = 1 << 40
    writer = start(log_bench)
    journal = writer.make_journal()
    writer.look = True
    writer.write([make.intent("a")])
    assert writer.roomy and log_bench.events() == ["audit.opened"]
    journal.path.unlink()
    writer.look = True
    for name in ("b", "c"):
        writer.write([make.intent(name)])
        assert not writer.roomy
    journal.close()
    writer.close()
    assert log_bench.events() == ["audit.opened", "audit.broken", "audit.closed"] and verified(log_bench).ok


def test_a_closed_writer_looks_after_nothing(log_bench: Any) -> None:
    writer = start(log_bench)
    writer.close()
    writer.look = True
    writer.mind()
    assert verified(log_bench).ok and log_bench.events() == ["audit.opened", "audit.closed"]


def test_a_new_segment_begins_after_a_time(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.age = 3600.0
    writer.open()
    writer.write([make.intent("a")])
    log_bench.clock.advance(3599.0)
    writer.write([make.intent("b")])
    assert writer.sink.segment == 1
    writer.close()
    again = log_bench.writer()  # the age is that of the segment, whoever began it
    again.age = 3600.0
    again.open()
    log_bench.clock.advance(1.0)
    again.write([make.intent("c")])
    assert again.sink.segment == 2
    again.write([make.intent("d")])
    again.close()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok
