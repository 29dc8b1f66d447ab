"""A log that several processes write and rotate together."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.telemetry.log_file import LogFile
from tests.waiting import SECONDS

WRITER = """
import logging, sys
from pathlib import Path
from gateway.telemetry.log_file import LogFile
handler = LogFile(Path(sys.argv[1]), 65536, 1000)
handler.setFormatter(logging.Formatter("%(message)s"))
for number in range(3000):
    handler.emit(logging.LogRecord("n", 20, "", 0, f"{sys.argv[2]} {number} {'x' * (number % 97)} end", None, None))
"""


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("gatehouse", logging.INFO, "", 0, text, None, None)


def opened(path: Path, most: int = 64, keep: int = 2) -> LogFile:
    handler = LogFile(path, most, keep)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def test_a_full_file_makes_room_and_the_oldest_goes(tmp_path: Path) -> None:
    handler = opened(tmp_path / "log")
    for number in range(8):
        handler.emit(line(f"{number} " + "x" * 40))
    handler.close()
    first = {path.name: path.read_text()[0] for path in tmp_path.iterdir() if path.name != "log.lock"}
    assert first == {"log": "7", "log.1": "6", "log.2": "5"}
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("keep", "left"), [(1, {"log", "log.1", "log.lock"}), (0, {"log", "log.lock"})])
def test_files_that_are_no_longer_kept_go_with_the_next_rotation(tmp_path: Path, keep: int, left: set[str]) -> None:
    for most_kept in (4, keep):
        handler = opened(tmp_path / "log", keep=most_kept)
        for number in range(6):
            handler.emit(line(f"{number} " + "x" * 40))
        handler.close()
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_line_that_is_larger_than_the_file_is_written_whole(tmp_path: Path) -> None:
    handler = opened(tmp_path / "log")
    handler.emit(line("y" * 500))
    handler.emit(line("z"))
    handler.close()
    assert ((tmp_path / "log.1").read_text(), (tmp_path / "log").read_text()) == ("y" * 500 + "\n", "z\n")


def test_somebody_else_may_rotate_or_delete_the_file(tmp_path: Path) -> None:
    handler = opened(tmp_path / "log", most=1 << 20)
    handler.emit(line("one"))
    (tmp_path / "log").rename(tmp_path / "log.old")
    handler.emit(line("two"))
    (tmp_path / "log").unlink()
    handler.emit(line("three"))
    handler.close()
    assert ((tmp_path / "log.old").read_text(), (tmp_path / "log").read_text()) == ("one\n", "three\n")


def test_what_cannot_be_written_goes_to_standard_error(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    handler = opened(folder / "log")
    (folder / "log").unlink()
    folder.rmdir()
    handler.emit(line("to nowhere"))
    handler.close()
    assert capfdbinary.readouterr().err == b"to nowhere\n"


def test_several_processes_lose_no_line_and_mix_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "log")]
    writers = [subprocess.Popen([*command, name]) for name in ("a", "b", "c")]
    assert [writer.wait(SECONDS) for writer in writers] == [0, 0, 0]
    files = [path for path in tmp_path.iterdir() if path.name != "log.lock"]
    lines = [text for path in files for text in path.read_text().splitlines()]
    assert len(files) > 5 and max(path.stat().st_size for path in files) <= 65536 + 3 * 120  # each of the others may add a line meanwhile
    assert sorted(lines) == sorted(f"{name} {n} {'x' * (n % 97)} end" for name in "abc" for n in range(3000))
