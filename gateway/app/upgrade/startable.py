"""What a start needs besides a good configuration: a store that opens, directories that can be written.

It is asked before an upgrade hands over, because a new program whose start fails then takes the gateway with it: the old one is gone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from errno import EACCES
from pathlib import Path
from typing import Final

from gateway.app.configuration.plugins import Plugins
from gateway.audit.sinks import local_sink
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec
from gateway.identity import keys
from gateway.store.database import FILE
from gateway.store.opening import look
from gateway.store.pepper import VARIABLE

ROOM: Final = 1 << 20
"""Bytes that a start must be able to write into a directory: its notes, the store's log, segments of the audit log."""


async def could_start(spec: ConfigSpec, environ: Mapping[str, str], plugins: Plugins) -> None:
    """Raises ConfigError, StoreUnavailable with what would make a start fail. Leaves nothing behind."""
    state_dir = Path(spec.state_dir)
    writable(state_dir, "state_dir")
    writable(Path(local_sink(spec.audit, spec.state_dir, "0").directory), "audit.sinks")
    if spec.store.url != "sqlite" or (state_dir / FILE).exists():  # the start makes a file that is not there
        await look(spec.store.url, state_dir, keys, environ.get(VARIABLE), plugins.stores)


def writable(directory: Path, setting: str) -> None:
    """Raises ConfigError where a directory can neither be written nor made, or its disk is full."""
    found = directory.absolute()
    while not found.exists():
        found = found.parent
    if not found.is_dir():
        raise ConfigError(f"{directory} cannot be made: {found} is a file", path=setting)
    try:
        if not os.access(found, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        with tempfile.TemporaryFile(dir=found) as probe:  # what permissions do not say: a full disk, a quota, one that is read-only
            os.posix_fallocate(probe.fileno(), 0, ROOM)
    except OSError as error:
        done = "written" if found == directory.absolute() else "made"
        raise ConfigError(f"{directory} cannot be {done}: {error.strerror}", path=setting) from None
