"""One engine of the configuration as several: its copies (`scale`), the addresses that its name has now (`dns`), or the machines that bring
it (`joined`).

Each is an engine of its own from here on, with an endpoint, a breaker and health of its own, in every pool that names the engine. The
first copy keeps the engine's name; the others are `chat~2`, `chat~3`. An address is `vllm@10.0.0.5:8000`, an engine of a joined machine
`chat@gpu-1`. Neither character can be in a
name that somebody gives. Pure; what has nothing to expand is returned as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.config.merge import Merged
from gateway.core.engine_copies import AT, COPY, is_copy
from gateway.core.host_port import NOWHERE, HostPort
from gateway.core.joining import DOMAIN
from gateway.core.specs import ConfigSpec, EngineSpec, LifecycleSpec, ModelSpec, PoolMemberSpec
from gateway.core.specs.base import ClientTlsSpec
from gateway.core.specs.fleet import DnsSpec

HostPorts = Mapping[str, tuple[HostPort, ...]]
"""The current addresses of each engine with `dns`, by its name."""


class OnMachine(msgspec.Struct, frozen=True):
    """An engine that a joined machine brings. host: what the machine is asked for, and what its certificate must be for."""

    machine: str
    host: str
    place: HostPort
    tls: ClientTlsSpec


Machines = Mapping[str, tuple[OnMachine, ...]]
"""The machines that bring each engine with `joined` now, by its name."""
NO_MACHINES: Final[Machines] = MappingProxyType({})
_Members = dict[str, tuple[tuple[str, float], ...]]
"""The engines that stand for an engine, by its name; each with the factor on its weight."""


def copies(engine: EngineSpec) -> tuple[EngineSpec, ...]:
    """The copies of a sidecar beside itself. Whoever scales it starts and stops them; they know nothing of that."""
    scale = engine.scale
    if scale is None or engine.runtime == "external" or is_copy(engine.name):
        return ()
    made = []
    for number in range(2, scale.max + 1):
        device = scale.devices[(number - 2) % len(scale.devices)] if scale.devices else engine.device
        name = f"{engine.name}{COPY}{number}"
        made.append(msgspec.structs.replace(engine, name=name, device=device, scale=None, lifecycle=LifecycleSpec()))
    return tuple(made)


def with_copies(spec: ConfigSpec) -> ConfigSpec:
    """The settings with the copies among the engines. Pools are left as they are (`expanded`)."""
    if all([engine.scale is None for engine in spec.engines]):
        return spec
    there = {engine.name for engine in spec.engines}
    added = tuple(copy for engine in spec.engines for copy in copies(engine) if copy.name not in there)
    return msgspec.structs.replace(spec, engines=(*spec.engines, *added)) if added else spec


def merged_with_copies(merged: Merged) -> Merged:
    """The same for a configuration with the store's part: a copy has the revision of its engine."""
    spec = with_copies(merged.spec)
    if spec is merged.spec:
        return merged
    revisions = dict(merged.revisions)
    for engine in merged.spec.engines:
        if (revision := revisions.get(("engines", engine.name))) is not None:
            revisions.update({("engines", copy.name): revision for copy in copies(engine)})
    return Merged(spec, revisions, merged.left_out)


def expanded(spec: ConfigSpec, places: HostPorts, machines: Machines = NO_MACHINES) -> ConfigSpec:
    """The settings with each engine's pools over all that stand for it, and with engines for the addresses of names and for machines. spec:
    as `with_copies` returns it."""
    if all([engine.dns is None and engine.joined is None and engine.scale is None for engine in spec.engines]):
        return spec
    members: _Members = {}
    engines: list[EngineSpec] = []
    for engine in spec.engines:
        if engine.dns is not None and engine.runtime == "external":
            found = _at_places(engine, engine.dns, places.get(engine.name, ()))
            members[engine.name] = tuple((one.name, factor) for one, factor in found)
            engines += [one for one, _ in found]
            continue
        if engine.joined is not None:
            brought = _on_machines(engine, machines.get(engine.name, ()))
            members[engine.name] = tuple((one.name, 1.0) for one in brought)
            engines += brought
            continue
        engines.append(engine)
        if others := copies(engine):
            members[engine.name] = ((engine.name, 1.0), *((copy.name, 1.0) for copy in others))
    if not members:
        return spec
    models = tuple(_over(model, members) for model in spec.models)
    return msgspec.structs.replace(spec, engines=tuple(engines), models=models)


def _over(model: ModelSpec, members: _Members) -> ModelSpec:
    pool: list[str | PoolMemberSpec] = []
    changed = False
    for entry in model.pool:
        given = entry if isinstance(entry, PoolMemberSpec) else PoolMemberSpec(engine=entry)
        if (standing := members.get(given.engine)) is None:
            pool.append(entry)
            continue
        changed = True
        pool += [msgspec.structs.replace(given, engine=name, weight=given.weight * factor) for name, factor in standing]
    return msgspec.structs.replace(model, pool=tuple(pool)) if changed else model


def _at_places(engine: EngineSpec, dns: DnsSpec, places: tuple[HostPort, ...]) -> list[tuple[EngineSpec, float]]:
    """An engine at each address, which is dialled, while requests and certificates keep the name. Without one: an engine that cannot be
    reached, so that the model says that it has no healthy endpoint instead of not being there."""
    url = (engine.url or "").rstrip("/").removesuffix("/v1")
    if dns.records == "srv":
        url = _served(url)
    tls = engine.tls
    if url.startswith("https:") and dns.records == "srv" and (tls is None or tls.server_name is None):
        name = urlsplit(url).hostname or ""
        tls = ClientTlsSpec(server_name=name) if tls is None else msgspec.structs.replace(tls, server_name=name)
    base = msgspec.structs.replace(engine, tls=tls, dns=None, scale=None)
    if not places:
        return [(msgspec.structs.replace(base, url=f"{url}#{NOWHERE}"), 1.0)]
    heaviest = max(place.weight for place in places) or 1
    return [
        (
            msgspec.structs.replace(base, name=f"{engine.name}{AT}{place.text}", url=f"{url}#{place.text}"),
            max(place.weight, 1) / max(heaviest, 1),
        )
        for place in places
    ]


def _on_machines(engine: EngineSpec, machines: tuple[OnMachine, ...]) -> list[EngineSpec]:
    """An engine for each machine. All that the machine says of itself is where it is; without one: an engine that cannot be reached."""
    base = msgspec.structs.replace(engine, health=msgspec.structs.replace(engine.health, metrics=None))
    place = None if engine.joined is None else engine.joined.place
    if not machines and place is not None:
        return [msgspec.structs.replace(base, runtime=place.runtime)]  # whoever places it says why it is not there
    if place is not None and place.slots is not None and base.slots is None:
        base = msgspec.structs.replace(base, slots=place.slots)  # what was ordered counts, whatever the machine answers to probes
    if not machines:
        return [msgspec.structs.replace(base, url=f"https://{DOMAIN}#{NOWHERE}")]
    return [
        msgspec.structs.replace(base, name=f"{engine.name}{AT}{one.machine}", url=f"https://{one.host}#{one.place.text}", tls=one.tls)
        for one in machines
    ]


def _served(url: str) -> str:
    """The address without the labels of the service: what is at _http._tcp.vllm.example is vllm.example (RFC 2782, RFC 6125 6.2.1)."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    while host.startswith("_") and "." in host:
        host = host.partition(".")[2]
    return parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()
