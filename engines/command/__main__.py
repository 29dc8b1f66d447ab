"""`python -m engines.command`: the sidecar process; its settings arrive on standard input (engines/sidecar/shell.py)."""

from __future__ import annotations

import sys

from engines.command.app import CommandRuntime
from engines.command.program import Program
from engines.confinement import Confinement
from engines.sidecar.shell import run
from gateway.core.specs import SidecarSpec


class Main:
    """Makes the parts in the order in which the shell asks for them; all of them share one `Program`."""

    def __init__(self) -> None:
        self._program: Program | None = None

    def confined(self, spec: SidecarSpec) -> Confinement:
        """Confines the process before anything else."""
        self._program = Program(spec)
        return self._program.confine()

    def runtime(self, spec: SidecarSpec) -> CommandRuntime:
        """The runtime around the program."""
        assert self._program is not None
        return CommandRuntime(spec, self._program)

    def end(self) -> None:
        """Called before the process ends without an orderly shutdown."""
        if self._program is not None:
            self._program.end()


if __name__ == "__main__":
    main = Main()
    sys.exit(run(main.runtime, confined=main.confined, last=main.end))
