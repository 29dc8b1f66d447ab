"""The texts of policies on the disk: compressed, and as earlier builds wrote them."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from gateway.audit.policy_files import date_policy, policy_files, read_policy, write_policy

TEXT = b'{"engines":[%b]}' % b",".join(b'{"name":"e%d","runtime":"external","slots":4}' % number for number in range(2000))
DIGEST = sha256(TEXT).hexdigest()


def test_what_was_written_is_read_and_is_small(tmp_path: Path) -> None:
    write_policy(tmp_path, DIGEST, TEXT)
    [path] = policy_files(tmp_path)
    assert path.stat().st_size < len(TEXT) / 10 and path.stat().st_mode & 0o777 == 0o600
    assert read_policy(tmp_path, DIGEST) == TEXT
    assert read_policy(tmp_path, "0" * 64) is None


def test_a_text_of_an_earlier_build_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{DIGEST}.json").write_bytes(TEXT)
    assert read_policy(tmp_path, DIGEST) == TEXT and len(list(policy_files(tmp_path))) == 1


@pytest.mark.parametrize("compressed", [True, False])
def test_a_text_that_is_too_long_is_not_read(tmp_path: Path, compressed: bool) -> None:
    write_policy(tmp_path, DIGEST, TEXT) if compressed else (tmp_path / f"{DIGEST}.json").write_bytes(TEXT)
    assert read_policy(tmp_path, DIGEST, len(TEXT)) == TEXT
    assert read_policy(tmp_path, DIGEST, len(TEXT) - 1) is None


@pytest.mark.parametrize("spoilt", [b"", b"{}", TEXT, zstandard.compress(b"{}"), zstandard.compress(TEXT)[:-1]])
def test_a_damaged_file_is_no_text_and_hides_no_sound_one(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / f"{DIGEST}.json.zst").write_bytes(spoilt)
    assert read_policy(tmp_path, DIGEST) is None
    (tmp_path / f"{DIGEST}.json").write_bytes(TEXT)
    assert read_policy(tmp_path, DIGEST) == TEXT


def test_both_files_of_a_text_are_dated(tmp_path: Path) -> None:
    """An earlier build that runs in between writes it once more."""
    assert not date_policy(tmp_path, DIGEST)
    (tmp_path / f"{DIGEST}.json").write_bytes(TEXT)
    write_policy(tmp_path, DIGEST, TEXT)
    for path in policy_files(tmp_path):
        os.utime(path, (5, 5))
    assert date_policy(tmp_path, DIGEST)
    assert [path.stat().st_mtime > 5 for path in policy_files(tmp_path)] == [True, True]
