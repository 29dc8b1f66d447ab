"""What a signal does to a process that is still loading its modules."""

import _signal  # type: ignore[import-not-found]
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.app import first_signals

ROOT = Path(__file__).parents[4]
INTERRUPTED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {at!r}: os.kill(os.getpid(), {number})
signal.signal(signal.SIGINT, {before})
sys.meta_path.insert(0, Finder())
sys.argv = ["gatehouse", "check-config", "/nowhere.yaml"]
runpy.run_module("gateway", run_name="__main__")
"""


def interrupted(at: str, number: int, before: str) -> "subprocess.CompletedProcess[str]":
    """The command line, which gets the signal when it begins to load a module."""
    code = INTERRUPTED.format(at=at, number=number, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


@pytest.mark.parametrize("at", ["gateway.app.start", "engines.confinement", "typer"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whatever_is_being_loaded_a_signal_ends_it_without_a_traceback(at: str, number: int) -> None:
    """A shell shows 130 and 143."""
    done = interrupted(at, int(number), "signal.default_int_handler")
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_an_interruption_that_is_ignored_stays_so() -> None:
    """Of a background job of a shell, which Ctrl-C does not concern."""
    done = interrupted("engines.confinement", int(signal.SIGINT), "signal.SIG_IGN")
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "/nowhere.yaml" in done.stderr


@pytest.mark.parametrize(("pid", "wanted"), [(1, {signal.SIGTERM: 143, signal.SIGINT: 130}), (2, {})])
def test_the_first_process_of_a_container_can_be_ended(pid: int, wanted: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops signals for process 1 that it does not handle."""
    handled: dict[int, Any] = {}
    codes: list[int] = []
    monkeypatch.setattr(_signal, "getsignal", lambda number: _signal.default_int_handler)
    monkeypatch.setattr(_signal, "signal", handled.__setitem__)
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "_exit", codes.append)
    first_signals.settle()
    called = [number for number, action in handled.items() if action is first_signals.end_at_once]
    for number in called:
        handled[number](number, None)
    assert dict(zip(called, codes, strict=True)) == wanted
