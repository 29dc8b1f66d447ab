"""What loading a model shares among the runtimes: the error, the checksum, and the bounds that options refer to.

Imports nothing heavy: the gateway's process reads the runtimes' options, which refer to this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DEFAULT_MAX_BODY: Final = 64 * 1024 * 1024
"""Largest request body in bytes; `options.max_body_bytes` overrides it."""
SHA256_EAGER_BYTES: Final = 256 * 1024 * 1024
"""Model files up to this size are hashed even when no checksum was configured."""


class LoadError(Exception):
    """The model cannot be loaded. `code` is `model_invalid`, `checksum_mismatch`, `model_missing`, `insufficient_memory`..."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def sha256_of(*paths: Path) -> str:
    """SHA-256 of a file, or of several one after the other, in hex."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def verify_sha256(path: Path, expected: str | None, further: Sequence[Path] = ()) -> str | None:
    """The SHA-256 of a model's file, `further` ones following; raises `LoadError` when it is not `expected`.

    None for large files with nothing expected.
    """
    files = (path, *further)
    if expected is None and sum(file.stat().st_size for file in files) > SHA256_EAGER_BYTES:
        return None
    actual = sha256_of(*files)
    if expected is not None and actual != expected.lower():
        raise LoadError("checksum_mismatch", f"{path}: sha256 is {actual}, expected {expected}")
    return actual
