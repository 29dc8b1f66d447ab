"""How far each sink has come in the log of each writer: one file for each sink, always replaced as a whole."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.sinks.file import sync_directory
from gateway.core.ledger import Position

log = logging.getLogger("gatehouse.audit")

FOLDER: Final = "sinks"
"""The folder of these files, below the state directory."""


class SinkPositions(msgspec.Struct):
    """The contents of the file. A writer that it does not name is new: its log is sent from the beginning."""

    writers: dict[str, Position] = {}


class SinkPositionsFile:
    """Everything here blocks. Raises OSError."""

    def __init__(self, state_dir: Path, sink: str) -> None:
        self.path = state_dir / FOLDER / f"{sink}.json"

    def read(self) -> SinkPositions | None:
        """None if there is no file. A file that cannot be decoded counts as empty: better to send every record again than none."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=SinkPositions)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.error("%s cannot be understood (%s): the audit log is sent from its beginning", self.path, error)
            return SinkPositions()

    def write(self, positions: SinkPositions) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(positions))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self.path)
        sync_directory(self.path.parent)
