"""A worker's share of the settings that bound a whole process."""

from __future__ import annotations

import msgspec

from gateway.core.specs import ConfigSpec


def share_of(spec: ConfigSpec, count: int) -> ConfigSpec:
    """The settings of one of `count` workers: connections and memory divided by their number, rounded up; enough memory for one body.

    Exporters of metrics run in the control process, which has the metrics of all.
    """
    listen, telemetry = spec.listen, msgspec.structs.replace(spec.telemetry, exporters=())
    listen = msgspec.structs.replace(
        listen,
        max_connections=-(-listen.max_connections // count),
        max_connections_per_peer=-(-listen.max_connections_per_peer // count),
        sockets=msgspec.structs.replace(listen.sockets, max_per_principal=-(-listen.sockets.max_per_principal // count)),
        memory_bytes=max(-(-listen.memory_bytes // count), listen.max_body_bytes),
    )
    return msgspec.structs.replace(spec, listen=listen, telemetry=telemetry)
