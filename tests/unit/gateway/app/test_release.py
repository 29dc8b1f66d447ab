"""What tells one build from another."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.app.release import ROOT, digest, release


def test_a_build_is_told_by_its_version_and_its_sources() -> None:
    assert re.fullmatch(rf"[0-9.]+\+{digest(ROOT)}", release()) and re.fullmatch("[0-9a-f]{8}", digest(ROOT))


def test_any_change_of_the_sources_shows(tmp_path: Path) -> None:
    def file(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    seen = [digest(tmp_path)]
    for path, text in (("gateway/a.py", "1"), ("gateway/a.py", "2"), ("gateway/b.py", ""), ("policies/c/d.py", "1")):
        file(path, text)
        seen.append(digest(tmp_path))
    assert len(set(seen)) == len(seen)
    for path in ("tests/a.py", "gateway/a.txt", "setup.py"):
        file(path, "1")
    assert digest(tmp_path) == seen[-1], "only what is installed and runs"
    (tmp_path / "gateway/b.py").rename(tmp_path / "gateway/e.py")
    assert digest(tmp_path) != seen[-1]
