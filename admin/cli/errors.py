"""Errors that end a command: one line on standard error, exit code 1, or 2 for wrong usage. Where 1 is an answer, 2 for all of them."""

from __future__ import annotations


class CommandError(Exception):
    """Its text is the line."""


class UsageError(CommandError):
    """The command was written wrongly: exit code 2."""
