"""What operators see and do, made of a running Gateway: the ports that the admin API is given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from admin.context import Ports
from gateway.app import compiled
from gateway.app.build import Gateway
from gateway.audit.crypto import PUBLIC_KEY, CheckpointVerifier, load_verifier
from gateway.audit.reader import LogReader
from gateway.audit.sinks import local_sink
from gateway.audit.verify import verify_log
from gateway.config import validate
from gateway.config.convert import with_plain_settings
from gateway.config.reload import Status
from gateway.core.errors import AlreadyExists, ConfigError, StoreUnavailable
from gateway.core.ports import Authenticator
from gateway.core.specs import EngineSpec, GuardrailSpec, LimitSpec
from gateway.core.storage import KeySettings
from gateway.core.types import Headers, InferenceRequest, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.server.health import Health
from policies.limits import LimitRules
from policies.patterns import matches, within

log = logging.getLogger("gatehouse")
BOOTSTRAP_TENANT, BOOTSTRAP_KEY = "gatehouse", "bootstrap-admin"


def ports(gateway: Gateway, health: Health, gateway_url: str) -> Ports:
    """For `admin.app.create_app`, once the gateway has started. gateway_url: where clients find the data listener."""
    return Ports(
        authenticator=Current(gateway),
        config=gateway.reloader,
        fleet=Fleet(gateway, health, gateway_url),
        control=Controls(gateway),
        policies=Policies(gateway),
        audit=gateway.audit,
        audit_reader=Log(gateway),
        feed=gateway.feed,
        files=gateway.files,
        matches=within,
        store=gateway.control.store,
        check=Check(gateway),
    )


async def bootstrap(gateway: Gateway) -> str | None:
    """The first administrator's key, made when nobody could administer: no key of the file has a role, and the store has no keys.

    None otherwise. It is kept nowhere: whoever starts Gatehouse the first time sees it once.
    """
    if gateway.control.has_keys or any(key.roles for key in gateway.spec.identity.api_keys.static):
        return None
    settings = KeySettings(roles=("admin",), description="made at the first start")
    try:
        record, secret = await gateway.control.store.create_key(BOOTSTRAP_TENANT, settings, actor="gatehouse", id=BOOTSTRAP_KEY)
    except AlreadyExists:  # another replica was first
        return None
    except StoreUnavailable as error:
        log.warning("the first administrator's key could not be made, the next start tries again: %s", error.message)
        return None
    gateway.record("bootstrap", f"keys/{record.id}", {"roles": list(settings.roles)})
    return secret.reveal()


class Current(Authenticator):
    """The data plane's authenticator, whichever is in force."""

    def __init__(self, gateway: Gateway) -> None:
        self._plane = gateway.plane

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        return self._plane.current().identity.authenticate(headers, peer)


class Fleet:
    """Implements gateway.core.ports.FleetView."""

    def __init__(self, gateway: Gateway, health: Health, gateway_url: str) -> None:
        self._gateway, self._health, self._url = gateway, health, gateway_url
        self._started = gateway.clock.wall()

    def engines(self) -> list[dict[str, Any]]:
        sidecars = {engine["name"]: engine for engine in self._gateway.supervisor.engines()}
        endpoints = {endpoint["name"]: endpoint for endpoint in self.endpoints()}
        stored = self._gateway.stored()
        return [
            {
                **_engine(spec, sidecars.get(spec.name), endpoints.get(spec.name, {})),
                "source": "store" if ("engines", spec.name) in stored else "file",
            }
            for spec in self._gateway.plane.current().spec.engines
        ]

    def endpoints(self) -> list[dict[str, Any]]:
        return self._gateway.registry.endpoints()

    def models(self) -> list[dict[str, Any]]:
        states = {endpoint["name"]: endpoint["state"] for endpoint in self.endpoints()}
        engines = {engine["name"]: engine for engine in self._gateway.supervisor.engines()}
        shown, stored = [], self._gateway.stored()
        for entry in {entry.name: entry for entry in self._gateway.plane.current().models.values()}.values():
            spec = entry.spec
            members = [{"engine": m} if isinstance(m, str) else msgspec.to_builtins(m) for m in spec.pool]
            shown.append(
                {
                    "name": spec.name,
                    "source": "store" if ("models", spec.name) in stored else "file",
                    "ready": entry.route.ready,
                    "queued": entry.route.queued,
                    "aliases": list(spec.aliases),
                    "fallbacks": list(spec.fallbacks),
                    "policy": spec.routing.policy,
                    "pool": [_member(member, states.get(member["engine"], "unknown"), engines.get(member["engine"])) for member in members],
                }
            )
        return shown

    def stored(self, kind: str, name: str) -> tuple[int | None, str]:
        return self._gateway.revision((kind, name)), self._gateway.reason((kind, name))

    def status(self) -> dict[str, Any]:
        welcome, report = self._health.ready()
        return {
            "version": release(),
            "compiled": compiled.active(),
            "started_at": self._started,
            "config_version": self._gateway.reloader.version,
            "config": _reloads(self._gateway.reloader.status),
            "ready": welcome,
            "not_ready": report.get("not_ready", []),
            "in_flight": len(self._gateway.plane.exchanges),
            "gateway_url": self._url,
            "limits": [msgspec.to_builtins(limit) for limit in self._gateway.plane.current().spec.limits],
            "insecure": self._gateway.plane.current().spec.insecure,
        }


def _reloads(status: Status) -> dict[str, Any]:
    """Where the configuration in force came from, and the change after it that was refused, with the reason."""
    return {
        "source": status.source,
        "applied_at": status.applied_at,
        "refused": status.error,
        "refused_at": status.failed_at,
        "refused_source": status.failed_source,
    }


