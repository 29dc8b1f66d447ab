"""Several writers in one directory: each names the others' checkpoints, and keeps out who does not belong there."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import neighbours
from gateway.audit.crypto import load_signer
from gateway.audit.neighbours import Witness, holder, writers_in
from gateway.audit.verify import verify_log
from gateway.core.errors import ConfigError


def checkpoints(bench: Any, writer: str) -> list[dict[str, Any]]:
    return [record for record in read(bench, writer) if record["kind"] == "checkpoint"]


def read(bench: Any, writer: str) -> list[dict[str, Any]]:
    return [
        record for number, _ in enumerate(bench.directory.glob(f"audit-{writer}-0*.jsonl"), 1) for record in bench.records(number, writer)
    ]


def start(bench: Any, writer: str, **more: Any) -> Any:
    made = bench.writer(writer=writer, **more)
    made.open()
    return made


def test_writers_are_known_by_any_of_their_files(tmp_path: Path) -> None:
    names = (
        *("audit-gw-1-00000001.jsonl", "audit-gw-00000012.jsonl", "checkpoints-only.jsonl", "audit-a-00000001-00000001.jsonl"),
        *("audit-b.journal", "audit-c.lock", "audit-gw-00000001.torn-5-ab", "audit-d.journal.unreadable-00", "notes.txt"),
    )
    for name in names:
        (tmp_path / name).touch()
    assert writers_in(tmp_path) == {"gw-1", "gw", "only", "a-00000001", "b"}


def test_a_new_writer_signs_at_once_what_it_found_and_the_others_follow(log_bench: Any, make: Any) -> None:
    log_bench.log(writer="0")
    first = start(log_bench, "gw")
    (signed,) = checkpoints(log_bench, "gw")
    head = checkpoints(log_bench, "0")[-1]
    assert signed["others"] == {"0": {"number": head["number"], "covers": head["covers"], "head": head["head"]}}
    second = start(log_bench, "gw-1")
    assert set(checkpoints(log_bench, "gw-1")[0]["others"]) == {"0", "gw"}
    first.checkpoint()
    assert set(checkpoints(log_bench, "gw")[-1]["others"]) == {"gw-1"}
    first.close()
    second.close()
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_a_writer_alone_signs_nothing_more_than_before(log_bench: Any) -> None:
    start(log_bench, "gw").close()
    (signed,) = checkpoints(log_bench, "gw")
    assert "others" not in signed


def test_checkpoints_about_checkpoints_come_to_an_end(log_bench: Any, make: Any) -> None:
    writers = [start(log_bench, name) for name in ("a", "b", "c", "d")]
    writers[0].write([make.intent(f"r{n}") for n in range(5)])
    for _ in range(20):
        for writer in writers:
            writer.checkpoint()
    before = [writer.chain.seq for writer in writers]
    for _ in range(5):
        for writer in writers:
            writer.checkpoint()
    assert [writer.chain.seq for writer in writers] == before
    assert all(len(checkpoints(log_bench, name)) < 8 for name in "abcd")
    for writer in writers:
        writer.close()


def test_an_idle_writer_signs_what_a_busy_one_has_done(log_bench: Any, make: Any) -> None:
    idle, busy = start(log_bench, "gw"), start(log_bench, "gw-1")
    idle.checkpoint()
    for number in range(3):
        busy.write([make.intent(f"r{number}")])
        busy.checkpoint()
        idle.checkpoint()
        assert checkpoints(log_bench, "gw")[-1]["others"]["gw-1"]["covers"] == checkpoints(log_bench, "gw-1")[-1]["covers"]
    idle.close()
    busy.close()


def test_more_writers_than_a_checkpoint_holds_come_one_after_the_other(log_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST", 6)
    for number in range(6 + 5):
        log_bench.log(batches=0, writer=f"w{number}")
    witness = Witness(log_bench.directory, "gw", log_bench.signer.verifier)
    seen: set[str] = set()
    for expected in (6, 5, 0):
        news = witness.look()
        assert len(news) == expected and not seen & news.keys()
        seen |= news.keys()
        witness.noted(news)


@pytest.mark.parametrize("what", ["gone", "older"])
def test_a_running_writer_tells_once_that_another_ones_files_are_gone_or_older(log_bench: Any, what: str) -> None:
    log_bench.log(writer="gw-1")
    path = log_bench.directory / "checkpoints-gw-1.jsonl"
    watching = start(log_bench, "gw")
    if what == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    for _ in range(3):
        watching.checkpoint()
    watching.close()
    (told,) = [record for record in read(log_bench, "gw") if record.get("event") == "audit.missing"]
    assert (told["target"], told["outcome"], told["detail"]["checkpoint"]) == ("audit-gw-1", "failed", 5)
    assert watching.damaged == told["time"]


def test_a_checkpoint_that_is_not_genuine_is_not_vouched_for(log_bench: Any, tmp_path: Path) -> None:
    log_bench.log(writer="gw-1")
    path = log_bench.directory / "checkpoints-gw-1.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"covers"', b'"covers" '))  # whatever is not as it was signed
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:-1], lines[-1].replace(b'"number":5', b'"number":9')]) + b"\n")
    assert Witness(log_bench.directory, "gw", log_bench.signer.verifier).look() == {}


def test_whether_a_process_has_a_writer_is_seen_without_disturbing_it(log_bench: Any) -> None:
    assert holder(log_bench.directory, "gw") is None
    writer = start(log_bench, "gw")
    assert holder(log_bench.directory, "gw") == log_bench.signer.key_id
    writer.close()
    assert holder(log_bench.directory, "gw") is None


def test_two_state_directories_cannot_write_into_one_audit_directory(log_bench: Any, tmp_path: Path) -> None:
    ours = start(log_bench, "gw")
    stranger = log_bench.writer(writer="other")
    stranger.signer = load_signer(str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="signs with another key"):
        stranger.open()
    stranger.abandon()
    ours.close()
    stranger = log_bench.writer(writer="other")
    stranger.signer = load_signer(str(tmp_path / "elsewhere"))
    stranger.open()  # verification tells the keys apart
    stranger.close()


def test_a_gateway_of_an_older_version_is_kept_apart(log_bench: Any) -> None:
    old = log_bench.sink(writer="0")
    old.open()  # it leaves nothing in its lock
    old.begin(1)
    new = log_bench.writer(writer="gw")
    with pytest.raises(ConfigError, match="older version"):
        new.open()
    new.abandon()
    old.close()
    start(log_bench, "gw").close()


def test_a_lock_that_somebody_only_looked_at_is_waited_for(log_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(log_bench, "gw").close()
    looking = os.open(log_bench.directory / "audit-gw.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr(time, "sleep", pause)
    sink = log_bench.sink(writer="gw")
    sink.open()
    sink.close()
    os.close(looking)
    assert len(pauses) == 1
