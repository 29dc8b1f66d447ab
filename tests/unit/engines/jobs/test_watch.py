"""Processes that work, hang, and end, watched through the real /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from engines.jobs.watch import Watch
from tests.waiting import until

STILL = 0.4


@contextmanager
def running(source: str) -> Iterator[int]:
    """A process that has begun: what it takes to start a program says nothing about this one."""
    with subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{source}"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


def test_one_that_hangs_is_told_from_one_that_works() -> None:
    with running("import time; time.sleep(600)") as process:
        watch, problems = Watch(process, 1 << 30, STILL), list[str | None]()
        until(lambda: problems.append(watch.problem()) or problems[-1] is not None, what="it hangs", seconds=30)
        assert problems[-1] == "it has not moved for 0.4 s"
        tight = Watch(process, 1 << 20, STILL)
        until(lambda: problems.append(tight.problem()) or problems[-1] is not None, what="it hangs", seconds=30)
        assert "of the 1 that it may have (jobs.memory_bytes): short of memory" in str(problems[-1])
    with running("while True: pass") as process:
        watch = Watch(process, 1 << 30, 5.0)
        began = len(problems)
        until(lambda: problems.append(watch.problem()) or (watch._seen is not None and watch._seen[0] > 1.0), what="it works", seconds=60)
        assert set(problems[began:]) == {None}


def test_a_machine_that_stood_still_is_no_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("engines.jobs.watch.time", SimpleNamespace(monotonic=lambda: now[0]))
    with running("import time; time.sleep(600)") as process:
        watch = Watch(process, 1 << 30, 20.0)
        until(lambda: watch.problem() is None and watch._seen is not None, what="its first look")
        for seconds, hangs in ((900.0, False), (6.0, False), (6.0, False), (6.0, False), (6.0, True)):
            now[0] += seconds
            assert (watch.problem() is not None) == hangs


def test_one_that_has_ended_is_told_with_how() -> None:
    for source, said in (("raise SystemExit(7)", "ended with the code 7"), ("import os; os.abort()", "was ended by the signal 6")):
        process = os.posix_spawn(sys.executable, [sys.executable, "-c", source], os.environ)
        watch, problems = Watch(process, 1 << 30), list[str | None]()
        until(
            lambda watch=watch, problems=problems: problems.append(watch.problem()) or problems[-1] is not None, what="its end", seconds=30
        )
        assert str(problems[-1]) == f"it {said}"
        os.waitpid(process, 0)
