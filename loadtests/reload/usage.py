"""What processes and the machine spent on a phase, from /proc: to see who took the processors while latencies were measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TICK = float(os.sysconf("SC_CLK_TCK"))


@dataclass
class Usage:
    """Seconds of a processor since the machine started: by role, of the whole machine, and taken away by its host."""

    roles: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0
    stolen: float = 0.0

    def since(self, before: Usage) -> Usage:
        """What came in between. A role whose processes have ended meanwhile counts from nothing."""
        roles = {role: max(0.0, seconds - before.roles.get(role, 0.0)) for role, seconds in self.roles.items()}
        return Usage(roles, self.busy - before.busy, self.stolen - before.stolen)

    def plus(self, other: Usage) -> Usage:
        roles = {role: self.roles.get(role, 0.0) + other.roles.get(role, 0.0) for role in {**self.roles, **other.roles}}
        return Usage(roles, self.busy + other.busy, self.stolen + other.stolen)


def usage(roles: Mapping[str, list[int]]) -> Usage:
    """Now. roles: process ids by what they do; `sidecars` is filled with the children of `gateway`."""
    found = {role: sum(spent(pid) for pid in pids) for role, pids in roles.items()}
    found["sidecars"] = sum(spent(child) for pid in roles["gateway"] for child in children(pid))
    user, nice, system, _idle, _wait, irq, soft, steal = (int(part) for part in Path("/proc/stat").read_text().split()[1:9])
    return Usage(found, (user + nice + system + irq + soft) / TICK, steal / TICK)


def spent(pid: int) -> float:
    """Seconds of a processor of a process that runs, without its children; 0 for one that has ended."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(parts[11]) + int(parts[12])) / TICK


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
