"""Why a sidecar's process ended: whether memory ran out, as far as the system tells.

The kernel ends a process with SIGKILL when the memory of the machine, or of a control group, is used up, and counts it first: `oom_kill` in
the group's memory.events (Linux's admin-guide/cgroup-v2.rst) or memory.oom_control (cgroup-v1/memory.rst), and for the whole machine in
/proc/vmstat. A limit of a process (setrlimit(2)) ends nothing: an allocation fails, and the process ends as its libraries see fit, with
some last words.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

OUT_OF_MEMORY: Final = "out_of_memory"
LAST_BYTES: Final = 4096
"""How much of the end of a log is searched for the reason."""
LAST_WORDS: Final = (
    "std::bad_alloc",
    "memoryerror",
    "cannot allocate memory",
    "out of memory",
    "failed to allocate",
    "unable to allocate",
    "cannot set up guard pages",
)
"""What C++, Python, the C library, CUDA, ggml and ONNX Runtime say of an allocation that failed, in small letters."""
CRASHES: Final = re.compile(r"(\S\.(c|cc|cpp|cu|h):\d+: )|Fatal Python error|terminate called")
"""What ggml (with file and line), Python and C++ say before they end a process; they quote the program, and nothing of a request."""
_FOLDERS = re.compile(r"\S*/(?=[^/\s]+:\d+:)")


class Ending(NamedTuple):
    """reason: in words. code: `out_of_memory`, or None."""

    reason: str
    code: str | None = None


class Kills:
    """How many processes the kernel has ended for want of memory, in the control group of a process; of the whole machine, where its group
    does not count them."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        """Raises nothing: without /proc, nothing is counted."""
        found = [path for path in _counters(root, _read(root / "proc" / str(pid) / "cgroup")) if _count(path) is not None]
        self._path = found[0] if found else root / "proc" / "vmstat"
        self._before = self.now()

    def now(self) -> int:
        return _count(self._path) or 0

    def seen(self, count: int) -> None:
        """The process was alive after there had been so many: none of them was it."""
        self._before = count

    def another(self) -> bool:
        """Whether there is one more than when the process was last known to be alive."""
        return self.now() > self._before

    @property
    def where(self) -> str:
        return "this machine" if self._path.name == "vmstat" else f"the control group {self._path.parent}"


def ending(code: int, kills: Kills | None, log: Path, since: int) -> Ending:
    """code: of the exit, negative for a signal. since: bytes of the log when the process began. Reads files: may block for a moment."""
    how = f"the process ended with code {code}{_named(code)}"
    if code == -signal.SIGKILL and kills is not None and kills.another():
        return Ending(f"memory ran out: the kernel ended the process (SIGKILL, counted by {kills.where}); see {log}", OUT_OF_MEMORY)
    if code in (0, -signal.SIGKILL, -signal.SIGTERM):
        return Ending(f"{how}, see {log}")
    lines = _last_lines(log, since)
    if (words := _said(lines, lambda line: any(word in line.lower() for word in LAST_WORDS))) is not None:
        return Ending(f"memory ran out: {how} after it had said {words!r}; see {log}", OUT_OF_MEMORY)
    words = _said(lines, CRASHES.search)
    return Ending(f"{how}, see {log}" if words is None else f"{how} after it had said {_FOLDERS.sub('', words)!r}; see {log}")


def _named(code: int) -> str:
    try:
        return f" ({signal.Signals(-code).name})" if code < 0 else ""
    except ValueError:
        return ""


def _counters(root: Path, groups: str) -> list[Path]:
    """Files that may count the kills of a group, by proc_pid_cgroup(5)."""
    found = []
    for line in groups.splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            found.append(root / "sys/fs/cgroup" / group.strip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "sys/fs/cgroup/memory" / group.strip("/") / "memory.oom_control")
            found.append(root / "sys/fs/cgroup/memory/memory.oom_control")  # a container may see its own group at the root
    return found


def _count(path: Path) -> int | None:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None


def _last_lines(log: Path, since: int) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - LAST_BYTES))  # it may have been emptied meanwhile
            return file.read(LAST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _said(lines: list[str], wanted: Callable[[str], object]) -> str | None:
    """The last line that is wanted."""
    return next((line.strip()[:200] for line in reversed(lines) if wanted(line)), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
