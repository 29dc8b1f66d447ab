"""The pepper: made once, kept secret, refused when it is damaged."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.errors import ConfigError
from gateway.store.pepper import FILE, peppers

ENTROPY = SystemEntropy()


def pepper(state_dir: Path, given: str | None = None) -> bytes:
    return peppers(state_dir, ENTROPY, given)[0]


def test_it_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    made = pepper(tmp_path)
    assert len(made) == 32 and stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert pepper(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    (tmp_path / "other").mkdir()
    assert pepper(tmp_path / "other") != made


def test_the_environments_comes_first_and_leaves_no_file(tmp_path: Path) -> None:
    assert pepper(tmp_path, "p" * 32) == hashlib.sha256(b"p" * 32).digest()
    assert list(tmp_path.iterdir()) == []
    for short in ("", "p" * 31):
        with pytest.raises(ConfigError, match="32 characters"):
            pepper(tmp_path, short)


def test_what_the_file_of_one_machine_holds_is_the_pepper_of_another(tmp_path: Path) -> None:
    made = pepper(tmp_path)
    content = (tmp_path / FILE).read_text()
    for given in (content, content.strip(), content.strip().upper()):
        assert pepper(tmp_path / "other", given) == made
    assert hashlib.sha256(content.strip().encode()).digest() in peppers(tmp_path, ENTROPY, content.strip()), "as earlier versions read it"


@pytest.mark.parametrize("content", ["", "00" * 31, "zz" * 32, "00" * 33])
def test_a_damaged_one_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    (tmp_path / FILE).chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        pepper(tmp_path)
    assert (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    pepper(tmp_path)
    (tmp_path / FILE).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        pepper(tmp_path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read or made"):
        pepper(tmp_path / "missing")
