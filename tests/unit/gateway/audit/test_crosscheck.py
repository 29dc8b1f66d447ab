"""Tampering with one of several writers: its files gone, older, or another's."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.audit import verify
from gateway.audit.chain import Chain
from gateway.audit.crypto import load_verifier
from gateway.audit.neighbours import writers_in
from gateway.audit.record import SegmentRecord
from gateway.audit.verify import WORTH_A_PROCESS, Report, verify_log
from gateway.core.audit_questions import AuditScope

NAMES = ("gw", "gw-1", "gw-2")
Tamper = Callable[[Path], object]


def history(bench: Any, make: Any, rounds: int = 6, begin: int = 0) -> None:
    """Three writers at work at the same time, with checkpoints at different moments; all are closed in the end."""
    writers = [bench.writer(writer=name, segment_bytes=2500) for name in NAMES]
    for writer in writers:
        writer.open()
    for number in range(begin, begin + rounds):
        bench.clock.advance(1.0)
        for place, writer in enumerate(writers):
            writer.write([make.intent(f"{writer.sink.writer}:{number}"), make.outcome(f"{writer.sink.writer}:{number}")])
            if (number + place) % 2:
                writer.checkpoint()
    for writer in reversed(writers):
        writer.close()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pristine")


@pytest.fixture
def made(pristine: Path, log_bench: Any, make: Any) -> Path:
    """The log of two runs of the three writers, and in `before` the state after the first; written once for the module."""
    if not (pristine / "audit").exists():
        bench = type(log_bench)(pristine)
        history(bench, make)
        shutil.copytree(pristine / "audit", pristine / "before")
        history(bench, make, begin=6)
    return pristine


@pytest.fixture
def check(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    verifier = load_verifier(made / "keys" / "audit-signing.pub.pem")

    def check(tamper: Tamper, **more: Any) -> Report:
        copy = tmp_path_factory.mktemp("copy")
        shutil.copytree(made / "audit", copy, dirs_exist_ok=True)
        tamper(copy)
        report = verify_log(copy, verifier, **more)
        shutil.rmtree(copy)
        return report

    return check


def files(directory: Path, writer: str) -> list[Path]:
    return [
        path for path in directory.iterdir() if path.name.startswith((f"audit-{writer}-0", f"audit-{writer}.", f"checkpoints-{writer}."))
    ]


def delete(directory: Path, writer: str) -> None:
    for path in files(directory, writer):
        path.unlink()


def replay(made: Path, directory: Path, writer: str) -> None:
    """An older copy of all of a writer's files in their place."""
    delete(directory, writer)
    for path in files(made / "before", writer):
        shutil.copy(path, directory)


def test_several_writers_are_proven(check: Any, made: Path) -> None:
    report = check(lambda directory: None)
    assert report.ok, report.problems
    assert [writer.writer for writer in report.writers] == list(NAMES)
    assert all(writer.segments > 1 and writer.unsigned == 1 and not writer.live for writer in report.writers)


@pytest.mark.parametrize("writer", NAMES)
def test_a_writer_that_is_gone_as_a_whole_is_named(check: Any, writer: str) -> None:
    report = check(lambda directory: delete(directory, writer))
    (problem,) = report.problems
    assert problem.writer == writer and "all files of this writer are gone" in problem.reason
    assert "signed that it had seen checkpoint" in problem.reason
    assert [found.writer for found in report.writers] == list(NAMES)


@pytest.mark.parametrize("writer", NAMES)
def test_an_older_copy_of_a_writers_files_is_found(check: Any, made: Path, writer: str) -> None:
    report = check(lambda directory: replay(made, directory, writer))
    assert {problem.writer for problem in report.problems} == {writer}
    assert "its newest records, or all of them, are gone" in report.problems[0].reason


@pytest.mark.parametrize("writer", NAMES)
def test_a_history_that_went_on_from_an_older_copy_is_found(log_bench: Any, make: Any, made: Path, tmp_path: Path, writer: str) -> None:
    """The gateway itself went on from the older files and signed more than there had been before."""
    for part in ("audit", "keys"):
        shutil.copytree(made / part, tmp_path / "again" / part)
    bench = type(log_bench)(tmp_path / "again")
    replay(made, bench.directory, writer)
    history(bench, make, rounds=20, begin=50)
    report = verify_log(bench.directory, bench.signer.verifier)
    assert {problem.writer for problem in report.problems} == {writer}
    assert any("its files were replaced by others" in problem.reason for problem in report.problems)


