"""Compressed segments are read like others, from any place on, and damage in them is told."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gateway.audit import segments
from gateway.audit.chain import read_lines
from gateway.audit.segments import SegmentDamaged, compress, open_segment, segment_size, segment_time


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(segments, "FRAME", 4096)
    chance = random.Random(1)
    return b"".join(b'{"seq":%d,"text":"%b"}\n' % (number, b"x" * chance.randrange(300)) for number in range(300))


def packed(lines: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "audit-gw-00000001.jsonl.zst"
    with path.open("wb") as file:
        compress(io.BytesIO(lines), file)
    return path


def test_every_place_is_read_alike(lines: bytes, tmp_path: Path) -> None:
    path = packed(lines, tmp_path)
    assert path.stat().st_size < len(lines) / 3 and segment_size(path) == len(lines)
    with open_segment(path) as file:
        assert b"".join(read_lines(file)) == lines
        chance = random.Random(2)
        for _ in range(200):
            at, size = chance.randrange(len(lines) + 10), chance.randrange(9000)
            assert file.seek(at) == at and file.read(size) == lines[at : at + size]
        assert file.seek(-7, os.SEEK_END) == len(lines) - 7 and file.read() == lines[-7:]


def test_it_is_a_zstandard_file(lines: bytes, tmp_path: Path) -> None:
    data = packed(lines, tmp_path).read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        assert reader.read() == lines


def test_an_empty_one_has_no_lines(tmp_path: Path) -> None:
    with open_segment(packed(b"", tmp_path)) as file:
        assert file.read() == b"" and file.seek(0, os.SEEK_END) == 0


@pytest.mark.parametrize("there", ["audit-gw-00000001.jsonl", "audit-gw-00000001.jsonl.zst"])
def test_a_segment_is_found_under_its_other_name(lines: bytes, tmp_path: Path, there: str) -> None:
    path = packed(lines, tmp_path)
    if not there.endswith(".zst"):
        path.unlink()
        (tmp_path / there).write_bytes(lines)
    for name in ("audit-gw-00000001.jsonl", "audit-gw-00000001.jsonl.zst"):
        with open_segment(tmp_path / name) as file:
            assert file.read() == lines
        assert segment_size(tmp_path / name) == len(lines)
        assert segment_time(tmp_path / name) == (tmp_path / there).stat().st_mtime
    with pytest.raises(FileNotFoundError):
        open_segment(tmp_path / "audit-gw-00000002.jsonl")


def damaged(path: Path) -> Any:
    with open_segment(path) as file:
        return file.read()


def test_every_changed_byte_is_noticed_or_harmless(lines: bytes, tmp_path: Path) -> None:
    path = packed(lines, tmp_path)
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            assert damaged(path) == lines
        except SegmentDamaged:
            pass


@pytest.mark.parametrize("keep", [0, 5, 100, -1, -9, -40])
def test_one_that_was_cut_off_is_damaged(lines: bytes, tmp_path: Path, keep: int) -> None:
    path = packed(lines, tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SegmentDamaged):
        damaged(path)
