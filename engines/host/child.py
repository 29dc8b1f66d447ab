"""Child processes, started and awaited without blocking the event loop.

uvloop starts a process by fork, which copies the page tables of a large gateway, and waits until the child has begun: the loop, and every
stream with it, stops for tens of milliseconds. `subprocess` uses vfork, which takes half a millisecond whatever the size. A thread per
child writes its settings, collects its output if wanted, and waits for its end.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO


class Child:
    """A process. line: written to its standard input, which then stays open while it runs; None: no standard input. log: receives both
    outputs; None: they are in `output` and `errors` once it has ended. Raises OSError if it cannot be started."""

    def __init__(
        self, command: Sequence[str], *, line: bytes | None, log: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.returncode: int | None = None
        self.output = self.errors = b""
        out = subprocess.PIPE if log is None else log
        stdin = subprocess.DEVNULL if line is None else subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=out, env=environment)
        self.pid = self._process.pid
        threading.Thread(target=self._follow, args=(line, log is None), name=f"child {self.pid}", daemon=True).start()

    def _follow(self, line: bytes | None, collect: bool) -> None:
        """Runs in a thread."""
        process = self._process
        if process.stdin is not None and line is not None:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError:
                pass  # it has ended already; its exit code says why
        if collect and line is None:
            self.output, self.errors = process.communicate()
        process.wait()
        try:
            self._loop.call_soon_threadsafe(self._note)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _note(self) -> None:
        self.returncode = self._process.returncode
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass  # input that it had not read
        self._ended.set()

    async def wait(self) -> int:
        """The exit code; negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self.returncode is None:
            self._process.kill()
