"""The priority of a process that starts beside others that serve.

Its imports and its load take a core for seconds. On a machine without a core to spare, requests and streams would wait behind it; at a
low priority it takes what they leave, and a tenth where they leave nothing. Once it is ready it has the priority that it came with.
"""

from __future__ import annotations

import os
import threading

LOW = 10
"""How much nicer a process is while it starts; on Linux, the share of a contested processor falls to about a tenth."""
PASSES = 3
"""Looks for threads that were started by one that was still to be raised."""


def lower(pid: int) -> bool:
    """Lowers a process that has just been started, unless it could not be raised again (that takes root, CAP_SYS_NICE or a limit for
    nice, RLIMIT_NICE, of 20). Says whether it was lowered."""
    if not hasattr(os, "setpriority") or not os.path.isdir("/proc/self/task") or not _can_raise():
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW))
    except OSError:
        return False
    return True


def restore(pid: int) -> None:
    """Gives every thread of a process this one's own priority: each has its own, inherited from the one that started it."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(PASSES):
        low = [thread for thread in _threads(pid) if _nice(thread) not in (own, None)]
        if not low:
            return
        for thread in low:
            try:
                os.setpriority(os.PRIO_PROCESS, thread, own)
            except OSError:
                pass  # it has ended


def _threads(pid: int) -> list[int]:
    try:
        return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _nice(thread: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except OSError:
        return None


def _can_raise() -> bool:
    """Tried on a thread that ends with that: what a container or a security module forbids shows in no list of capabilities."""
    allowed: list[bool] = []

    def attempt() -> None:
        own = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, own)
        try:
            os.setpriority(os.PRIO_PROCESS, own, before + 1)
            os.setpriority(os.PRIO_PROCESS, own, before)
        except OSError:
            return
        allowed.append(before < 19)

    thread = threading.Thread(target=attempt, name="priority")
    thread.start()
    thread.join()
    return bool(allowed)
