"""Tampering, as a property: whatever an attacker does to a log is found, with the public key and the checkpoints alone."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gateway.audit.chain import Chain
from gateway.audit.crypto import load_verifier
from gateway.audit.verify import Report, verify_log
from gateway.core.audit_questions import AuditScope

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pristine")


@pytest.fixture
def made(pristine: Path, log_bench: Any) -> Path:
    """A closed log of several segments, written once for the module."""
    if not (pristine / "audit").exists():
        type(log_bench)(pristine).log(batches=8, segment_bytes=3000)
    return pristine


@pytest.fixture
def check(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    verifier = load_verifier(made / "keys" / "audit-signing.pub.pem")

    def check(tamper: Any) -> Report:
        copy = tmp_path_factory.mktemp("copy")
        shutil.copytree(made / "audit", copy, dirs_exist_ok=True)
        tamper(copy)
        report = verify_log(copy, verifier, checkpoints=made / "audit")
        shutil.rmtree(copy)
        return report

    return check


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("audit-0-*.jsonl"))


def rechain(directory: Path, change: Any) -> None:
    """What an attacker without the signing key can do: change the list of lines and compute all hashes anew."""
    head = "0" * 64
    lines = [(path, line) for path in segments(directory) for line in path.read_bytes().splitlines(keepends=True)]
    fresh: dict[Path, bytes] = {path: b"" for path in segments(directory)}
    for seq, (path, line) in enumerate(change(lines), start=1):
        body = line[:-76]
        body = b'{"seq":%d,' % seq + body.split(b",", 1)[1]
        if b'"kind":"segment"' in body:
            old = msgspec.json.decode(line)["previous"]
            body = body.replace(old.encode(), head.encode())
        head = hashlib.sha256(head.encode() + body).hexdigest()
        fresh[path] += body + b',"hash":"' + head.encode() + b'"}\n'
    for path, data in fresh.items():
        path.write_bytes(data)


def test_an_untouched_log_is_proven_to_the_end(check: Any, made: Path) -> None:
    report = check(lambda directory: None)
    (writer,) = report.writers
    assert report.ok and writer.segments == len(segments(made / "audit")) >= 3
    assert writer.last == writer.lines and writer.unsigned == 1 and not writer.unfinished
    assert report.as_dict()["ok"] is True and report.as_dict()["first_problem"] is None


@PROPERTY
@given(st.data())
def test_an_edit_is_found_at_its_line(check: Any, made: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(segments(made / "audit")))
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1))
    position = data.draw(st.integers(0, len(lines[number]) - 2))
    byte = data.draw(st.integers(1, 255).map(lambda change: lines[number][position] ^ change).filter(lambda b: b != 10))

    def tamper(directory: Path) -> None:
        line = bytearray(lines[number])
        line[position] = byte
        (directory / path.name).write_bytes(b"".join([*lines[:number], bytes(line), *lines[number + 1 :]]))

    first = check(tamper).problems[0]
    assert (first.file, first.line) == (path.name, number + 1)


@PROPERTY
@given(st.data())
def test_deleted_inserted_and_moved_lines_are_found(check: Any, made: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(segments(made / "audit")))
    lines = path.read_bytes().splitlines(keepends=True)
    last = path == segments(made / "audit")[-1]
    changed = list(lines)
    kind = data.draw(st.sampled_from(["delete", "insert", "swap"]))
    at = data.draw(st.integers(0, len(lines) - 1))
    if kind == "delete":
        assume(not (last and at == len(lines) - 1))  # the last checkpoint itself: nothing that it covers is gone
        del changed[at]
    elif kind == "insert":
        changed.insert(at, data.draw(st.sampled_from([*lines, b"\n", b"{}\n", b"garbage\n"])))
    else:
        other = data.draw(st.integers(0, len(lines) - 1).filter(lambda n: n != at))
        changed[at], changed[other] = changed[other], changed[at]
    report = check(lambda directory: (directory / path.name).write_bytes(b"".join(changed)))
    assert not report.ok


@PROPERTY
@given(st.data())
def test_a_tail_that_was_cut_off_anywhere_is_found(check: Any, made: Path, data: st.DataObject) -> None:
    paths = segments(made / "audit")
    keep = data.draw(st.integers(0, len(paths) - 1))
    content = paths[keep].read_bytes()
    signed = content.rstrip(b"\n").rfind(b"\n") + 1 if keep == len(paths) - 1 else len(content)
    size = data.draw(st.integers(0, signed - 1))

    def tamper(directory: Path) -> None:
        (directory / paths[keep].name).write_bytes(content[:size])
        for path in paths[keep + 1 :]:
            (directory / path.name).unlink()

    report = check(tamper)
    assert not report.ok and "cut off" in report.problems[-1].reason


@PROPERTY
@given(st.data())
def test_a_chain_computed_anew_is_found_by_the_checkpoints(check: Any, made: Path, data: st.DataObject) -> None:
    total = sum(len(path.read_bytes().splitlines()) for path in segments(made / "audit"))
    at = data.draw(st.integers(1, total - 3))
    kind = data.draw(st.sampled_from(["edit", "delete", "swap"]))

    def change(lines: list[tuple[Path, bytes]]) -> list[tuple[Path, bytes]]:
        path, line = lines[at]
        if kind == "edit":
            lines[at] = (path, line.replace(b'"time":1', b'"time":2'))
        elif kind == "delete":
            del lines[at]
        else:
            lines[at], lines[at + 1] = (path, lines[at + 1][1]), (lines[at + 1][0], line)
        return lines

    assert not check(lambda directory: rechain(directory, change)).ok


def test_rechaining_without_a_change_gives_the_same_log(check: Any) -> None:
    """Shows that the attacker of the test above does it right."""
    assert check(lambda directory: rechain(directory, lambda lines: lines)).ok


def test_swapped_and_missing_segments_are_found(check: Any, made: Path) -> None:
    paths = segments(made / "audit")

    def swap(directory: Path) -> None:
        for one, other in ((paths[0], paths[1]), (paths[1], paths[0])):
            (directory / one.name).write_bytes(other.read_bytes())

    first = check(swap).problems[0]
    assert (first.file, first.line) == (paths[0].name, 1) and "segment 2" in first.reason
    missing = check(lambda directory: (directory / paths[1].name).unlink()).problems[0]
    assert "segment 2 is missing" in missing.reason
    assert not check(lambda directory: (directory / paths[0].name).unlink()).ok
    assert not check(lambda directory: (directory / paths[1].name).write_bytes(b"")).ok


def test_a_log_that_is_gone_is_found_by_the_checkpoints(check: Any, made: Path) -> None:
    def tamper(directory: Path) -> None:
        for path in segments(directory):
            path.unlink()

    assert "the end was cut off" in check(tamper).problems[0].reason


def test_archived_segments_need_not_be_there(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "audit", tmp_path / "log")
    segments(tmp_path / "log")[0].unlink()
    verifier = load_verifier(made / "keys" / "audit-signing.pub.pem")
    report = verify_log(tmp_path / "log", verifier, scope=AuditScope(2))
    assert report.ok, report.problems
    problem = verify_log(tmp_path / "log", verifier).problems[0]
    assert problem.reason == "segment 1 is missing before this one; where older segments were archived, verify from segment 2 on"


def archived(made: Path, tmp_path: Path, count: int) -> tuple[Path, bytes]:
    """A copy of the log without its first segments, and the last line of those."""
    shutil.copytree(made / "audit", tmp_path / "log")
    gone = segments(tmp_path / "log")[:count]
    last = gone[-1].read_bytes().splitlines(keepends=True)[-1]
    for path in gone:
        path.unlink()
    return tmp_path / "log", last


@pytest.mark.parametrize("count", [1, 2])
def test_what_was_archived_is_named_and_the_seam_is_proven_by_a_checkpoint(made: Path, tmp_path: Path, count: int) -> None:
    directory, last = archived(made, tmp_path, count)
    report = verify_log(directory, load_verifier(made / "keys" / "audit-signing.pub.pem"), scope=AuditScope(count + 1))
    (writer,) = report.writers
    line = msgspec.json.decode(last)
    skipped = writer.skipped
    assert report.ok and skipped is not None and writer.unsigned == 1
    assert (skipped.segment, skipped.line, skipped.hash) == (count, line["seq"], line["hash"])
    assert (line["kind"], skipped.checkpoint) == ("checkpoint", line["number"])
    assert writer.lines == writer.last - skipped.line
    assert report.as_dict()["writers"][0]["skipped"]["segment"] == count  # type: ignore[index]


def test_without_the_checkpoints_file_the_seam_is_proven_by_the_checkpoints_in_the_log(made: Path, tmp_path: Path) -> None:
    directory, last = archived(made, tmp_path, 1)
    (directory / "checkpoints-0.jsonl").unlink()
    report = verify_log(directory, load_verifier(made / "keys" / "audit-signing.pub.pem"), scope=AuditScope(2))
    skipped = report.writers[0].skipped
    assert report.ok and skipped is not None and (skipped.line, skipped.checkpoint) == (msgspec.json.decode(last)["seq"], None)
    assert report.writers[0].signed > skipped.line


def test_a_seam_that_was_computed_anew_is_found(made: Path, tmp_path: Path) -> None:
    directory, last = archived(made, tmp_path, 1)
    seq, head, first = msgspec.json.decode(last)["seq"], "f" * 64, segments(directory)[0]
    previous = msgspec.json.decode(last)["hash"].encode()
    for path in segments(directory):
        fresh = b""
        for line in path.read_bytes().replace(previous, head.encode()).splitlines():
            seq += 1
            body = line[:-75]
            if path != first and b'"kind":"segment"' in body:
                body = body.replace(msgspec.json.decode(line)["previous"].encode(), head.encode())
            head = hashlib.sha256(head.encode() + body).hexdigest()
            fresh += body + b',"hash":"' + head.encode() + b'"}\n'
        path.write_bytes(fresh)
    report = verify_log(directory, load_verifier(made / "keys" / "audit-signing.pub.pem"), scope=AuditScope(2))
    assert "signed" in report.problems[0].reason and report.problems[0].file == first.name


@pytest.mark.parametrize("kept", [0, 3])
def test_the_first_segment_to_verify_must_be_there(made: Path, tmp_path: Path, kept: int) -> None:
    """Otherwise a log that was deleted would pass for one that was archived."""
    shutil.copytree(made / "audit", tmp_path / "log")
    for path in segments(tmp_path / "log")[kept:]:
        path.unlink()
    report = verify_log(tmp_path / "log", load_verifier(made / "keys" / "audit-signing.pub.pem"), scope=AuditScope(99))
    assert [(problem.file, problem.line) for problem in report.problems] == [("audit-0-00000099.jsonl", 0)]
    assert "first segment to verify is missing" in report.problems[0].reason


@PROPERTY
@given(st.data())
def test_the_checkpoints_file_cannot_be_tampered_with(made: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("copy")
    shutil.copytree(made / "audit", directory, dirs_exist_ok=True)
    path = directory / "checkpoints-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 2))
    kind = data.draw(st.sampled_from(["edit", "delete", "repeat"]))
    if kind == "edit":
        line = bytearray(lines[at])
        line[data.draw(st.integers(0, len(line) - 2))] ^= 1
        lines[at] = bytes(line)
    elif kind == "delete":
        del lines[at]
    else:
        lines.insert(at, lines[at])
    path.write_bytes(b"".join(lines))
    report = verify_log(directory, load_verifier(made / "keys" / "audit-signing.pub.pem"))
    shutil.rmtree(directory)
    assert any(problem.file == path.name for problem in report.problems)


def test_a_foreign_key_proves_nothing(made: Path, log_bench: Any) -> None:
    report = verify_log(made / "audit", log_bench.signer.verifier)
    assert "not genuine" in report.problems[0].reason


def test_checkpoints_of_a_deleted_file_still_count_in_the_chain(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "audit", tmp_path / "log")
    (tmp_path / "log" / "checkpoints-0.jsonl").unlink()
    report = verify_log(tmp_path / "log", load_verifier(made / "keys" / "audit-signing.pub.pem"))
    assert report.ok and report.writers[0].unsigned == 1


def test_an_unfinished_line_at_the_end_is_noted_not_blamed(check: Any, made: Path) -> None:
    def tamper(directory: Path) -> None:
        path = segments(directory)[-1]
        path.write_bytes(path.read_bytes() + b'{"seq":99,"kind":"int')

    report = check(tamper)
    assert report.ok and report.writers[0].unfinished


def test_chains_of_several_writers_are_verified_apart(log_bench: Any, make: Any) -> None:
    for writer in ("0", "w1"):
        log_bench.log(writer=writer)
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert report.ok and [writer.writer for writer in report.writers] == ["0", "w1"]
    path = log_bench.segment(1, "w1")
    path.write_bytes(path.read_bytes().replace(b'"r2"', b'"rX"'))
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert [problem.file for problem in report.problems] == [path.name]


def test_an_unknown_format_is_named(log_bench: Any, make: Any) -> None:
    log_bench.log()
    path = log_bench.segment()
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":9'))
    problem = verify_log(log_bench.directory, log_bench.signer.verifier).problems[0]
    assert "format 9" in problem.reason


def test_the_rest_is_read_after_a_break_the_writer_named(log_bench: Any, make: Any) -> None:
    log_bench.log()
    path = log_bench.segment()
    path.write_bytes(path.read_bytes().replace(b'"r1"', b'"rX"'))
    log_bench.log()
    log_bench.segment(2).write_bytes(log_bench.segment(2).read_bytes().replace(b'"r2"', b'"rY"', 1))
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert [problem.file for problem in report.problems] == [path.name, log_bench.segment(2).name]


def test_lines_are_those_of_the_chain() -> None:
    assert Chain().seal([]) == b""


def test_a_writer_that_must_be_there_and_is_not_is_named(made: Path) -> None:
    verifier = load_verifier(made / "keys" / "audit-signing.pub.pem")
    (problem,) = verify_log(made / "audit", verifier, scope=AuditScope(1, {"gw-9": 4})).problems
    assert (problem.file, problem.writer) == ("audit-gw-9-00000004.jsonl", "gw-9")
    assert verify_log(made / "audit", verifier, scope=AuditScope(1, {"gw-9": 4}, ("gw-9",))).ok


def test_a_log_that_is_gone_is_told_of_with_the_name_of_its_first_file(check: Any) -> None:
    def tamper(directory: Path) -> None:
        for path in segments(directory):
            path.unlink()

    problem = check(tamper).problems[0]
    assert (problem.file, problem.line) == ("audit-0-00000001.jsonl", 0)
