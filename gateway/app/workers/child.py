"""A worker's process: started with the descriptors it needs, in a session of its own, and awaited without blocking the loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

from gateway.app.systemd import VARIABLES
from gateway.app.workers.arguments import arguments

NOT_INHERITED: Final = ("GATEHOUSE_PEPPER", *VARIABLES)
"""Variables that a worker has no use for."""


class Child:
    """A process that is a child of this one, also one that was started before this image took over (exec in place). For one event loop."""

    def __init__(self, pid: int, started: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._popen = started
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(pid) if sys.platform == "linux" else -1
        except OSError:
            self._descriptor = -1
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._reap)
        else:
            threading.Thread(target=self._follow, name=f"worker {pid}", daemon=True).start()

    async def wait(self) -> int:
        """The exit code; negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:  # not reaped, so the number is still its own
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it was reaped by somebody else

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._note(_waited(self.pid))

    def _follow(self) -> None:
        """Runs in a thread, where there are no descriptors of processes."""
        code = _waited(self.pid)
        try:
            self._loop.call_soon_threadsafe(self._note, code)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _note(self, code: int) -> None:
        self.returncode = code
        if self._popen is not None:
            self._popen.returncode = code
        self._ended.set()


def _waited(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0  # reaped by somebody else, so nobody can say


def spawn(feed: int, data: int, environ: Mapping[str, str]) -> Child:
    """Starts a worker. feed, data: descriptors that it inherits under the same numbers. Raises OSError.

    Its own session keeps the terminal's signals from it: the control process tells it when to end.
    """
    command = [sys.executable, "-m", "gateway", *arguments(feed, data)]
    environment = {name: value for name, value in environ.items() if name not in NOT_INHERITED}
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(feed, data), start_new_session=True)
    return Child(started.pid, started)
