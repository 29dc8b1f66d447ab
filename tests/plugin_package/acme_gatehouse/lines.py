"""An audit sink: a copy of the log in one file."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.core.plugins import SinkContext, SinkRow
from gateway.core.specs import Spec


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    path: str


class Lines:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    async def start(self) -> None:
        """Raises OSError, which refuses the start."""
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, batch: bytes) -> None:
        os.write(self._descriptor, batch)

    def probe(self) -> None:
        os.fstat(self._descriptor)

    async def aclose(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def build(settings: Settings, context: SinkContext) -> Lines:
    return Lines(context.state_dir / settings.path)


ROW = SinkRow(name="lines", settings=Settings, build=build)
