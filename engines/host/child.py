"""Child processes, started and awaited without holding the event loop.

uvloop starts a process by a fork, which copies the page tables of a gateway that has grown, and waits until the child has begun: the
loop stands still for tens of milliseconds, and every stream with it. `subprocess` starts one by vfork in half a millisecond, whatever the
size. A thread per child writes its settings, collects what it prints where that is wanted, and waits for its end.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO


class Child:
    """A process. line: written to its standard input, which stays open as long as it runs; None: it has none. log: takes both of its
    outputs; None: they are in `output` and `errors` once it has ended. Raises OSError when it cannot be started."""

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
        """In a thread."""
        process = self._process
        if process.stdin is not None and line is not None:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError:
                pass  # it has ended already, and says why by its code
        if collect and line is None:
            self.output, self.errors = process.communicate()
        process.wait()
        try:
            self._loop.call_soon_threadsafe(self._note)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def _note(self) -> None:
        self.returncode = self._process.returncode
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass  # what it had not read
        self._ended.set()

    async def wait(self) -> int:
        """Its exit code; that of a signal is negative."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self.returncode is None:
            self._process.kill()
