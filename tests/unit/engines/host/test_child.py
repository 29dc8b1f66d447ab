"""Children are started, told, heard and ended without the loop's help."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.host import priority
from engines.host.child import Child
from tests.waiting import reached

SECONDS = 150.0


async def ended(child: Child) -> int:
    async with asyncio.timeout(SECONDS):
        return await child.wait()


async def test_the_line_reaches_a_child_whose_input_stays_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys; print(sys.stdin.readline().strip(), flush=True); sys.stdin.read(); print('closed')"
    with log.open("wb") as file:
        child = Child((sys.executable, "-c", script), line=b"settings\n", log=file)
    await reached(lambda: log.read_text() == "settings\n")
    assert child.returncode is None
    child.terminate()
    assert await ended(child) == -15
    assert child.returncode == -15
    assert log.read_text() == "settings\n", "it never saw the end of its input"
    child.kill()  # of one that has ended: nothing


async def test_what_a_child_prints_is_there_when_it_has_ended() -> None:
    child = Child((sys.executable, "-c", "import sys; print('x' * 300_000); print('why', file=sys.stderr); sys.exit(3)"), line=None)
    assert await ended(child) == 3
    assert (len(child.output), child.errors) == (300_001, b"why\n")


async def test_a_child_that_reads_nothing_holds_nobody(tmp_path: Path) -> None:
    """A line longer than a pipe holds is written by the thread: the loop goes on, and the child can be ended."""
    with (tmp_path / "log").open("wb") as file:
        child = Child((sys.executable, "-c", "import time; time.sleep(600)"), line=b"x" * 1_000_000, log=file)
    child.kill()
    assert await ended(child) == -9


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(OSError, match="nothing"):
        Child(("/nothing",), line=None)


def test_a_lowered_process_gets_its_priority_back_in_every_thread() -> None:
    """Where this user may raise a priority; where not, the process keeps its own from the start."""
    script = (
        "import sys, threading; sys.stdin.readline(); threading.Thread(target=sys.stdin.read, daemon=True).start();"
        " print('ready', flush=True); threading.Event().wait()"
    )
    with subprocess.Popen((sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            lowered = priority.lower(process.pid)
            assert lowered == priority._can_raise()
            low = min(19, own + priority.LOW) if lowered else own
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            threads = priority._threads(process.pid)
            assert len(threads) == 2
            assert [priority._nice(thread) for thread in threads] == [low] * 2
            priority.restore(process.pid)
            assert [priority._nice(thread) for thread in threads] == [own] * 2
        finally:
            process.kill()


def test_what_could_not_be_raised_again_is_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(which: int, who: int, priority: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    assert not priority.lower(os.getpid())


def test_a_process_that_has_ended_has_no_priority_to_restore() -> None:
    with subprocess.Popen((sys.executable, "-c", "pass")) as process:
        process.wait()
    priority.restore(process.pid)