def _member(member: dict[str, Any], state: str, sidecar: dict[str, Any] | None) -> dict[str, Any]:
    """One engine of a pool: the state of its endpoint, and of a sidecar its version and its rollout."""
    if sidecar is None:
        return {**member, "state": state}
    return {**member, "state": state, "version": sidecar["version"], "rollout": sidecar["rollout"]}


def _engine(spec: EngineSpec, sidecar: dict[str, Any] | None, endpoint: dict[str, Any]) -> dict[str, Any]:
    """Settings and state of one engine; an external one has the state of its endpoint."""
    shown: dict[str, Any] = {
        "name": spec.name, "runtime": spec.runtime, "version": spec.version, "slots": spec.slots,
    }  # fmt: skip
    if sidecar is not None:
        return {**shown, "model": spec.model, "device": spec.device, **sidecar}
    missing = "unknown" if spec.runtime == "external" else "stopped"
    return {**shown, "model": spec.model, "state": endpoint.get("state", missing), "reason": endpoint.get("reason", "")}


class Controls:
    """Implements gateway.core.ports.ModelControl: processes by the supervisor, traffic by the registry of endpoints."""

    def __init__(self, gateway: Gateway) -> None:
        self._supervisor, self._registry = gateway.supervisor, gateway.registry

    async def load(self, engine: str) -> None:
        await self._supervisor.load(engine)

    async def unload(self, engine: str, *, force: bool = False) -> None:
        await self._supervisor.unload(engine, force=force)

    async def reload(self, engines: Sequence[str], *, stop_first: bool = False, force: bool = False) -> None:
        await self._supervisor.reload(engines, stop_first=stop_first, force=force)

    async def abort(self, engines: Sequence[str], reason: str) -> None:
        await self._supervisor.abort(engines, reason)

    async def drain(self, endpoint: str) -> None:
        self._registry.drain(endpoint)

    async def resume(self, endpoint: str) -> None:
        self._registry.resume(endpoint)

    async def force_breaker(self, endpoint: str, state: Literal["open", "closed"] | None) -> None:
        self._registry.force(endpoint, state)


class Policies:
    """Implements gateway.core.ports.PolicyTester with what is in force."""

    def __init__(self, gateway: Gateway) -> None:
        self._plane = gateway.plane

    def test(self, principal: Principal, model: str, operation: str) -> dict[str, Any]:
        snapshot = self._plane.current()
        entry = snapshot.models.get(model)
        name = model if entry is None else entry.name
        decision = snapshot.authorizer.decide(principal, InferenceRequest(operation, b"", model, {}, None))
        reading = [g.name for g in snapshot.spec.guardrails if any(matches(pattern, name) for pattern in g.models)]
        return {
            "allow": decision.allow,
            "reason": decision.reason,
            "rule": decision.rule,
            "limits": [limit.name for limit, _ in LimitRules(snapshot.spec.limits).applying(principal, name)],
            "guardrails": reading,
        }


class Log:
    """Implements gateway.core.ports.AuditReader over the local log of this process."""

    def __init__(self, gateway: Gateway) -> None:
        spec = gateway.spec
        self._keys = Path(spec.state_dir) / "keys"
        self._directory = local_sink(spec.audit, spec.state_dir, "0").directory

    def _reader(self) -> LogReader:
        return LogReader(self._directory, load_verifier(self._keys / PUBLIC_KEY))

    def tail(self, count: int) -> list[dict[str, Any]]:
        return self._reader().tail(count)

    def verify(self) -> dict[str, Any]:
        return self._reader().verify()

    def export(
        self,
        *,
        request_id: str | None = None,
        tenant: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[bytes]:
        return self._reader().export(request_id=request_id, tenant=tenant, kind=kind, since=since, until=until)

    def public_keys(self) -> list[dict[str, Any]]:
        path = self._keys / PUBLIC_KEY
        return [{"id": load_verifier(path).key_id, "algorithm": "Ed25519", "pem": path.read_text(encoding="ascii")}]


class Check:
    """Implements admin.context.ResourceCheck: builds what the resource says, and throws it away."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "guardrails":
            await asyncio.to_thread(self._guardrail, body)
        elif kind == "limits":
            validate.bounds(msgspec.convert(body, LimitSpec), "", lambda path, message: ConfigError(message, path=path))
        elif kind in ("engines", "models"):
            await self._gateway.check(kind, str(body["name"]), body)

    def _guardrail(self, body: dict[str, Any]) -> None:
        plugins = self._gateway.plugins
        spec = with_plain_settings(msgspec.convert(body, GuardrailSpec), plugins.schemas())
        assert isinstance(spec, GuardrailSpec)
        try:
            plugins.guardrail(spec, _no_files, local=False)
        except ConfigError as error:
            raise ConfigError(error.message, path="settings" if spec.type in plugins.guardrails else "type") from None


def _no_files(name: str) -> str:
    """A file of this machine is named by the configuration file only: not by somebody far away, and not for replicas that lack it."""
    raise ValueError("settings that name a file belong into the configuration file; give the values themselves")


def release() -> str:
    """The version that is installed; "0" in a source tree."""
    try:
        return version("gatehouse")
    except PackageNotFoundError:
        return "0"


def verify_offline(directory: Path, public_key: Path) -> dict[str, Any]:
    """Verifies an audit log with nothing but its files and the public key. Raises ConfigError, OSError."""
    verifier: CheckpointVerifier = load_verifier(public_key)
    return verify_log(directory, verifier).as_dict()
