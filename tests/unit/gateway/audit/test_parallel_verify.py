"""Segments that are read ahead by other processes: the verification finds what it finds alone, in the same places."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import verify
from gateway.audit.parallel_verify import covered, summary
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import verify_log


@pytest.fixture
def log(log_bench: Any) -> Any:
    log_bench.log(batches=14, segment_bytes=2500)
    return log_bench


def ahead(log: Any) -> Any:
    covers = covered(log.directory / "checkpoints-0.jsonl")
    return lambda path: summary(path, covers)


class InPlace:
    """As ParallelSummaries, in this process: that its work is done elsewhere makes no difference, and takes long."""

    def __init__(self, source: Path, segments: Any, processes: int, on_read: Any) -> None:
        self._made = {
            path: summary(path, covered(source / f"checkpoints-{name}.jsonl")) for name, found in segments.items() for _, path in found
        }
        self._on_read = on_read

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, path: Path) -> Any:
        found = self._made.get(path)
        if found is not None:
            self._on_read(path.stat().st_size)
        return found


def both(log: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    alone = verify_log(log.directory, log.signer.verifier)
    with monkeypatch.context() as patched:
        patched.setattr(verify, "WORTH_A_PROCESS", 0)
        patched.setattr(verify, "ParallelSummaries", InPlace)
        return alone, verify_log(log.directory, log.signer.verifier, processes=2)


def test_a_good_log_is_read_alike_to_the_end(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = both(log, monkeypatch)
    assert alone == together and alone.ok and alone.writers[0].segments > 3
    steps: list[tuple[int, int]] = []
    monkeypatch.setattr(verify, "WORTH_A_PROCESS", 0)
    report = verify_log(log.directory, log.signer.verifier, processes=2, progress=lambda *step: steps.append(step))
    assert report == alone, "by real processes, too"
    total = sum(path.stat().st_size for _, path in list_segments(log.directory)["0"])
    assert steps[-1] == (total, total) and len(steps) == alone.writers[0].segments


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_log_is_told_alike(log: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    path = chance.choice([path for _, path in list_segments(log.directory)["0"]] + [log.directory / "checkpoints-0.jsonl"])
    lines = path.read_bytes().splitlines(keepends=True)
    at = chance.randrange(len(lines) - 1)
    how = seed % 5
    if how == 0:
        line = bytearray(lines[at])
        line[chance.randrange(len(line))] ^= 1
        lines[at] = bytes(line)
    elif how == 1:
        del lines[at]
    elif how == 2:
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    elif how == 3:
        lines = lines[:at]
    else:
        lines = chance.choice([path for _, path in list_segments(log.directory)["0"]]).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines))
    alone, together = both(log, monkeypatch)
    assert together.problems == alone.problems and together == alone


def test_what_is_wrong_has_no_summary(log: Any) -> None:
    made = ahead(log)
    path = log.segment(2)
    found = made(path)
    assert found is not None and found.lines == len(log.lines(2)) and found.seq == log.records(2)[-1]["seq"]
    data = path.read_bytes()
    for changed in (b"", data[:-1], data.replace(b"acme", b"evil", 1), data.split(b"\n", 1)[1]):
        path.write_bytes(changed)
        assert made(path) is None
    path.unlink()
    assert made(path) is None
