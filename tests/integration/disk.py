"""A disk that is really full."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Disk = tuple[Path, Callable[[], None]]


@contextmanager
def disk_of(place: Path, small: int, large: int) -> Iterator[Disk]:
    """A directory where at most `small` bytes can be written, and the way to get `large`: a tmpfs where we may mount one (ENOSPC), else a
    limit on the size of files (EFBIG)."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={small}", "none", str(place)]
    if os.geteuid() == 0 and subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        try:
            yield place, lambda: subprocess.run(["mount", "-o", f"remount,size={large}", str(place)], check=True) and None
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (small, hard))
    try:
        yield place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
