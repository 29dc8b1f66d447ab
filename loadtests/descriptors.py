"""What a process has open: its connections, by where they lead, and its files."""

import os
import re
from collections import Counter
from pathlib import Path

LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def kinds(pid: int) -> dict[str, int]:
    """How many descriptors of each kind: `listening`, `tcp in :PORT` (accepted there), `tcp out` (opened by this process), `unix out`
    (opened by this process, or one end of a pair), `unix NAME` (listening there, or accepted), other names as /proc has them; numbers in
    the names of files are `N`. Nothing if the process has ended."""
    tcp, unix = _tcp(pid), _unix(pid)
    found: Counter[str] = Counter()
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    for number in numbers:
        try:
            name = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue  # closed meanwhile
        if match := re.fullmatch(r"socket:\[(\d+)\]", name):
            found[tcp.get(match[1]) or unix.get(match[1]) or "socket of another kind"] += 1
        else:
            found[re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", name.rpartition("/")[2])] += 1
    return dict(sorted(found.items()))


def _tcp(pid: int) -> dict[str, str]:
    """What each socket is, by its inode."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(pid, name)]
    listening = {line[1] for line in lines if line[3] == LISTENS}
    found = {}
    for line in lines:
        address, _, port = line[1].rpartition(":")
        accepted = line[1] in listening or f"{'0' * len(address)}:{port}" in listening
        found[line[9]] = "listening" if line[3] == LISTENS else f"tcp in :{int(port, 16)}" if accepted else "tcp out"
    return found


def _unix(pid: int) -> dict[str, str]:
    """The same of Unix sockets: those that are listening and those that were accepted have a path."""
    return {line[6]: f"unix {Path(line[7]).name}" if len(line) > 7 else "unix out" for line in map(str.split, _lines(pid, "unix"))}


def _lines(pid: int, name: str) -> list[str]:
    """A table of the process's network, without its heading."""
    try:
        return Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError, OSError):
        return []
