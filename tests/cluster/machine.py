"""What the machine knows about processes, ports and connections (Linux: /proc)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

ESTABLISHED = "01"


class Ports:
    """Free ports of loopback, held for as long as a cluster lives: a process that listens on one may end and come again."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self) -> int:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self._held.append(held)
        return int(held.getsockname()[1])

    def close(self) -> None:
        for held in self._held:
            held.close()


def children(pid: int) -> list[int]:
    """Process ids of the live children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():  # a child belongs to the thread that started it
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return sorted(set(found))


def command(pid: int) -> list[str]:
    """The command line of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def in_sessions(leaders: Iterable[int]) -> list[int]:
    """Live processes of these sessions: those that a leader started, and theirs, whoever their parents are now."""
    sessions, found = set(leaders), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions and fields[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def family(pid: int) -> set[int]:
    """A process, its children, theirs, and so on."""
    found, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children(parent) if child not in found]
        found.update(new)
    return found


def marked(mark: str) -> list[int]:
    """Live processes that have inherited `mark` in their environment. A gateway shows its environment to root alone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes() and "\nState:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
    return sorted(found)


def memory(pid: int) -> int:
    """Resident bytes of a process; its share of what it shares with others is counted in whole."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor(pids: Iterable[int]) -> float:
    """Seconds of processor time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def client_ports(pid: int, listening: int) -> set[int]:
    """The ports at the other end of a process's connections from clients of its listener on port `listening` (IPv4)."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return {theirs for ours, theirs, inode in _connections(pid) if ours == listening and inode in inodes}


def _connections(pid: int) -> Iterable[tuple[int, int, str]]:
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED:
            yield int(fields[1].split(":")[1], 16), int(fields[2].split(":")[1], 16), fields[9]
