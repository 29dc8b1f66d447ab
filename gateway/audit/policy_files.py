"""Where the texts of policies are kept: a folder with one file for each, named by its SHA-256 in hex and compressed by Zstandard.

Earlier builds wrote them uncompressed. Both are read, and both may be there for one text. Everything here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import zstandard

from gateway.audit.crypto import replace_file

SUFFIXES: Final = (".json.zst", ".json")
LEVEL: Final = 3


def write_policy(folder: Path, digest: str, text: bytes) -> None:
    """Raises OSError."""
    packed = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compress(text)
    replace_file(folder / f"{digest}{SUFFIXES[0]}", packed)


def read_policy(folder: Path, digest: str, most: int | None = None) -> bytes | None:
    """None if no file has the text with this hash in at most so many bytes, or if none can be read."""
    for path in _files(folder, digest):
        try:
            text = _unpacked(path.read_bytes(), most) if path.name.endswith(SUFFIXES[0]) else path.read_bytes()
        except (OSError, zstandard.ZstdError):
            continue
        if (most is None or len(text) <= most) and sha256(text).hexdigest() == digest:
            return text
    return None


def _unpacked(data: bytes, most: int | None) -> bytes:
    """Raises ZstdError, for more than `most` bytes as well: what they are is written at the beginning of the file."""
    size = zstandard.frame_content_size(data)
    if size < 0 or (most is not None and size > most):
        raise zstandard.ZstdError("the text is too long, or does not say how long it is")
    return zstandard.ZstdDecompressor().decompress(data)


def date_policy(folder: Path, digest: str) -> bool:
    """Gives a text the present time; False if there is none. Raises OSError."""
    found = False
    for path in _files(folder, digest):
        try:
            os.utime(path)
        except FileNotFoundError:
            continue
        found = True
    return found


def policy_files(folder: Path) -> Iterator[Path]:
    """All of them."""
    for suffix in SUFFIXES:
        yield from folder.glob(f"*{suffix}")


def _files(folder: Path, digest: str) -> list[Path]:
    return [folder / f"{digest}{suffix}" for suffix in SUFFIXES]
