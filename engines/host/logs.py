"""The logs of sidecars: one file each in the state directory, bounded; it outlives the process, and the next one goes on in it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from engines.host.sockets import label

LOG_BYTES: Final = 8 * 1024 * 1024
TAIL_BYTES: Final = 1024 * 1024
"""What `tail` reads at most."""


def log_path(state_dir: Path, engine: str) -> Path:
    """Where an engine's process writes both its outputs."""
    return state_dir / "logs" / f"{label(state_dir, engine)}.log"


def open_log(path: Path) -> IO[bytes]:
    """The log, opened to append to. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if large(path):
        rotate(path)
    return path.open("ab")


def large(path: Path) -> bool:
    """Whether a sidecar's log should be rotated."""
    try:
        return path.stat().st_size > LOG_BYTES
    except OSError:
        return False


def rotate(path: Path) -> None:
    """Keeps one older file beside a sidecar's log. The process goes on writing into the same one, which is emptied: what it writes between
    the copy and that is lost. A log that cannot be rotated grows."""
    with suppress(OSError):
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log and of the older file beside it, at most TAIL_BYTES of each; bytes that are no UTF-8 are replaced."""
    found: list[str] = []
    for one in (path, path.with_name(f"{path.name}.1")):
        if len(found) < lines:
            found = _last(one, lines - len(found)) + found
    return found


def _last(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            read = file.read(TAIL_BYTES)
    except OSError:
        return []
    return read.decode(errors="replace").splitlines()[-lines:] if lines else []
