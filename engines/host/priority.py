"""The priority of a process that starts beside others that serve.

Its imports and its load take a core for seconds, and on a machine without a spare one, requests and streams would wait. At a low
priority it takes what they leave, and a tenth if they leave nothing. Once ready, it gets its normal priority back.
"""

from __future__ import annotations

import os
import threading

LOW = 10
"""By how much a process is nicer while it starts; on Linux its share of a contested processor falls to about a tenth."""
PASSES = 3
"""How often to look for threads started by one that had not been raised yet."""


def lower(pid: int) -> bool:
    """Lowers a new process, unless it could not be raised again later: that takes root, CAP_SYS_NICE or an RLIMIT_NICE of 20. Returns
    whether it was lowered."""
    if not hasattr(os, "setpriority") or not os.path.isdir("/proc/self/task") or not _can_raise():
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW))
    except OSError:
        return False
    return True


def restore(pid: int) -> None:
    """Gives every thread of a process the priority of this one: each thread has its own, inherited from its creator."""
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
    """Tries it on a short-lived thread: what containers and security modules forbid is not visible in any list of capabilities."""
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
