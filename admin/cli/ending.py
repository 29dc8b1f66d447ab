"""The end of every command: what fails around it, such as a full disk below standard output, is one line on standard error too."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import typer

from admin.cli.errors import CommandError, UsageError

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def run(app: Callable[[], Any], arguments: Sequence[str]) -> None:
    """Runs the command line. Raises SystemExit with the command's exit code, 1 if the output cannot be written, 130 after Ctrl-C."""
    _streams()
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _text(arguments)
        try:
            app()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end("", 130)
    except UsageError as error:
        _end(str(error), 2)
    except BrokenPipeError:
        _end("", 1)  # the reader has gone
    except OSError as error:
        _end(f"{error.filename or 'the output'}: {error.strerror or error}", 1)


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Raises CommandError where a command stumbles over an answer: it comes from another release, or from no gateway at all."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CommandError(f"the answer of {url} is not what this command expects ({what}): is it a gateway of this release?") from error


def _text(arguments: Sequence[str]) -> None:
    """Raises UsageError for an argument that is no text: names, reasons and addresses all are."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")
            raise UsageError(f"argument {number} is not UTF-8: {shown}") from None


def _streams() -> None:
    """Replaces closed standard streams by the null device, before a file or a connection takes their place. What the terminal's encoding
    lacks is printed as an escape."""
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end(message: str, code: int) -> None:
    """Raises SystemExit. What is still to be written goes nowhere, so that the interpreter's own end does not fail too."""
    if message:
        with suppress(OSError):
            typer.echo(f"error: {message}", err=True)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(code)
