"""A model's folder as a tar archive, as an upload has it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

BESIDE: Final = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md")
"""Files of a folder that are kept beside a new graph: all but weights, which are in it."""


def kept(source: Path) -> Iterator[Path]:
    for path in sorted(source.rglob("*")):
        if path.suffix in BESIDE and path.is_file() and not path.is_symlink():
            yield path


def pack(target: Path, members: Iterable[tuple[str, Path]]) -> None:
    """Names in the archive and their content."""
    with tarfile.open(target, "x", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            data = content.read_bytes()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
