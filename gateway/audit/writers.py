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


def claim(spec: AuditSpec, state_dir: str, replica: str) -> FileSink:
    """The sink of the worker's writer with the lowest number that no process has, locked: for `AuditBroker(sink=...)`. Raises
    ConfigError."""
    for number in range(1, HIGHEST + 1):
        sink = local_sink(spec, state_dir, worker_writer(replica, number))
        if sink.take():
            return sink
    raise ConfigError(f"all {HIGHEST} writers of the replica {replica!r} are in use in {sink.directory}", path="audit.sinks")
