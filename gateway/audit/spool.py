"""Required sinks: a process records nothing more while such a sink is too far behind its own log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.audit.ledger import bytes_behind
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks.file import list_segments
from gateway.core.ledger import Position


class Required(NamedTuple):
    """A sink that must keep up: its name, where it says how far it has come, and the most bytes that may wait for it."""

    name: str
    positions: SinkPositionsFile
    spool: int


class SpoolWatch:
    """Call it: why the writer may not go on, or None. Blocks.

    What counts is how far the sink has come by its own account: when whoever carries the log to it has died, that stands still, too.
    """

    def __init__(self, directory: Path, writer: str, sinks: Sequence[Required]) -> None:
        self._directory, self._writer, self._sinks = directory, writer, sinks
        self._full: set[str] = set()

    def __call__(self) -> str | None:
        for sink in self._sinks:
            try:
                behind = self._behind(sink)
            except OSError as error:
                return f"how far the sink {sink.name} has come cannot be read: {error.strerror or error}"
            most = sink.spool * 9 // 10 if sink.name in self._full else sink.spool  # not refusing and accepting in turns
            if behind > most:
                self._full.add(sink.name)
                return f"the required sink {sink.name} is {behind} bytes behind; {sink.spool} may wait (audit.sinks[].settings.spool_bytes)"
            self._full.discard(sink.name)
        return None

    def _behind(self, sink: Required) -> int:
        positions = sink.positions.read()
        if positions is None:
            raise OSError(2, f"{sink.positions.path} is not there")
        position = positions.writers.get(self._writer, Position(self._writer))
        logs = list_segments(self._directory) if self._directory.is_dir() else {}
        return bytes_behind(position, logs.get(self._writer, []))
