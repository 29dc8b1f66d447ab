"""The logs of sidecars: bounded, and their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.host import logs
from engines.host.logs import large, log_path, open_log, rotate, tail


def test_two_engines_have_two_logs_whatever_their_names(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "../a_b", "x" * 200, "x" * 201]
    paths = {log_path(tmp_path, name) for name in names}
    assert len(paths) == len(names) and {path.parent for path in paths} == {tmp_path / "logs"}


def test_a_large_log_is_rotated_and_the_writer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 10)
    path = log_path(tmp_path, "e")
    with open_log(path) as file:
        file.write(b"one\ntwo\nthree\n")
        file.flush()
        assert large(path)
        rotate(path)
        assert not large(path) and path.stat().st_size == 0
        file.write(b"four\n")
        file.flush()
        assert path.read_bytes() == b"four\n", "the file is appended to, without a hole"
    assert tail(path, 3) == ["two", "three", "four"]
    assert tail(path, 1) == ["four"]
    assert tail(path, 100) == ["one", "two", "three", "four"]


def test_the_end_of_a_log_is_bounded_and_always_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 8)
    path = tmp_path / "e.log"
    path.write_bytes(b"0123456789\xff\n9\n")
    assert tail(path, 10) == ["6789\N{REPLACEMENT CHARACTER}", "9"]
    assert tail(tmp_path / "none.log", 10) == []
