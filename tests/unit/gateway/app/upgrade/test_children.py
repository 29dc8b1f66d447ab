"""Children that were not handed over are reaped by the next program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app.upgrade import children
from gateway.app.upgrade.children import reap_others
from gateway.app.upgrade.handover import HandOver, HeldWorker
from tests.waiting import reached


def there(pid: int) -> bool:
    """Whether there is such a process, if only as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_was_not_handed_over_is_reaped_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other,
        subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker,
    ):
        for thread, listed in (("7", f"{other.pid} {worker.pid} "), ("8", "")):
            (tmp_path / thread).mkdir()
            (tmp_path / thread / "children").write_text(listed)
        monkeypatch.setattr(children, "TASKS", tmp_path)
        held = HeldWorker(id="gw-1", number=1, pid=worker.pid, feed=5, state="ready")
        assert reap_others(HandOver(version="0", data=3, admin=4, workers=[held])) == [other.pid]
        assert other.stdin is not None and worker.stdin is not None
        worker.stdin.close()
        other.stdin.close()
        await reached(lambda: not there(other.pid))
        assert there(worker.pid), "whoever adopts it reaps it"


def test_a_system_that_lists_no_children_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "TASKS", tmp_path / "none")
    assert reap_others(HandOver(version="0", data=3, admin=4)) == []
