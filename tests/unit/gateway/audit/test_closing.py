"""Closed segments: sealed as they are, compressed without a moment in which neither form is whole."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import closing
from gateway.audit.closing import NotSealed, clean, compress_segment, seal_of
from gateway.audit.merkle import leaf_hash, root_of
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments
from gateway.audit.statements import Seal
from gateway.audit.verify import verify_log


def idle() -> None:
    pass


@pytest.fixture
def log(log_bench: Any) -> Any:
    log_bench.log(batches=12, segment_bytes=2500)
    assert len(list_segments(log_bench.directory)["0"]) > 3
    return log_bench


def sealed(log: Any, number: int) -> Seal:
    return seal_of("0", number, log.segment(number), log.segment(number + 1), log.signer.verifier, 5.0, idle)


def test_a_seal_says_what_the_segment_holds(log: Any) -> None:
    for number in (1, 2, 3):
        seal, lines, records = sealed(log, number), log.lines(number), log.records(number)
        assert (seal.first, seal.last) == (records[0]["seq"], records[-1]["seq"]) and sum(seal.records.values()) == len(lines)
        assert seal.head == records[-1]["hash"] and seal.previous == records[0]["previous"]
        assert seal.sha256 == sha256(b"".join(lines)).hexdigest() and seal.bytes == sum(map(len, lines))
        assert seal.root == root_of([leaf_hash(line[:-1]) for line in lines]).hex()
        assert (seal.began, seal.ended) == (records[0]["time"], max(records[0]["time"], records[-1]["time"]))


@pytest.mark.parametrize("what", ["flip", "cut", "delete", "empty", "other writer"])
def test_what_was_changed_is_not_sealed(log: Any, what: str) -> None:
    lines, path = log.lines(2), log.segment(2)
    changed = {
        "flip": [*lines[:2], lines[2].replace(b"acme", b"evil").replace(b"ok", b"no"), *lines[3:]],
        "cut": lines[:-2],
        "delete": [*lines[:3], *lines[4:]],
        "empty": [],
        "other writer": log.lines(3),
    }
    path.write_bytes(b"".join(changed[what]))
    with pytest.raises(NotSealed, match="00000002"):
        sealed(log, 2)


def test_compressed_the_log_reads_the_same(log: Any) -> None:
    before = {number: b"".join(log.lines(number)) for number, _ in list_segments(log.directory)["0"]}
    last = max(before)
    for number in range(1, last):
        written = log.segment(number).stat().st_mtime_ns
        path = compress_segment(log.segment(number), sealed(log, number), idle)
        assert path.stat().st_mtime_ns == written
        assert path.name.endswith(".jsonl.zst") and not log.segment(number).exists() and path.stat().st_mode & 0o777 == 0o600
    for number, path in list_segments(log.directory)["0"]:
        with open_segment(path) as file:
            assert file.read() == before[number]
    report = verify_log(log.directory, log.signer.verifier)
    assert report.ok and report.writers[0].segments == last
    log.log(batches=2, segment_bytes=2500)  # a start reads the newest, and goes on
    assert verify_log(log.directory, log.signer.verifier).ok


def test_what_does_not_read_back_is_not_put_in_its_place(log: Any) -> None:
    seal = sealed(log, 1)
    with log.segment(1).open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(NotSealed, match="does not hold"):
        compress_segment(log.segment(1), seal, idle)
    assert log.segment(1).exists() and not list(log.directory.glob("*.zst")) and not list(log.directory.glob(".*.zst"))


@pytest.mark.parametrize("call", ["fsync", "replace", "sync_directory", "unlink"])
def test_a_crash_at_any_step_leaves_one_whole(log: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    seal = sealed(log, 1)
    with monkeypatch.context() as patched:
        target = {"fsync": "os.fsync", "replace": "os.replace", "sync_directory": "sync_directory", "unlink": "Path.unlink"}[call]
        patched.setattr(f"gateway.audit.closing.{target}", crash)
        with pytest.raises(Crash):
            compress_segment(log.segment(1), seal, idle)
    assert verify_log(log.directory, log.signer.verifier).ok
    clean(log.directory)
    assert not list(log.directory.glob(".*.zst")) and log.segment(1).exists()
    assert verify_log(log.directory, log.signer.verifier).ok
    assert compress_segment(log.segment(1), seal, idle).exists() and verify_log(log.directory, log.signer.verifier).ok


def test_damage_in_a_compressed_segment_is_named(log: Any) -> None:
    path = compress_segment(log.segment(2), sealed(log, 2), idle)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    problem = verify_log(log.directory, log.signer.verifier).problems[0]
    assert problem.file == path.name and "00000002" in problem.file


def test_others_get_their_turn(log: Any) -> None:
    turns: list[Path] = []
    seal_of("0", 1, log.segment(1), log.segment(2), log.signer.verifier, 5.0, lambda: turns.append(log.segment(1)))
    assert len(turns) == 1 + (len(log.lines(1)) - 1) // closing._BREATH
