"""What ends a command: one line on standard error, exit code 1 (2 for wrong usage, by typer)."""

from __future__ import annotations


class CommandError(Exception):
    """Its text is the line."""
