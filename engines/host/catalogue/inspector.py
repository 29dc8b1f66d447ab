"""Looks into model files in a process of its own: `python -m engines.host.catalogue.inspector PLACE...`, a question a line, an
answer a line. It reads nothing outside of these places, where the kernel can see to that.

The gateway's process must not parse what somebody uploaded, nor a file that may change while it is mapped (one that shrinks under a memory
map kills the process). The inspector ends with its standard input and runs at a low priority.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import msgspec

from engines.confinement import confine
from engines.facts import Facts, Question

NICENESS = 10
MAX_MEMORY = 2 * 1024**3
"""Bytes of its own, mapped files aside: a header can ask for as much memory as its file is long."""


def look(question: Question) -> Facts:
    """The facts, or the problem; never raises."""
    path = Path(question.path)
    try:
        module, _, function = question.reader.partition(":")
        found = cast(Facts, getattr(importlib.import_module(module), function)(path))
    except OSError as error:
        return Facts(problem=f"cannot be read: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - boundary: a reader that fails tells about this file, and the next one is still looked at
        return Facts(problem=f"the reader failed ({type(error).__name__})")
    return found if found.problem is None else Facts(problem=_without(found.problem, path))


def _without(text: str, path: Path) -> str:
    """The message without the model's place on this machine."""
    return text.replace(f"{path}/", "").replace(f"{path}: ", "").replace(str(path.parent), "...")


def restrain(reads: Iterable[str], memory: int = MAX_MEMORY) -> None:
    """Low priority, bounded memory, and everything of engines.confinement. reads: the files and folders that it may read."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    confine(reads=map(Path, reads))


def main() -> int:
    """Answers until standard input ends."""
    decoder = msgspec.json.Decoder(Question)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(look(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    restrain(sys.argv[1:])
    sys.exit(main())
