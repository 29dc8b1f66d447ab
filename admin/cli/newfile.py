"""A file that a command makes: whole or not at all, and never over another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from admin.cli.errors import CommandError


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """To be written. What was begun is removed when it fails, or when Ctrl-C comes: nobody is to take a part for the whole.
    Raises CommandError."""
    whole = False
    try:
        with path.open("xb") as file:
            try:
                yield file
                file.flush()
                whole = True
            finally:
                if not whole:
                    with suppress(OSError):
                        path.unlink()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
