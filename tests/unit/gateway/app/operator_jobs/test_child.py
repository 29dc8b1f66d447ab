"""The real process of a job: what it may not do, what it tells, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engines.jobs.order import OUTCOME, Order, Outcome
from gateway.app.operator_jobs.child import JobChild, said
from gateway.core.jobs import JobFailed

DEMO = Path(__file__).parents[5] / "engines" / "demo" / "artefacts"
OPTIONS = {"type": "Q8_0", "requantize": True}


def order(folder: Path, source: Path, **more: Any) -> Order:
    (folder / "w").mkdir()
    given = {
        "kind": "quantize",
        "target": "o.gguf",
        "options": OPTIONS,
        "threads": 1,
        "niceness": 19,
        "memory_bytes": 1 << 30,
        "output_bytes": 1 << 30,
    }
    return Order(source=str(source), folder=str(folder / "w"), seconds=60.0, **{**given, **more})


async def test_a_file_that_is_no_model_is_refused_and_says_nothing_of_where_it_lies(tmp_path: Path) -> None:
    source = tmp_path / "secret-place" / "bad.gguf"
    source.parent.mkdir()
    source.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 4096)
    child = JobChild(tmp_path, order(tmp_path, source))
    with pytest.raises(JobFailed) as caught:
        await child.run()
    assert "secret-place" not in caught.value.message + child.log
    assert not (tmp_path / "w" / "o.gguf").exists()


async def test_a_file_that_becomes_larger_than_it_may_ends_the_process(tmp_path: Path) -> None:
    child = JobChild(tmp_path, order(tmp_path, DEMO / "demo-chat.gguf", output_bytes=64 * 1024))
    with pytest.raises(JobFailed) as caught:
        await child.run()
    target = tmp_path / "w" / "o.gguf"
    assert not target.exists() or target.stat().st_size <= 64 * 1024
    assert caught.value.code in ("process_failed", "model_unusable")


def test_what_a_process_tells_is_not_believed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"result": {"a": 1}}')
    path = tmp_path / OUTCOME
    assert said(path, Outcome) is None
    path.symlink_to(secret)
    assert said(path, Outcome) is None
    path.unlink()
    os.mkfifo(path)
    assert said(path, Outcome) is None
    path.unlink()
    for content in (b"", b"{", b"[" * 60_000, b'{"problem": 1}', b'{"problem": "' + b"x" * 70_000 + b'"}', b"\xff"):
        path.write_bytes(content)
        assert said(path, Outcome) is None
    path.write_bytes(secret.read_bytes())
    assert said(path, Outcome) == Outcome(result={"a": 1})
