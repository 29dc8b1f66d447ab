"""Options that every command has, written before it: `gatehouse --output json keys list`. Typer looks for them behind it only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VALUED: Final = frozenset({"--url", "--key", "--profile", "--ca", "--cert", "--cert-key", "--output", "-o"})
FLAGS: Final = frozenset({"--wide"})
"""Those of admin.cli.session.connected: with a value, and without."""
_SHORT: Final = {"-o": "--output"}


def moved(arguments: Sequence[str]) -> list[str]:
    """The arguments with the options before the command, and between a group and its command, behind it. One that the command has itself
    takes their place. A command without such options refuses them there."""
    before, rest = _leading(arguments)
    if not rest or rest[0].startswith("-"):
        return list(arguments)
    between, behind = _leading(rest[1:])
    if not before and not (between and behind):
        return list(arguments)
    end = behind.index("--") if "--" in behind else len(behind)
    own = {_name(word) for word in behind[:end]}
    kept = [word for option in (*before, *between) if _name(option[0]) not in own for word in option]
    return [rest[0], *behind[:end], *kept, *behind[end:]]


def _leading(arguments: Sequence[str]) -> tuple[list[Sequence[str]], Sequence[str]]:
    """The common options with which the arguments begin, and what follows them."""
    found: list[Sequence[str]] = []
    place = 0
    while place < len(arguments):
        word = arguments[place]
        size = 2 if word in VALUED else 1 if _name(word) in VALUED | FLAGS else 0
        if not size or place + size > len(arguments):
            break
        found.append(arguments[place : place + size])
        place += size
    return found, arguments[place:]


def _name(word: str) -> str:
    """The option that a word is or begins with: `--url=...`, `-ojson`."""
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return _SHORT.get(name, name)
