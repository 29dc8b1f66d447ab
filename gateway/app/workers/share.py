"""A worker's share of the settings that bound a whole process."""

from __future__ import annotations

import msgspec

from gateway.core.specs import ConfigSpec, ModelSpec


def share_of(spec: ConfigSpec, count: int) -> ConfigSpec:
    """The settings of one of `count` workers: connections, memory and uploads divided by their number, rounded up; enough memory for
    one body.

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
    files = msgspec.structs.replace(spec.files, max_open=-(-spec.files.max_open // count))
    models = tuple(_with_share(model, count) for model in spec.models)
    return msgspec.structs.replace(spec, listen=listen, telemetry=telemetry, models=models, files=files)


def _with_share(model: ModelSpec, count: int) -> ModelSpec:
    cache, shadow = model.cache, model.shadow
    if cache is not None:
        entries, held = -(-cache.max_entries // count), -(-cache.max_bytes // count)
        model = msgspec.structs.replace(model, cache=msgspec.structs.replace(cache, max_entries=entries, max_bytes=held))
    if shadow is not None:
        at_once, waiting = -(-shadow.concurrency // count), -(-shadow.queue // count)
        model = msgspec.structs.replace(model, shadow=msgspec.structs.replace(shadow, concurrency=at_once, queue=waiting))
    return model
