"""What operators see of engines, endpoints, models and the process: the admin API's port `FleetView`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import msgspec

from engines.host.logs import log_path, tail
from gateway.app import compiled
from gateway.app.configuration.changes import Changes
from gateway.app.engines.fleet import Fleet
from gateway.app.release import release
from gateway.config.reload import Status
from gateway.core.durations import shown
from gateway.core.engine_copies import AT
from gateway.core.specs import EngineSpec, LimitSpec
from gateway.pipeline.plane import DataPlane
from gateway.routing.build import clearance
from gateway.server.health import Health


class Workers(Protocol):
    """What is seen of the processes that serve, where they are not this one."""

    @property
    def in_flight(self) -> int: ...


class FleetView:
    """Implements gateway.core.ports.FleetView. gateway_url: where clients find the data listener. started: seconds since the epoch."""

    def __init__(
        self,
        fleet: Fleet,
        changes: Changes,
        plane: DataPlane,
        health: Health,
        replica: str,
        gateway_url: str,
        started: float,
        workers: Workers | None = None,
        where: Callable[[str], dict[str, Any]] = lambda engine: {"machines": [], "reason": "", "reason_code": None},
        troubles: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """where: on which machines an engine is that they start for the gateway. troubles: what else is wrong."""
        self._where, self._troubles = where, troubles
        self._fleet, self._changes, self._plane, self._workers = fleet, changes, plane, workers
        self._health, self._replica, self._url, self._started = health, replica, gateway_url, started

    def engines(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        wanted = None if names is None else frozenset(names)
        specs = [spec for spec in self._changes.in_force.stated.engines if wanted is None or spec.name in wanted]
        sidecars = {engine["name"]: engine for engine in self._fleet.supervisor.engines()}
        several = self._several({spec.name for spec in specs if spec.dns is not None or spec.joined is not None})
        single = {endpoint["name"]: endpoint for endpoint in self.endpoints([spec.name for spec in specs if spec.name not in several])}
        faults = self._changes.discovery.faults()
        return [
            {
                **_engine(
                    spec,
                    sidecars.get(spec.name),
                    _of_several(several[spec.name], faults.get(spec.name)) if spec.name in several else single.get(spec.name, {}),
                ),
                **self._placed(spec),
                "source": self._source("engines", spec.name),
            }
            for spec in specs
        ]

    def _several(self, engines: set[str]) -> dict[str, list[dict[str, Any]]]:
        """The endpoints of engines that several addresses or machines stand for."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
        if found:
            places = [one.name for one in self._fleet.registry.in_force() if one.name.partition(AT)[0] in found]
            for endpoint in self.endpoints(places):
                found[endpoint["name"].partition(AT)[0]].append(endpoint)
        return found

    def _placed(self, spec: EngineSpec) -> dict[str, Any]:
        """Where an engine is that joined machines start for the gateway."""
        if spec.joined is None or (place := spec.joined.place) is None:
            return {}
        found = self._where(spec.name)
        shown = {"machines": found["machines"], "model": place.model, "device": place.device}
        return {**shown, "reason": found["reason"], "reason_code": found["reason_code"]} if found["reason"] else shown

    def endpoints(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        return self._fleet.traffic.endpoints(names)

    def endpoint_names(self) -> list[str]:
        return [endpoint.name for endpoint in self._fleet.registry.in_force()]

    def engine_log(self, engine: str, lines: int) -> list[str]:
        return tail(log_path(self._fleet.state_dir, engine), lines)

    def models(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        known = self._plane.current().models
        wanted = known if names is None else frozenset(names)
        entries = {entry.name: entry for name in wanted if (entry := known.get(name)) is not None and entry.name in wanted}
        pools = {
            name: [{"engine": m} if isinstance(m, str) else msgspec.to_builtins(m) for m in entry.spec.pool]
            for name, entry in entries.items()
        }
        places = None if names is None else {member["engine"] for members in pools.values() for member in members}
        states = {endpoint["name"]: endpoint["state"] for endpoint in self.endpoints(places)}
        engines = {engine["name"]: engine for engine in self._fleet.supervisor.engines()}
        shown = []
        for name, members in pools.items():
            entry = entries[name]
            spec = entry.spec
            shown.append(
                {
                    "name": spec.name,
                    "source": self._source("models", spec.name),
                    "ready": entry.route.ready,
                    "queued": entry.route.backlog if self._fleet.mirror is None else self._fleet.mirror.queued(spec.name),
                    "aliases": list(spec.aliases),
                    "fallbacks": list(spec.fallbacks),
                    "policy": spec.routing.policy,
                    "pool": [_member(member, states.get(member["engine"], "unknown"), engines.get(member["engine"])) for member in members],
                }
            )
        return shown

    def _source(self, kind: str, name: str) -> str:
        return "store" if (kind, name) in self._changes.in_force.merged.revisions else "file"

    def in_force(self, kind: str, name: str) -> tuple[int | None, str]:
        merged, reconciler = self._changes.in_force.merged, self._fleet.reconciler
        sidecar = kind == "engines" and reconciler.has(name)
        revision = reconciler.revision(name) if sidecar else merged.revisions.get((kind, name))
        error = merged.left_out.get((kind, name))
        if error is not None:
            return revision, str(error)
        return revision, reconciler.reason(name) if kind == "engines" else ""

    def status(self) -> dict[str, Any]:
        welcome, report = self._health.ready()
        spec, reloader = self._plane.current().spec, self._changes.reloader
        return {
            "version": release(),
            "replica": self._replica,
            "compiled": compiled.active(),
            "started_at": self._started,
            "config_version": reloader.version,
            "config": _reloads(reloader.status),
            "ready": welcome,
            "not_ready": report.get("not_ready", []),
            "in_flight": self._workers.in_flight if self._workers is not None else len(self._plane.exchanges),
            "gateway_url": self._url,
            "limits": [shown(msgspec.to_builtins(limit), LimitSpec) for limit in spec.limits],
            "insecure": spec.insecure,
            "troubles": self._troubles(),
        }


def _reloads(status: Status) -> dict[str, Any]:
    """Where the configuration in force came from, and the change after it that was refused, with the reason."""
    return {
        "source": status.source,
        "applied_at": status.applied_at,
        "refused": status.error,
        "refused_at": status.failed_at,
        "refused_source": status.failed_source,
        "until_restart": status.until_restart,
    }


def _member(member: dict[str, Any], state: str, sidecar: dict[str, Any] | None) -> dict[str, Any]:
    """One engine of a pool with the state of its endpoint, and for a sidecar its version and rollout."""
    if sidecar is None:
        return {**member, "state": state}
    return {**member, "state": state, "version": sidecar["version"], "rollout": sidecar["rollout"]}


def _of_several(mine: list[dict[str, Any]], fault: str | None) -> dict[str, Any]:
    """The state of an engine that several addresses or machines stand for: ready when one of them is."""
    ready = [one for one in mine if one["state"] == "ready"]
    first = (ready or mine or [{"state": "unknown", "reason": ""}])[0]
    return {"state": first["state"], "reason": fault or ("" if ready else first["reason"])}


def _seen(spec: EngineSpec) -> list[str]:
    """The labels of data that an engine may see."""
    seen = clearance(spec)
    return ["*"] if seen is None else sorted(seen)


def _engine(spec: EngineSpec, sidecar: dict[str, Any] | None, endpoint: dict[str, Any]) -> dict[str, Any]:
    """Settings and state of one engine; an external one has the state of its endpoint."""
    shown: dict[str, Any] = {
        "name": spec.name, "runtime": spec.runtime, "version": spec.version, "slots": spec.slots, "clearance": _seen(spec),
    }  # fmt: skip
    if sidecar is not None:
        return {**shown, "model": spec.model, "device": spec.device, **sidecar}
    missing = "unknown" if spec.runtime == "external" else "stopped"
    return {**shown, "model": spec.model, "state": endpoint.get("state", missing), "reason": endpoint.get("reason", "")}
