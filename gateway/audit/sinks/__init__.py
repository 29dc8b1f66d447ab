"""The audit sinks by type: the one table to add a line to (docs/audit.md says how a sink is written)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.audit.sinks.file import FileSink
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec, SinkSpec

Factory = Callable[[AuditSpec, SinkSpec, Path, str], FileSink]
"""(the audit settings, this sink's settings, the state directory, the writer's id) -> the sink, not yet opened."""


def _file(spec: AuditSpec, sink: SinkSpec, state_dir: Path, writer: str) -> FileSink:
    directory = Path(sink.path) if sink.path else state_dir / "audit"
    return FileSink(directory, writer, segment_bytes=sink.segment_bytes, sync=spec.durability == "fsync")


SINKS: dict[str, Factory] = {
    "file": _file,
}


def local_sink(spec: AuditSpec, state_dir: str, writer: str) -> FileSink:
    """The sink that holds the chain. Raises ConfigError for a type that is not in the table, and unless there is exactly one `file`."""
    for index, sink in enumerate(spec.sinks):
        if sink.type not in SINKS:
            known = ", ".join(sorted(SINKS))
            raise ConfigError(f"unknown audit sink type {sink.type!r}; known: {known}", path=f"audit.sinks[{index}].type")
    files = [sink for sink in spec.sinks if sink.type == "file"]
    if len(files) != 1:
        raise ConfigError("exactly one sink of type 'file' is needed: it holds the chain", path="audit.sinks")
    return SINKS["file"](spec, files[0], Path(state_dir), writer)
