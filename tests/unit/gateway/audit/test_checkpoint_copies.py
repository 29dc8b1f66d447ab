"""Second places of checkpoints: a folder, and an HTTP server (the archive: test_archive.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.audit.checkpoint_copies import CheckpointCopy, CopyFailed, checked
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.retention import CopySpec
from tests.fakes.http_receiver import HttpReceiver


@pytest.fixture
def receiver() -> Any:
    made = HttpReceiver()
    yield made
    made.close()


def test_new_checkpoints_are_posted_as_lines(log_bench: Any, receiver: HttpReceiver) -> None:
    log_bench.log(batches=2)
    copy = CheckpointCopy("http", CopySpec(url=receiver.url, token=Secret("t0ken")), None)
    done = copy.take(log_bench.directory, "0", 0)
    log_bench.log(batches=1)
    again = copy.take(log_bench.directory, "0", done)
    assert copy.take(log_bench.directory, "0", again) == again
    bodies = [body for _, body in receiver.requests]
    assert b"".join(bodies) == (log_bench.directory / "checkpoints-0.jsonl").read_bytes() and len(bodies) == 2


def test_a_server_that_refuses_is_told(log_bench: Any, receiver: HttpReceiver) -> None:
    log_bench.log(batches=2)
    receiver.answers = [(500, b"")]
    with pytest.raises(CopyFailed, match="answered 500"):
        CheckpointCopy("http", CopySpec(url=receiver.url), None).take(log_bench.directory, "0", 0)
    with pytest.raises(CopyFailed):
        CheckpointCopy("http", CopySpec(url="http://127.0.0.1:9"), None).take(log_bench.directory, "0", 0)


def test_a_file_that_was_replaced_is_copied_behind_what_is_there(log_bench: Any, tmp_path: Path) -> None:
    """The copy is evidence: nothing of it is taken back."""
    log_bench.log(batches=4)
    copy = CheckpointCopy("second", CopySpec(folder=str(tmp_path / "second")), None)
    done = copy.take(log_bench.directory, "0", 0)
    path = log_bench.directory / "checkpoints-0.jsonl"
    first = path.read_bytes()
    path.write_bytes(first.splitlines(keepends=True)[0])
    copy.take(log_bench.directory, "0", done)
    assert (tmp_path / "second" / path.name).read_bytes() == first + path.read_bytes()


def test_a_line_that_was_cut_off_is_completed(log_bench: Any, tmp_path: Path) -> None:
    log_bench.log(batches=2)
    original = (log_bench.directory / "checkpoints-0.jsonl").read_bytes()
    copied = tmp_path / "second" / "checkpoints-0.jsonl"
    copied.parent.mkdir()
    copied.write_bytes(original[:-40])
    copy = CheckpointCopy("second", CopySpec(folder=str(copied.parent)), None)
    begin = original.rfind(b"\n", 0, -1) + 1  # the last copy that ended took the lines before the last one
    done = copy.take(log_bench.directory, "0", begin)
    assert (done, copied.read_bytes()) == (len(original), original)


def test_lines_behind_another_log_s_cut_off_line_stay_whole(log_bench: Any, tmp_path: Path) -> None:
    log_bench.log(batches=2)
    original = (log_bench.directory / "checkpoints-0.jsonl").read_bytes()
    copied = tmp_path / "second" / "checkpoints-0.jsonl"
    copied.parent.mkdir()
    there = original * 200 + b'{"sequence":99'
    copied.write_bytes(there)
    CheckpointCopy("second", CopySpec(folder=str(copied.parent)), None).take(log_bench.directory, "0", 0)
    assert copied.read_bytes() == there + b"\n" + original


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (CopySpec(), "say one of"),
        (CopySpec(folder="a", url="https://b"), "say one of"),
        (CopySpec(archive=True), "no archive"),
        (CopySpec(url="http://elsewhere.example/"), "https://"),
    ],
)
def test_a_place_is_one_place(spec: CopySpec, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        checked(spec, "audit.checkpoint.copies[0]", None)
    assert (caught.value.path or "").startswith("audit.checkpoint.copies[0]")
