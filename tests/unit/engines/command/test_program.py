"""The command of a server: what it is told, its log, its processes (tests/e2e/test_command.py runs whole ones)."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.command.options import PLACES, CommandOptions
from engines.command.program import Program, copy_log
from engines.sidecar.loading import LoadError
from gateway.config import environment
from gateway.core.specs import SidecarSpec
from tests.waiting import until


def spec(tmp_path: Path, *command: str, **options: Any) -> SidecarSpec:
    return SidecarSpec(
        name="e", runtime="command", model="/m/x.gguf", socket=str(tmp_path / "run" / "s.sock"), state_dir=str(tmp_path),
        device="cpu", context=512, slots=3, key="secret", options={"command": list(command), **options},
    )  # fmt: skip


def test_places_are_filled_in_and_nothing_else(tmp_path: Path) -> None:
    program = Program(spec(tmp_path, sys.executable, "--port=${port}", "${model}", "${slots}x${context}", "${key}", "$HOME", "${other}"))
    found = program.command()
    assert found[0] == sys.executable and program.port > 0
    assert found[1:] == [f"--port={program.port}", "/m/x.gguf", "3x512", "secret", "$HOME", "${other}"]
    assert program.address == f"http://127.0.0.1:{program.port}"


def test_a_socket_is_in_the_folder_that_the_server_may_write(tmp_path: Path) -> None:
    program = Program(spec(tmp_path, sys.executable, "--uds", "${socket}"))
    assert program.address == f"unix:{tmp_path}/run/c.sock" and program.port == 0


def test_the_configuration_leaves_the_same_places_alone() -> None:
    assert frozenset(PLACES) == environment.PLACES


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["serve"]}, "names neither"),
        ({"command": ["bin/serve", "${port}"]}, "absolute path"),
        ({"command": []}, "length >= 1"),
        ({"command": ["serve", "${port}"], "health": "health"}, "matching regex"),
        ({"command": ["serve", "${port}"], "reads": ["relative"]}, "matching regex"),
        ({"command": ["serve", "${port}"], "environment": {"A=B": "x"}}, "matching regex"),
        ({"command": ["serve", "${port}"], "comand": 1}, "unknown field"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(options, CommandOptions)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="there is no program 'no-such-program'"):
        Program(spec(tmp_path, "no-such-program", "${port}")).command()


def copied(log: int, data: bytes) -> None:
    """Lets a server say `data` and end."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    copy_log(reading, log, most=100)
    os.close(reading)


def test_a_log_that_is_full_drops_and_says_how_much(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    copied(log, b"x" * 4096)
    copied(log, b"y" * 4096)
    os.close(log)
    assert (tmp_path / "log").read_bytes() == b"x" * 4096 + b"\n[4096 bytes of the log were dropped: too many at once]\n"


def test_the_log_says_what_it_has_dropped_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing more comes."""
    path = tmp_path / "log"
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(log, b"y" * 200)
    reading, writing = os.pipe()
    fstat = os.fstat

    def then_rotated(descriptor: int) -> os.stat_result:
        """The size as it is, and then the supervisor rotates the log."""
        found = fstat(descriptor)
        os.truncate(path, 0) if found.st_size == 200 else None
        return found

    monkeypatch.setattr(os, "fstat", then_rotated)
    copying = threading.Thread(target=copy_log, args=(reading, log, 100))
    copying.start()
    said = b"\n[4 bytes of the log were dropped: too many at once]\n"
    try:
        os.write(writing, b"lost")
        until(lambda: path.read_bytes() == said, what="the word about what was dropped")
        os.write(writing, b"kept\n")
    finally:
        os.close(writing)
        copying.join(30)
        os.close(reading)
        os.close(log)
    assert path.read_bytes() == said + b"kept\n"
