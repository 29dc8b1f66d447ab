"""Processes that write one audit log together, started and killed from a test (tests/integration/audit_writers.py is what they run)."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS = 3


class Fleet:
    """The processes, by their place: 0 is the control process. A process that ends by itself, or not as it was told, has failed."""

    def __init__(self, state_dir: Path, durability: str) -> None:
        self.state_dir, self.durability = state_dir, durability
        self.processes: dict[int, int] = {}
        self.files: dict[int, Path] = {}
        self.kills = 0
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        arguments = [sys.executable, "-m", "tests.integration.audit_writers", str(state_dir), durability]
        self._parent = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True)

    def _order(self, *words: object) -> int:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(" ".join(map(str, words)) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def start(self, place: int) -> None:
        file = self.state_dir / f"acknowledged-{len(self.files)}"
        file.touch()
        self.processes[place] = self._order("start", "worker" if place else "control", file)
        self.files[self.processes[place]] = file

    def acknowledged(self, place: int) -> int:
        return self.files[self.processes[place]].read_bytes().count(b"\n")

    def end(self, place: int, how: signal.Signals) -> None:
        pid = self.processes.pop(place)
        os.kill(pid, how)
        assert self._order("ended", pid) == (-how if how == signal.SIGKILL else 0), f"the process at place {place} failed"
        self.kills += how == signal.SIGKILL

    def all_acknowledged(self) -> Counter[str]:
        return Counter(line for file in self.files.values() for line in file.read_text().splitlines())

    def close(self) -> None:
        for place in list(self.processes):
            self.end(place, signal.SIGKILL)
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.stdout.close()
        self._parent.wait(60)
