"""How the first administrator's key reaches the administrator."""

from __future__ import annotations

import io
from pathlib import Path

from gateway.app.identity.first_administrator import shown

KEY = "gh_first"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_key(tmp_path: Path) -> None:
    assert shown(KEY, tmp_path, Terminal()) == f"admin key: {KEY}"
    assert list(tmp_path.iterdir()) == []


def test_anything_else_gets_the_path_of_a_file_that_only_the_owner_reads(tmp_path: Path) -> None:
    (tmp_path / "bootstrap-admin.key").write_text("old")
    (tmp_path / "bootstrap-admin.key").chmod(0o644)
    line = shown(KEY, tmp_path, io.StringIO())
    assert KEY not in line and str(tmp_path / "bootstrap-admin.key") in line
    assert (tmp_path / "bootstrap-admin.key").read_text() == f"{KEY}\n"
    assert (tmp_path / "bootstrap-admin.key").stat().st_mode & 0o777 == 0o600
