"""A fingerprint of watched files, which changes when one of them does."""

from __future__ import annotations

import os
from collections.abc import Iterable

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps(names: Iterable[str]) -> Stamps:
    """Time, size and inode of each file; None for one that is not there. A link counts as what it leads to. Blocks."""
    return tuple(_stamp(name) for name in names)


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
