"""The client of the inspector: starts its process, asks, and never waits longer than allowed. Blocks; run it in a thread."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from engines.environment import inherited
from engines.facts import Facts, Question
from engines.host.catalogue.checksums import Stopped
from engines.runtimes import RuntimeRow

COMMAND: Final = (sys.executable, "-m", "engines.host.catalogue.inspector")
SECONDS: Final = 30.0
"""The deadline for one model."""
GLANCE: Final = 0.25
"""How often a waiting thread checks whether it is still wanted."""
MAX_ANSWER: Final = 1024 * 1024
ROOT = Path(__file__).parents[3]


class Inspection:
    """Asks one inspector about many models. A model that makes it end or hang is reported as a problem. Use as a context manager.

    go_on: returns False when this process ends. reads: the files and folders that the inspector may read.
    """

    def __init__(
        self, go_on: Callable[[], bool], reads: Iterable[Path], command: tuple[str, ...] = COMMAND, seconds: float = SECONDS
    ) -> None:
        self._go_on, self._seconds = go_on, seconds
        self._command = (*command, *map(os.path.realpath, reads))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def look(self, path: Path, row: RuntimeRow) -> Facts:
        """The facts of a model. Raises OSError if no process can be started, and Stopped."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(Question(str(path), row.inspect)) + b"\n")
            process.stdin.flush()
            return msgspec.json.decode(self._answer(process.stdout.fileno()), type=Facts)
        except TimeoutError:
            problem = f"could not be read within {self._seconds:.0f} s"
        except (OSError, EOFError, msgspec.MsgspecError, UnicodeEncodeError):
            problem = "the reader ended while it looked at this file"
        self._end()
        return Facts(problem=problem)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=inherited(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def _answer(self, descriptor: int) -> bytes:
        """One line. Raises TimeoutError, EOFError, Stopped."""
        end, data = time.monotonic() + self._seconds, bytearray()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not data.endswith(b"\n"):
            if not self._go_on():
                raise Stopped
            if not poll.poll(min(GLANCE, max(0.0, end - time.monotonic())) * 1000):
                if time.monotonic() >= end:
                    raise TimeoutError
                continue
            part = os.read(descriptor, 65536)
            data += part
            if not part or len(data) > MAX_ANSWER:
                raise EOFError
        return bytes(data)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.kill()  # it has nothing to save
        process.wait()
        process.stdin.close()
        process.stdout.close()
