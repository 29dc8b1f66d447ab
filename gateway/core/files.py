"""Reading files that settings name."""

from __future__ import annotations

import errno
import os
import stat


def read_bytes(name: str, limit: int) -> bytes:
    """A file of at most `limit` bytes. Raises OSError, also for a larger one and for what is not a regular file: a pipe would be waited
    for, and a device has no end."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", name)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", name)
    return data
