"""The pepper: made once, kept secret, refused when it is damaged."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.errors import ConfigError
from gateway.store.pepper import FILE, pepper

ENTROPY = SystemEntropy()


def test_it_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    made = pepper(tmp_path, ENTROPY)
    assert len(made) == 32 and stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert pepper(tmp_path, ENTROPY) == made
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    (tmp_path / "other").mkdir()
    assert pepper(tmp_path / "other", ENTROPY) != made


def test_the_environments_comes_first_and_leaves_no_file(tmp_path: Path) -> None:
    assert pepper(tmp_path, ENTROPY, "p" * 32) == hashlib.sha256(b"p" * 32).digest()
    assert list(tmp_path.iterdir()) == []
    for short in ("", "p" * 31):
        with pytest.raises(ConfigError, match="32 characters"):
            pepper(tmp_path, ENTROPY, short)


@pytest.mark.parametrize("content", ["", "00" * 31, "zz" * 32, "00" * 33])
def test_a_damaged_one_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    (tmp_path / FILE).chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        pepper(tmp_path, ENTROPY)
    assert (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    pepper(tmp_path, ENTROPY)
    (tmp_path / FILE).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        pepper(tmp_path, ENTROPY)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read or made"):
        pepper(tmp_path / "missing", ENTROPY)
