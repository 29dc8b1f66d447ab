"""The part of the command line that a call needs.

Typer makes every command anew at each start: 190 of them with 2,000 options, two fifths of the CPU of a short command. So it is given only
the group or the command that the first argument names; without one, or with one that it does not know, it has them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import typer


def narrowed(app: typer.Typer, arguments: Sequence[str], environ: Mapping[str, str]) -> typer.Typer:
    """`app` with what these arguments ask for, or, where a shell asks for completions, with what its line does."""
    first = _first(arguments, environ)
    groups = [group for group in app.registered_groups if group.name == first]
    commands = [command for command in app.registered_commands if command.name == first]
    if len(groups) + len(commands) != 1:
        return app
    part = copy(app)
    part.registered_groups, part.registered_commands = groups, commands
    return part


def _first(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """The word behind the program's name. Of a line to be completed only if it is whole: another follows."""
    line = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS")  # of bash; of other shells (Typer's scripts)
    if line is None or "_GATEHOUSE_COMPLETE" not in environ:
        return arguments[0] if arguments else ""
    words = line.split(maxsplit=2)
    return words[1] if len(words) > 2 or (len(words) == 2 and line[-1].isspace()) else ""
