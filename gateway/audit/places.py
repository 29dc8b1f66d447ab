"""How far a sink has come in the log of each writer: a file for each sink, replaced as a whole."""

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
"""Below the state directory."""


class Places(msgspec.Struct):
    """The contents of such a file. A writer that is not in it is new: its log is sent from the beginning."""

    writers: dict[str, Position] = {}


class PlacesFile:
    """Everything here blocks. Raises OSError."""

    def __init__(self, state_dir: Path, sink: str) -> None:
        self.path = state_dir / FOLDER / f"{sink}.json"

    def read(self) -> Places | None:
        """None when there is no file. One that cannot be understood counts as empty: every record is sent again rather than not at all."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=Places)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.error("%s cannot be understood (%s): the audit log is sent from its beginning", self.path, error)
            return Places()

    def write(self, places: Places) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(places))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self.path)
        sync_directory(self.path.parent)
