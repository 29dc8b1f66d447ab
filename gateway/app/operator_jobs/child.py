"""The process of one job (engines.jobs), watched: how far it is, its last lines, what came of it."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from engines.environment import inherited
from engines.host.child import Child
from engines.jobs.order import OUTCOME, PROGRESS, Order, Outcome, Progress
from gateway.core.errors import one_line
from gateway.core.jobs import JobFailed

S = TypeVar("S", bound=msgspec.Struct)
LOOK_SECONDS: Final = 0.5
MOST_LOG: Final = 16 * 1024 * 1024
"""Bytes after which a process that writes is ended."""
TAIL: Final = 8 * 1024
"""Bytes of the log that are shown."""
MOST_SAID: Final = 64 * 1024
MOST_RESULT: Final = 16 * 1024


class JobChild:
    """folder: for this attempt alone, without a file `log`. program: that takes the order instead of `python -m engines.jobs`."""

    def __init__(self, folder: Path, order: Order, program: tuple[str, ...] = ()) -> None:
        self._log, self._order = folder / "log", order
        self._program = program or (sys.executable, "-m", "engines.jobs")
        self.progress = 0.0
        self.log = ""

    async def run(self) -> Outcome:
        """Starts it and waits for its end. Cancelled: kills it first. Raises JobFailed, OSError."""
        line = msgspec.json.encode(self._order) + b"\n"
        with self._log.open("xb") as log:
            child = Child(self._program, line=line, log=log, environment=inherited(os.environ), leads=True)
        try:
            ended = False
            while not ended:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await child.wait()
                    ended = True
                except TimeoutError:
                    pass
                if await asyncio.to_thread(self._look) > MOST_LOG:
                    raise JobFailed("The process wrote more to its log than it may.", lasting=True)
            return await asyncio.to_thread(self._outcome, child.returncode or 0)
        finally:
            child.kill()
            await child.wait()

    def _look(self) -> int:
        """Bytes of the log."""
        told = said(Path(self._order.folder) / PROGRESS, Progress)
        if told is not None:
            self.progress = min(1.0, max(0.0, told.progress))
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL))
            text = log.read(TAIL).decode("utf-8", "replace")
        self.log = self._clean(text.replace("\r", "\n"))
        return size

    def _clean(self, text: str) -> str:
        """A text without control characters and without paths of this machine."""
        for place in (self._order.folder, str(Path(self._order.source).parent)):
            text = text.replace(f"{place}/", "")
        return "\n".join(one_line(line) for line in text.split("\n")).strip("\n")

    def _outcome(self, code: int) -> Outcome:
        """Raises JobFailed."""
        outcome = said(Path(self._order.folder) / OUTCOME, Outcome)
        if code != 0 or outcome is None:
            last = self.log.rpartition("\n")[2][:300]
            how = f"was killed by signal {-code}" if code < 0 else f"ended with the code {code}"
            raise JobFailed(f"The process {how}{f': {last}' if last else ''}.", code="process_failed")
        if outcome.problem:
            raise JobFailed(f"{self._clean(outcome.problem)[:500]}.".replace("..", "."), code="model_unusable", lasting=True)
        if len(msgspec.json.encode(outcome.result)) > MOST_RESULT:
            raise JobFailed("The process wrote more than it may.", lasting=True)
        return outcome


def said(path: Path, type: type[S]) -> S | None:
    """What the process has written, which is checked like any other input."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_SAID:
            return None
        try:
            return msgspec.json.decode(file.read(MOST_SAID), type=type)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None
