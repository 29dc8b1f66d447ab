"""What the console script loads: a process that serves does without the command line."""

import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app import process, start
from gateway.app.start import plain_serve

COMMAND_LINE = ("typer", "rich", "httpx", "pydantic", "gateway.app.main", "admin.cli")  # click comes with uvicorn


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["serve", "--config", "gate.yaml"], (Path("gate.yaml"), False, 0)),
        (["serve", "--config=gate.yaml", "--quickstart"], (Path("gate.yaml"), True, 0)),
        (["serve", "--quickstart", "--config", "a b/gate.yaml"], (Path("a b/gate.yaml"), True, 0)),
        (["serve", "--workers", "2", "--config", "gate.yaml"], (Path("gate.yaml"), False, 2)),
        (["serve", "--config", "gate.yaml", "--workers=64"], (Path("gate.yaml"), False, 64)),
    ],
)
def test_plain_arguments_of_serve_are_understood(arguments: list[str], found: tuple[Path, bool, int]) -> None:
    assert plain_serve(arguments) == found


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--help"], ["serve"], ["serve", "--help"], ["serve", "--config"], ["serve", "--config="],
        ["serve", "--config", "--quickstart"],
        ["serve", "--config", "a", "--config", "b"], ["serve", "--config", "a", "b"], ["serve", "--config", "a", "--quickstrat"],
        ["serve", "--config", "a", "--quickstart", "--quickstart"], ["check-config", "a"], ["--config", "a", "serve"],
        ["serve", "--config", "a", "--workers", "65"], ["serve", "--config", "a", "--workers", "-1"],
        ["serve", "--config", "a", "--workers"], ["serve", "--config", "a", "--workers", "2", "--workers", "2"],
    ],
)  # fmt: skip
def test_everything_else_is_left_to_the_command_line(arguments: list[str]) -> None:
    assert plain_serve(arguments) is None


def test_a_process_that_serves_does_not_load_the_libraries_of_the_command_line() -> None:
    code = f"import sys, gateway.app.start, gateway.app.process\nprint([name for name in {COMMAND_LINE} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_first_thing_is_to_hide_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is started: the keys of upstreams are in the environment of all of them."""
    done: list[str] = []
    monkeypatch.setattr(start, "settle", lambda: None)
    monkeypatch.setattr(start, "hide", lambda: done.append("hide"))
    monkeypatch.setattr(process, "serve", lambda file, quickstart, workers: done.append(f"serve {file}") or 0)
    monkeypatch.setattr(signal, "signal", lambda number, action: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *limits: done.append(f"collect at {limits[0]}"))
    monkeypatch.setattr(sys, "argv", ["gatehouse", "serve", "--config", "a.yaml"])
    with pytest.raises(SystemExit):
        start.main()
    assert done == ["hide", f"collect at {start.START_THRESHOLDS[0]}", "serve a.yaml"]


def test_an_interruption_while_the_command_line_loads_is_no_traceback() -> None:
    """The libraries of the command line take most of the time of a short command."""
    code = (
        "import os, signal, sys\nfrom gateway.app import start\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # where the tests run in the background, it is ignored
        "class Finder:\n    def find_spec(self, name, *rest):\n        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\nsys.argv = ['gatehouse', 'keys', 'list']\nstart.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
