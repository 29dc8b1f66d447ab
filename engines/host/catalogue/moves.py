"""Moves of files that hold on network file systems, too. Blocks; run it in threads.

NFS sends a request again whose answer was lost, and the second answer may be that of a second try (RFC 1813, "Duplicate request cache"): a
rename finds its source gone, a link its name taken. So whoever gets such an error looks whether it is done. What a machine remembers of
names may be old; so nothing is decided by a look where the server can decide: a name is taken by a link, which fails if it is there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_NO_SYNC: Final = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)
"""What file systems say that keep the names of a folder by themselves (SMB, some of FUSE)."""


def rename(source: Path, target: Path) -> None:
    """As os.rename. Raises OSError."""
    before = os.lstat(source)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        if not _is(target, before) or os.path.lexists(source):
            raise


def link(source: Path, target: Path) -> None:
    """Gives a file, no folder, another name as well. Raises OSError: FileExistsError where that is another file's."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        if not _is(target, os.lstat(source)):
            raise


def can_link(error: OSError) -> bool:
    """Whether the file system has links, after `link` has raised this."""
    return error.errno not in _NO_LINKS


def place(source: Path, target: Path) -> None:
    """Moves a file or folder to an unused name; a folder may also replace an empty one. On a file system without hard links, a file that
    appears there at the same moment is overwritten. Raises OSError: FileExistsError, ENOTEMPTY, ENOTDIR."""
    if source.is_dir() and not source.is_symlink():
        rename(source, target)
        return
    try:
        link(source, target)
    except OSError as error:
        if can_link(error):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        rename(source, target)
    else:
        source.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Has the disk keep a file, or a folder's names. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def there(path: Path) -> bool:
    """Whether a file is there: opened, as the server is asked then. Raises OSError where that cannot be told."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ESTALE:  # deleted by another machine since its name was looked up
            return False
        raise
    return True


def _is(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False
