"""Children of the process that the program before this one has not handed over: a worker whose feed had ended, a sidecar that was ending.

They end by themselves, because what tied them to that program is closed. Nobody but this process can reap them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gateway.app.upgrade.handover import HandOver
from gateway.app.workers.child import Child

TASKS = Path("/proc/self/task")


def reap_others(handed: HandOver) -> list[int]:
    """Takes note of their ends, in the running loop; their numbers. Call before this program has started any process. Finds none where the
    system does not list children."""
    known = {worker.pid for worker in handed.workers} | {sidecar.pid for sidecar in handed.engines.sidecars}
    others = sorted(_children() - known)
    for pid in others:
        Child(pid)
    return others


def _children() -> set[int]:
    found: set[int] = set()
    for listed in TASKS.glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, listed.read_text().split()))
    return found
