"""The version that runs here, and which build of it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("admin", "engines", "gatehouse", "gateway", "policies")
DIGITS: Final = 8


@cache
def release() -> str:
    """The version of the distribution, with the beginning of a digest of the sources: `0.1.0+3f2a91c4` (PEP 440). Builds of the same
    sources have the same, wheels and working trees alike; the version is "0" in a tree that was not installed.

    Asked for first at the start, so that it says what runs, not what was installed in the place of it since. Reads a thousand files.
    """
    try:
        number = version("gatehouse")
    except PackageNotFoundError:
        number = "0"
    return f"{number}+{digest(ROOT)}"


def digest(root: Path) -> str:
    """Of the Python sources of these packages below a directory, with their names."""
    found = sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            data = file.read_bytes()
            found.update(b"%b\0%d\0" % (file.relative_to(root).as_posix().encode(), len(data)))
            found.update(data)
    return found.hexdigest()[:DIGITS]
