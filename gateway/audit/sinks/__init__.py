"""The audit sinks. To add one: a file here, a line in ROWS, a row in tests/contract/test_sink.py, a heading in docs/audit.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.audit.sinks import http, kafka, syslog
from gateway.audit.sinks.contract import Sink
from gateway.audit.sinks.file import FileSink
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext, SinkRow, Table, built
from gateway.core.secret import secret_hook
from gateway.core.specs import AuditSpec, SinkSpec
from gateway.core.specs.sinks import CarriedSpec, HttpSinkSpec, KafkaSinkSpec, SyslogSinkSpec

LOCAL: Final = "file"
"""The sink that holds the chain; what it has written, the others get."""


def _file(settings: Any, context: SinkContext) -> FileSink:
    sink = context.sink
    directory = Path(sink.path) if sink.path else context.state_dir / "audit"
    return FileSink(directory, context.writer, segment_bytes=sink.segment_bytes, sync=context.audit.durability == "fsync")


ROWS: Final = (
    SinkRow(name=LOCAL, build=_file),
    SinkRow(name="syslog", settings=SyslogSinkSpec, build=syslog.build),
    SinkRow(name="http", settings=HttpSinkSpec, build=http.build),
    SinkRow(name="kafka", settings=KafkaSinkSpec, build=kafka.build),
)
SINKS: Final = Table(SinkRow, ROWS)
"""The audit sinks that Gatehouse brings."""


def local_sink(spec: AuditSpec, state_dir: str, writer: str) -> FileSink:
    """The sink that holds the chain. Raises ConfigError unless there is exactly one."""
    files = [sink for sink in spec.sinks if sink.type == LOCAL]
    if len(files) != 1:
        raise ConfigError(f"exactly one sink of type '{LOCAL}' is needed: it holds the chain", path="audit.sinks")
    return _file(None, SinkContext(name=LOCAL, audit=spec, sink=files[0], state_dir=Path(state_dir), writer=writer))


def segment_age(spec: AuditSpec) -> float | None:
    """Seconds after which a new segment begins, however small the present one is."""
    return next((sink.segment_age for sink in spec.sinks if sink.type == LOCAL), None)


def other_sinks(spec: AuditSpec, state_dir: str, writer: str, sinks: Table[SinkRow] = SINKS) -> Iterable[tuple[str, str, Sink]]:
    """(path, name, sink) of those that get what the chain has written. Raises ConfigError with the path."""
    for number, name, wanted in named(spec):
        context = SinkContext(name=name, audit=spec, sink=wanted, state_dir=Path(state_dir), writer=writer)
        path = f"audit.sinks[{number}]"
        try:
            row = sinks[wanted.type]
            yield path, name, built(row.build, row.settings, wanted.settings, context)
        except ConfigError as error:
            raise ConfigError(error.message, path=path) from None


def carried(wanted: SinkSpec, sinks: Table[SinkRow] = SINKS) -> CarriedSpec:
    """What a sink's settings say of how the log is carried to it; the defaults where its type has no such settings. Raises ConfigError."""
    found = msgspec.convert(wanted.settings, sinks[wanted.type].settings, dec_hook=secret_hook)
    return found if isinstance(found, CarriedSpec) else CarriedSpec()


def named(spec: AuditSpec) -> Iterable[tuple[int, str, SinkSpec]]:
    """(number in the list, name, settings) of the sinks beside the log. How far a sink has come is kept by its name. Raises ConfigError."""
    seen: set[str] = set()
    for number, wanted in enumerate(spec.sinks):
        if wanted.type == LOCAL:
            continue
        name = wanted.name or wanted.type
        if name in seen:
            raise ConfigError(f"two sinks have the name {name!r}: give each a `name` of its own", path=f"audit.sinks[{number}].name")
        seen.add(name)
        yield number, name, wanted
