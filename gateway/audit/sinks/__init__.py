"""The audit sinks. To add one: a file here, a line in ROWS, a row in tests/contract/test_sink.py, a heading in docs/audit.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gateway.audit.sinks.contract import Sink
from gateway.audit.sinks.file import FileSink
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext, SinkRow, Table, built
from gateway.core.specs import AuditSpec

LOCAL: Final = "file"
"""The sink that holds the chain; what it has written, the others get."""


def _file(settings: Any, context: SinkContext) -> FileSink:
    sink = context.sink
    directory = Path(sink.path) if sink.path else context.state_dir / "audit"
    return FileSink(directory, context.writer, segment_bytes=sink.segment_bytes, sync=context.audit.durability == "fsync")


ROWS: Final = (SinkRow(name=LOCAL, build=_file),)
SINKS: Final = Table(SinkRow, ROWS)
"""The audit sinks that Gatehouse brings."""


def local_sink(spec: AuditSpec, state_dir: str, writer: str) -> FileSink:
    """The sink that holds the chain. Raises ConfigError unless there is exactly one."""
    files = [sink for sink in spec.sinks if sink.type == LOCAL]
    if len(files) != 1:
        raise ConfigError(f"exactly one sink of type '{LOCAL}' is needed: it holds the chain", path="audit.sinks")
    return _file(None, SinkContext(name=LOCAL, audit=spec, sink=files[0], state_dir=Path(state_dir), writer=writer))


def other_sinks(spec: AuditSpec, state_dir: str, writer: str, sinks: Table[SinkRow] = SINKS) -> Iterable[tuple[str, str, Sink]]:
    """(path, name, sink) of those that get what the chain has written. Raises ConfigError with the path."""
    for number, wanted in enumerate(spec.sinks):
        if wanted.type == LOCAL:
            continue
        context = SinkContext(name=f"{wanted.type}[{number}]", audit=spec, sink=wanted, state_dir=Path(state_dir), writer=writer)
        path = f"audit.sinks[{number}]"
        try:
            row = sinks[wanted.type]
            yield path, context.name, built(row.build, row.settings, wanted.settings, context)
        except ConfigError as error:
            raise ConfigError(error.message, path=path) from None