def test_only_the_checkpoints_of_the_others_are_needed_not_their_files(check: Any) -> None:
    """Without the checkpoints files, the checkpoints in the chains count."""

    def tamper(directory: Path) -> None:
        for path in directory.glob("checkpoints-*"):
            path.unlink()
        delete(directory, "gw-1")

    (problem,) = check(tamper).problems
    assert problem.writer == "gw-1" and "audit-gw" in problem.reason


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_segments_swapped_between_writers_are_found(check: Any, made: Path, data: st.DataObject) -> None:
    one, other = data.draw(st.lists(st.sampled_from(sorted((made / "audit").glob("audit-*.jsonl"))), min_size=2, max_size=2, unique=True))
    copy = data.draw(st.booleans())

    def tamper(directory: Path) -> None:
        (directory / one.name).write_bytes(other.read_bytes())
        if not copy:
            (directory / other.name).write_bytes(one.read_bytes())

    report = check(tamper)
    assert (one.name, 1) in {(problem.file, problem.line) for problem in report.problems}


@pytest.mark.parametrize("rename", [("gw-1", "gw-2"), ("gw-1", "gw-9")])
def test_a_writers_files_under_another_name_are_found(check: Any, rename: tuple[str, str]) -> None:
    old, new = rename

    def tamper(directory: Path) -> None:
        delete(directory, new)
        for path in files(directory, old):
            path.rename(directory / path.name.replace(old, new))

    report = check(tamper)
    assert any(f"of writer {old}" in problem.reason or f"to writer {old}" in problem.reason for problem in report.problems)
    assert any(problem.writer == old and "are gone" in problem.reason for problem in report.problems)


def test_what_the_others_signed_cannot_be_taken_out(check: Any) -> None:
    def tamper(directory: Path) -> None:
        delete(directory, "gw-1")
        for path in directory.iterdir():
            path.write_bytes(path.read_bytes().replace(b'"gw-1":{"number"', b'"gw-8":{"number"'))

    report = check(tamper)
    assert any("signature is not genuine" in problem.reason or "hash does not match" in problem.reason for problem in report.problems)


def test_a_writer_that_was_archived_as_a_whole_is_named_with_what_its_archive_must_hold(check: Any, made: Path) -> None:
    whole = check(lambda directory: None).writers[1]
    report = check(lambda directory: delete(directory, "gw-1"), scope=AuditScope(archived=("gw-1",)))
    assert report.ok
    (writer,) = [writer for writer in report.writers if writer.writer == "gw-1"]
    assert writer.archived is not None and 0 < writer.archived.covers <= whole.signed and writer.segments == 0
    still = check(lambda directory: files(directory, "gw-1")[0].write_bytes(b"x\n"), scope=AuditScope(archived=("gw-1",)))
    assert not still.ok, "what is there is verified"


def test_segments_can_be_archived_of_each_writer_by_itself(check: Any) -> None:
    def tamper(directory: Path) -> None:
        (directory / "audit-gw-1-00000001.jsonl").unlink()
        (directory / "audit-gw-2-00000001.jsonl").unlink()
        (directory / "audit-gw-2-00000002.jsonl").unlink()

    report = check(tamper, scope=AuditScope(starts={"gw-1": 2, "gw-2": 3}))
    assert report.ok, report.problems
    assert [writer.skipped and writer.skipped.segment for writer in report.writers] == [None, 1, 2]
    assert not check(tamper, scope=AuditScope(first=2)).ok


def test_archived_checkpoints_are_no_gap(check: Any) -> None:
    def tamper(directory: Path) -> None:
        (directory / "audit-gw-1-00000001.jsonl").unlink()
        (directory / "checkpoints-gw-1.jsonl").unlink()

    assert check(tamper, scope=AuditScope(starts={"gw-1": 2})).ok


