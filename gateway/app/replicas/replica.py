"""Who this replica is: an id that lasts as long as its state directory, and the lock that keeps two processes out of one directory.

The id names the replica wherever several share a store: audit writers, logs, metrics, status, the table of replicas. It comes from
`GATEHOUSE_REPLICA`, the setting `replica`, or the file `replica` in the state directory, which the first start makes; the first of these
that there is counts. A worker is told its replica's id by the control process and takes no lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.core.errors import ConfigError

VARIABLE: Final = "GATEHOUSE_REPLICA"
FILE: Final = "replica"
LOCK: Final = "gatehouse.lock"
MEANING: Final = "1 to 32 lower-case letters, digits and '-', with no '-' at either end"
_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", re.ASCII)


def valid(id: str) -> bool:
    """Whether a text can be a replica's id (MEANING)."""
    return _ID.fullmatch(id) is not None


def replica_id(state_dir: Path, environ: Mapping[str, str], setting: str | None = None) -> str:
    """The id of the replica that has this state directory; makes it if there is none. Processes that begin together get the same one.

    setting: `replica` of the configuration. Raises ConfigError.
    """
    given = environ.get(VARIABLE, "")
    for value, path, where in ((given, None, f"{VARIABLE} is"), (setting or "", "replica", "the replica's id is")):
        if value and not valid(value):
            raise ConfigError(f"{where} {value!r}; it has {MEANING}", path=path)
    return given or setting or _kept(state_dir)


def _kept(state_dir: Path) -> str:
    path = state_dir / FILE
    try:
        if not path.exists():
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(path, f"gw-{secrets.token_hex(4)}")
        found = path.read_bytes()[:64].decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"the replica's id cannot be kept in {path}: {error.strerror}", path="state_dir") from None
    if not valid(found):
        raise ConfigError(f"{path} holds no replica's id ({MEANING}); correct it, or delete it to make a new one", path="state_dir")
    return found


def _make(path: Path, id: str) -> None:
    """Writes the file whole or not at all. If another process makes it at the same time, the first one counts."""
    draft = path.with_name(f".{FILE}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, f"{id}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class StateLock:
    """Holds a state directory for this process, from the construction to `release` or the process's end, however it ends.

    The lock (flock) belongs to one open file that no child process inherits. An exec in place hands it over (`kept`), so that nobody else
    can have the directory in between. Raises ConfigError when another process has it. advice: what to do then. held: a descriptor of that
    file, from the program before this one; -1: there is none.
    """

    def __init__(self, state_dir: Path, advice: str = "give each one a directory of its own", held: int = -1) -> None:
        path = state_dir / LOCK
        if held >= 0:
            if path.exists() and os.path.samestat(os.fstat(held), path.stat()):
                self._descriptor = held
                return
            os.close(held)  # another directory's, or the file was deleted
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}", path="state_dir") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            if not isinstance(error, BlockingIOError):
                raise ConfigError(f"{path} cannot be locked: {error.strerror}", path="state_dir") from None
            named = f" (process {holder})" if holder.isdigit() else ""
            raise ConfigError(
                f"another gateway{named} is running with the state directory {state_dir}: {advice}",
                path="state_dir",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def kept(self) -> int:
        """A descriptor of its own, which holds the directory also after `release`, until it is closed."""
        return os.dup(self._descriptor)

    def release(self) -> None:
        """May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def prepared(path: Path, held: int = -1) -> StateLock:
    """Makes a state directory where there is none, and holds it. held: see StateLock. Raises ConfigError if it cannot be written or another
    process has it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"the state directory {path} cannot be made: a file is in its place", path="state_dir") from None
    except OSError as error:
        raise ConfigError(f"the state directory {path} cannot be written: {error.strerror}", path="state_dir") from None
    return StateLock(path, held=held)
