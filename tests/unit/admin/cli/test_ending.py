"""The end of every command: no traceback, whatever becomes of its streams, its arguments and the answers that it gets."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from admin.cli.ending import run, understood
from admin.cli.errors import CommandError

PRINTS = "import sys\nfrom admin.cli.ending import run\nrun(lambda: print(sys.stdin.read() + 'Zürich'), sys.argv[1:])"


def printing(*arguments: bytes, environ: dict[str, str] | None = None, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """A command that prints a name, in a process of its own; buffered, as at a pipe."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, "-c", PRINTS, *arguments], env={**known, **(environ or {})}, timeout=60, **options)


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = printing(stdout=full)
    assert (done.returncode, done.stderr) == (1, b"error: the output: No space left on device\n")


def test_a_reader_that_has_gone_is_nothing_to_talk_about() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = printing(stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_closed_streams_are_empty_ones() -> None:
    shell = ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, PRINTS]
    done = subprocess.run(shell, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_the_encoding_of_the_terminal_lacks_is_escaped() -> None:
    assert printing(environ={"PYTHONIOENCODING": "ascii"}).stdout == b"Z\\xfcrich\n"


def test_an_argument_that_is_no_text_is_wrong_usage() -> None:
    done = printing(b"show", b"a\xff", environ={"PYTHONUTF8": "1"})
    assert (done.returncode, done.stderr) == (2, b"error: argument 2 is not UTF-8: a\\xff\n")


def test_an_interruption_is_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
    with pytest.raises(SystemExit) as ended:
        run(interrupted, [])
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


def test_the_exit_code_of_a_command_stays() -> None:
    with pytest.raises(SystemExit) as ended:
        run(lambda: sys.exit(3), [])
    assert ended.value.code == 3


@pytest.mark.parametrize("answer", [None, [], {}, {"items": None}, {"items": [3]}, "text"])
def test_an_answer_of_another_shape_is_said_to_be_one(answer: Any) -> None:
    with (
        pytest.raises(CommandError, match=r"http://x is not what this command expects \(\w+: .*is it a gateway of this release"),
        understood("http://x"),
    ):
        print([item["name"] for item in answer["items"]])
