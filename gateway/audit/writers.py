"""Who writes which chain. The process that owns a replica (embedded or control) writes as `<replica>`, its workers as `<replica>-<number>`.

A writer's files belong to the process that holds its lock, so two processes never write one chain. A worker takes the lowest number that
is free: one that replaces a dead worker takes over its chain, repairs it and chains what its journal holds; while an old worker still
drains, its successor has another number. Everything here blocks.
"""

from __future__ import annotations

from typing import Final

from gateway.audit.sinks import local_sink
from gateway.audit.sinks.file import FileSink
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec

HIGHEST: Final = 256
"""The highest number of a worker's writer: all workers of a replica, and as many that still drain, three times over."""


def worker_writer(replica: str, number: int) -> str:
    """The writer id of a replica's worker. number: from 1 on."""
    return f"{replica}-{number}"


def claim(spec: AuditSpec, state_dir: str, replica: str, wanted: str | None = None) -> FileSink:
    """The sink of a worker's writer that no process has, locked: for `AuditBroker(sink=...)`. It is `wanted` if that is free, otherwise
    that with the lowest number: a worker of a control process that was killed may still finish what it has. Raises ConfigError."""
    numbered = (worker_writer(replica, number) for number in range(1, HIGHEST + 1))
    for writer in (wanted, *numbered) if wanted else numbered:
        sink = local_sink(spec, state_dir, writer)
        if sink.take():
            return sink
    raise ConfigError(f"all {HIGHEST} writers of the replica {replica!r} are in use in {sink.directory}", path="audit.sinks")
