"""Where the sockets of sidecars are: a folder of its own for each process, which is the only one that the sidecar may write to."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.core.errors import EngineChangeFailed

MAX_SOCKET_PATH: Final = 99
SOCKET: Final = "s.sock"


class Sockets:
    """Those of the sidecars of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def new(self, name: str, generation: int) -> Path:
        """A socket path that is new for each process and short enough for the kernel. Each has a folder of its own, the only one that its
        sidecar may write to: none can put a socket of its own in the place of another's. Raises EngineChangeFailed."""
        path = self._state_dir / "run" / f"{label(self._state_dir, name)}-{generation}" / SOCKET
        if len(str(path).encode()) > MAX_SOCKET_PATH:
            path = self._elsewhere() / path.parent.name / SOCKET
            _take(self._elsewhere(), name)
        shutil.rmtree(path.parent, ignore_errors=True)  # of a supervisor that was killed
        path.parent.mkdir(mode=0o700, parents=True)
        path.parent.parent.chmod(0o700)
        return path

    def clear(self) -> None:
        """Removes what is left of them outside of the state directory."""
        with suppress(OSError):  # it was never made, or belongs to somebody else
            for folder in self._elsewhere().iterdir():
                shutil.rmtree(folder, ignore_errors=True)
            self._elsewhere().rmdir()

    def _elsewhere(self) -> Path:
        """Where sockets go if the state directory's path is too long for them."""
        key = hashlib.sha256(str(self._state_dir).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"gatehouse-{key}"


def label(state_dir: Path, name: str) -> str:
    """An engine's name for files: plain, and no other's."""
    short = hashlib.sha256(f"{state_dir}/{name}".encode()).hexdigest()[:8]
    return f"{''.join(c if c.isalnum() or c in '-_' else '_' for c in name)[:24]}-{short}"


def _take(directory: Path, engine: str) -> None:
    """Makes a directory below a folder that everybody may write to. Raises EngineChangeFailed if somebody else owns it already: its
    owner could replace an engine's socket."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise EngineChangeFailed(
            f"engine {engine!r}: {directory}, for the sockets as the path of state_dir is too long for them, belongs to somebody else; "
            "remove it, set TMPDIR to a folder of your own or choose a shorter state_dir",
            engine=engine,
        )
