"""Child processes, started and awaited without blocking the event loop.

uvloop starts a process by fork, which copies the page tables of a large gateway, and waits until the child has begun: the loop, and every
stream with it, stops for tens of milliseconds. `subprocess` uses vfork, which takes half a millisecond whatever the size. A thread per
child writes its settings, collects its output if wanted, and waits for its end.

A program that replaces itself (exec in place) keeps its children: `Child.adopt` takes one over by its number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any


class Child:
    """A process. line: written to its standard input, which then stays open while it runs; None: no standard input. log: receives both
    outputs; None: they are in `output` and `errors` once it has ended. leads: it begins a session and a group of processes of its own, and
    when it has ended, however that came, whatever is left of the group is killed. Raises OSError if it cannot be started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        line: bytes | None,
        log: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        leads: bool = False,
    ) -> None:
        out = subprocess.PIPE if log is None else log
        stdin = subprocess.DEVNULL if line is None else subprocess.PIPE
        process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=out, env=environment, start_new_session=leads)
        self._begin(process, line, log is None, leads)

    @classmethod
    def adopt(cls, pid: int, lifeline: int, *, leads: bool = False) -> Child:
        """A child that the program before this one has started; no other child inherits its `lifeline`. Raises OSError if not ours."""
        child = cls.__new__(cls)
        child._begin(Inherited(pid, lifeline), None, False, leads)
        return child

    def _begin(self, process: subprocess.Popen[bytes] | Inherited, line: bytes | None, collect: bool, leads: bool) -> None:
        self._leads = leads
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.returncode: int | None = None
        self.output = self.errors = b""
        self._process: Any = process
        self.pid = process.pid
        threading.Thread(target=self._follow, args=(line, collect), name=f"child {self.pid}", daemon=True).start()

    @property
    def lifeline(self) -> int:
        """The descriptor of its standard input."""
        return int(self._process.stdin.fileno())

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
        if self._leads:
            with suppress(ChildProcessError):  # somebody has waited for it: a signal looks first whether it has ended
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # while it has not been waited for, its number is nobody else's
            self._kill_group()
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

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left, or only what has ended (macOS says so)


class Inherited:
    """What `Child` needs of subprocess.Popen, for a child that this program has not started. Its number cannot be another process's before
    it has been waited for, and it is signalled through a pidfd, which never names another one (pidfd_open(2))."""

    def __init__(self, pid: int, lifeline: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        os.set_inheritable(lifeline, False)
        self._handle = os.pidfd_open(pid)
        try:
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            os.close(self._handle)
            raise
        weakref.finalize(self, os.close, self._handle)
        self.stdin = os.fdopen(lifeline, "wb", 0)

    def wait(self) -> int:
        """Blocks until it has ended; the exit code, negative for a signal."""
        if self.returncode is None:
            found = os.waitid(os.P_PIDFD, self._handle, os.WEXITED)
            assert found is not None
            self.returncode = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            pass  # it has ended