def test_processes_read_side_by_side_and_find_the_same(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_bench: Any) -> None:
    shutil.copytree(made / "audit", tmp_path / "log")
    delete(tmp_path / "log", "gw-2")
    path = tmp_path / "log" / "audit-gw-1-00000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"gw-1:1"', b'"gw-1:7"', 1))
    verifier = load_verifier(made / "keys" / "audit-signing.pub.pem")
    alone = verify_log(tmp_path / "log", verifier)
    assert WORTH_A_PROCESS > 1 << 20
    monkeypatch.setattr(verify, "WORTH_A_PROCESS", 0)
    assert verify_log(tmp_path / "log", verifier, processes=2) == alone
    assert {problem.writer for problem in alone.problems} == {"gw-1", "gw-2"}


def test_a_writer_that_signs_on_during_a_verification_is_no_problem(log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [log_bench.writer(writer=name) for name in ("a", "b")]
    for writer in writers:
        writer.open()
    read = verify._read_one

    def meanwhile(directory: Path, source: Path, key: bytes, writer: str, *rest: Any) -> Any:
        found = read(directory, source, key, writer, *rest)
        if writer == "a":  # which b sees before its chain is read
            writers[0].write([make.intent("late")])
            writers[0].checkpoint()
            writers[1].write([make.intent("later")])
            writers[1].checkpoint()
        return found

    monkeypatch.setattr(verify, "_read_one", meanwhile)
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert report.ok, report.problems
    assert [writer.live for writer in report.writers] == [True, True]
    for writer in writers:
        writer.close()


def test_the_log_before_writers_had_ids_cannot_be_taken_away(log_bench: Any, make: Any) -> None:
    log_bench.log(writer="0")
    new = log_bench.writer(writer="gw")
    new.open()
    new.close()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok
    delete(log_bench.directory, "0")
    assert writers_in(log_bench.directory) == {"gw"}
    (problem,) = verify_log(log_bench.directory, log_bench.signer.verifier).problems
    assert problem.writer == "0"


def test_a_checkpoint_that_was_lost_with_the_power_is_no_problem_while_what_it_covered_is_there(log_bench: Any, make: Any) -> None:
    """Another writer saw it before it was on the disk; the next start signed the next one under the same number."""
    writers = [log_bench.writer(writer=name) for name in ("a", "b")]
    for writer in writers:
        writer.open()
    writers[0].checkpoint()
    writers[0].write([make.intent("r1")])
    path = log_bench.directory / "checkpoints-a.jsonl"
    before = path.read_bytes(), log_bench.segment(1, "a").read_bytes()
    writers[0].checkpoint()
    writers[1].checkpoint()
    writers[0].abandon()
    path.write_bytes(before[0])
    log_bench.segment(1, "a").write_bytes(before[1])
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok
    again = log_bench.writer(writer="a")
    again.open()
    again.close()
    writers[1].close()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_a_writer_of_which_nothing_is_signed_is_found(check: Any, log_bench: Any, make: Any) -> None:
    """Anybody can chain lines; only the gateway signs."""

    def tamper(directory: Path) -> None:
        chain = Chain()
        header = SegmentRecord(time=1.0, format=1, segment=1, writer="gw-3", previous="0" * 64, config=1)
        (directory / "audit-gw-3-00000001.jsonl").write_bytes(chain.seal([header, make.intent("forged")]))

    (problem,) = check(tamper).problems
    assert (problem.writer, problem.file) == ("gw-3", "audit-gw-3-00000001.jsonl") and "nothing of this writer is signed" in problem.reason


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_checkpoints_file_that_was_cut_off_is_found(check: Any, left: int) -> None:
    def tamper(directory: Path) -> None:
        path = directory / "checkpoints-gw-1.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:left]))

    report = check(tamper)
    (problem,) = report.problems
    assert (problem.writer, problem.file) == ("gw-1", "checkpoints-gw-1.jsonl") and f"it ends with checkpoint {left}" in problem.reason


def test_a_copy_of_the_checkpoints_elsewhere_may_be_older(check: Any, made: Path) -> None:
    assert check(lambda directory: None, checkpoints=made / "before").ok
