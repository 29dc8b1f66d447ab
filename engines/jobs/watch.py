"""Whether the engine of a benchmark still gets on, and how much of its memory it has taken: what /proc says of its process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

STILL_SECONDS: Final = 20.0
MOVED_SECONDS: Final = 0.5
MOVED_FAULTS: Final = 16
"""An engine at work has run or waited for a processor for so long within STILL_SECONDS, all threads together, or has read so many pages of
its model. One that only answers `/health` has not."""
LOOKS: Final = 4
"""So many looks at least find that it has not moved."""
NEAR: Final = 0.8
"""Share of the memory from which on the lack of it is the likely reason."""


class Watch:
    """memory: bytes that the process may have (jobs.memory_bytes). still: seconds after which one that does not move hangs."""

    def __init__(self, process: int, memory: int, still: float = STILL_SECONDS) -> None:
        self._process, self._memory, self._still = process, memory, still
        self._proc = Path("/proc") / str(process)
        self._seen: tuple[float, int] | None = None
        self._looked = time.monotonic()
        self._idle = 0.0
        self._held = 0

    def problem(self) -> str | None:
        """Why nothing more is to be expected of it."""
        found = os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            how = (
                f"ended with the code {found.si_status}" if found.si_code == os.CLD_EXITED else f"was ended by the signal {found.si_status}"
            )
            return f"it {how}{self._short()}"
        seen, now = self._look(), time.monotonic()
        if seen is None or self._seen is None or seen[0] - self._seen[0] >= MOVED_SECONDS or seen[1] - self._seen[1] >= MOVED_FAULTS:
            self._seen, self._idle = seen, 0.0
        else:
            self._idle += min(now - self._looked, self._still / LOOKS)  # the machine may have stood still, the engine with it
        self._looked = now
        if self._idle > self._still:
            return f"it has not moved for {self._still:g} s{self._short()}"
        return None

    def _look(self) -> tuple[float, int] | None:
        """(seconds that its threads ran or waited for a processor, page faults that were read); None where the system does not tell
        (proc(5))."""
        try:
            for line in (self._proc / "status").read_text().splitlines():
                if line.startswith("VmData:"):
                    self._held = int(line.split()[1]) * 1024
            faults = int((self._proc / "stat").read_text().rpartition(")")[2].split()[9])
            threads = [path.read_text().split() for path in (self._proc / "task").glob("*/schedstat")]
        except (OSError, ValueError, IndexError):
            return None
        return (sum(int(ran) + int(waited) for ran, waited, _ in threads) / 1e9, faults) if threads else None

    def _short(self) -> str:
        if self._held < NEAR * self._memory:
            return ""
        return f", with {self._held >> 20} MiB taken of the {self._memory >> 20} that it may have (jobs.memory_bytes): short of memory"
