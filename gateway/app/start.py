"""Where the console script begins: puts the compiled hot path in place before any of it is imported."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engines.confinement import hide
from gateway.app.compiled import activate
from gateway.app.first_signals import settle
from gateway.app.workers.arguments import MAX_WORKERS, descriptors
from gateway.server.allocator import few_arenas
from gateway.server.open_files import raise_limit

activate()

__all__ = ["main"]

START_THRESHOLDS: Final = (100_000, 20, 20)
"""Of the garbage collector, until gateway.app.interpreter sets those of a process that serves. What imports make is to stay: at Python's
default of 700 the collector looks through it 286 times, a seventh of the CPU that a start takes."""


def plain_serve(arguments: Sequence[str]) -> tuple[Path, bool, int] | None:
    """(configuration file, quickstart, workers) of a `serve` without help or mistakes. None for everything else, which is the command
    line's."""
    if arguments[:1] != ["serve"]:
        return None
    config: list[str] = []
    workers: list[str] = []
    quickstart = 0
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--quickstart":
            quickstart += 1
        elif argument == "--config":
            config.append(next(rest, ""))
        elif argument.startswith("--config="):
            config.append(argument.removeprefix("--config="))
        elif argument == "--workers":
            workers.append(next(rest, ""))
        elif argument.startswith("--workers="):
            workers.append(argument.removeprefix("--workers="))
        else:
            return None
    if len(workers) > 1 or not all(count.isascii() and count.isdigit() and int(count) <= MAX_WORKERS for count in workers):
        return None
    if len(config) != 1 or config[0].startswith("-") or not config[0] or quickstart > 1:
        return None
    return Path(config[0]), bool(quickstart), int(workers[0]) if workers else 0


def main() -> None:
    """Entry point of the console script. A process that serves never loads the command line's libraries (15 MiB and 0.2 s)."""
    settle()  # for an entry other than gateway.__main__, which has done so
    hide()  # the environment holds keys of upstreams: no sidecar may read it, nor what is made of it
    few_arenas()
    gc.set_threshold(*START_THRESHOLDS)
    raise_limit()
    inherited = descriptors(sys.argv[1:])
    if inherited is not None:
        from gateway.app.workers.process import work  # noqa: PLC0415 - the compiled modules first

        sys.exit(work(*inherited))
    if len(sys.argv) == 3 and sys.argv[1] == "--preflight":
        from gateway.app.upgrade.preflight import answer  # noqa: PLC0415 - as above

        sys.exit(answer(Path(sys.argv[2])))
    asked = plain_serve(sys.argv[1:])
    if asked is None:
        from gateway.app.main import main as command_line  # noqa: PLC0415 - the compiled modules first, and these libraries only here

        command_line()
    else:
        for number in (signal.SIGHUP, signal.SIGUSR2):  # until the process handles them: neither reload nor upgrade must end the process
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a background job: Ctrl-C is not for it, `kill -INT` is
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from gateway.app.process import serve  # noqa: PLC0415 - as above

        sys.exit(serve(asked[0], quickstart=asked[1], workers=asked[2]))
