"""Sealed files on a disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gateway.batches.sealed import SealedWriter
from gateway.core.clock import SystemEntropy


def test_nothing_is_left_of_a_file_that_could_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: SealedWriter, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SealedWriter, "_put", full)
    with pytest.raises(OSError, match="No space left"):
        SealedWriter(tmp_path / "file-1", "file-1", bytes(32), SystemEntropy())
    assert list(tmp_path.iterdir()) == []
