"""The admin API's smaller ports, each made from the one object it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Raw, json, to_builtins

from engines.host.supervisor import Supervisor
from gateway.app.audit.policy_texts import FOLDER as POLICIES
from gateway.audit.bundle import bundle
from gateway.audit.checkpoint_tree import prove_consistency
from gateway.audit.crypto import PUBLIC_KEY, CheckpointVerifier, load_signer, load_verifier
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.proof import prove
from gateway.audit.reader import LogReader
from gateway.audit.signing_keys import endorsements, published, rotate, trusted
from gateway.audit.sinks import local_sink
from gateway.audit.sinks.file import list_segments
from gateway.core.audit_questions import AuditFilter, AuditScope
from gateway.core.clock import SystemClock
from gateway.core.ports import Authenticator
from gateway.core.slices import Steps, in_slices, portions
from gateway.core.snapshot import Snapshot
from gateway.core.specs import AuditSpec, ConfigSpec, GuardrailSpec
from gateway.core.types import Headers, InferenceRequest, Peer, Principal, Trial
from gateway.core.waiting import Maybe
from gateway.core.wire import WireApi
from gateway.pipeline.plane import DataPlane
from gateway.routing.build import clearance
from gateway.routing.mirror import Mirror
from gateway.routing.registry import EndpointRegistry
from gateway.wire.table import APIS
from policies.callers import concerning
from policies.facts import Asked
from policies.limits import AT_ONCE, rules_of
from policies.patterns import matches


class CurrentAuthenticator(Authenticator):
    """The data plane's authenticator, whichever is in force. Refuses callers who are stopped (gateway.core.standing)."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        snapshot = self._plane.current()
        found = snapshot.identity.authenticate(headers, peer)
        return self._pinned(snapshot, found) if isinstance(found, Awaitable) else self._admitted(found)

    async def _pinned(self, snapshot: Snapshot, answer: Awaitable[Principal | None]) -> Principal | None:
        """Holds the Snapshot until its authenticator has answered: what it was built with stays open for so long."""
        return self._admitted(await answer)

    def _admitted(self, principal: Principal | None) -> Principal | None:
        if principal is not None and self._plane.standing.active:
            self._plane.standing.admit(principal, admin=True)
        return principal


class ModelControls:
    """Implements gateway.core.ports.ModelControl: the supervisor for processes, the registry of endpoints for traffic."""

    def __init__(self, supervisor: Supervisor, registry: EndpointRegistry | Mirror) -> None:
        self._supervisor, self._registry = supervisor, registry

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


class PolicyTrial:
    """Implements gateway.core.ports.PolicyTester with the policies in force. country: of an address, "" if not known."""

    def __init__(self, plane: DataPlane, country: Callable[[str], str] = lambda address: "") -> None:
        self._plane, self._country = plane, country

    async def explain(self, principal: Principal, trial: Trial) -> dict[str, Any]:
        snapshot = self._plane.current()
        entry = snapshot.models.get(trial.model)
        name = trial.model if entry is None else entry.name
        api = next((api for api in APIS if api.operation == trial.operation), WireApi(trial.operation))
        tools = {"tools": Raw(json.encode([{"name": tool} for tool in trial.tools]))} if trial.tools else {}
        request = InferenceRequest(
            api, b"", trial.model, tools, None, stream=trial.stream, max_tokens=trial.max_tokens, version=trial.version
        )
        peer = Peer(trial.source)
        peer.thumbprint = trial.certificate
        now = SystemClock.wall() if trial.time is None else trial.time
        asked = Asked(principal, request, name, peer, trial.bytes, self._country, lambda: now)
        question = (principal, trial.model, trial.operation, trial.version)

        def read(fact: str) -> Any:
            return trial.label if fact == "request.label" else asked.read(fact)

        decision = snapshot.authorizer.judge(*question, read)
        considered = snapshot.authorizer.considered(*question, read)
        limits = snapshot.spec.limits
        rules, places = await in_slices(rules_of(limits)), await in_slices(rules_of(limits, places=True))
        if missing := rules.missing(principal):
            return {
                "allow": False,
                "reason": f"the limit {missing[0]!r} of this key is not in force",
                "rule": "",
                "rules": considered,
                "limits": [],
                "guardrails": [],
            }
        return {
            "allow": decision.allow,
            "reason": decision.reason,
            "rule": decision.rule,
            "rules": considered,
            "limits": list(
                dict.fromkeys(limit.name for one in (rules, places) for limit, _ in one.applying(principal, name, trial.operation))
            ),
            "guardrails": await in_slices(_reading(snapshot.spec.guardrails, name, principal)),
            **_labelled(snapshot, principal, name, trial.label),
        }


def _reading(guardrails: Sequence[GuardrailSpec], model: str, principal: Principal) -> Steps[list[str]]:
    """The guardrails that read a model's requests or answers for this caller."""
    found: list[str] = []
    for some in portions(guardrails, AT_ONCE):
        fitting = [one for one in some if any(matches(pattern, model) for pattern in one.models)]
        found += [one.name for one in fitting if (concerns := concerning(one.tenants, one.roles)) is None or concerns(principal)]
        yield
    return found


def _labelled(snapshot: Snapshot, principal: Principal, model: str, label: str) -> dict[str, list[str]]:
    """The labels of a request, and the engines of its model that may see it."""
    known, entry = snapshot.labels, snapshot.models.get(model)
    labels: frozenset[str] = frozenset()
    if known is not None:
        labels = known.of_tenant(principal.tenant) | known.of_model(model) | ({label} if label in known else labels)
    pool = [] if entry is None else [member if isinstance(member, str) else member.engine for member in entry.spec.pool]
    seen = {engine.name: clearance(engine) for engine in snapshot.spec.engines if engine.name in pool}
    engines = [name for name in pool if (allowed := seen.get(name, labels)) is None or labels <= allowed]
    return {"labels": sorted(labels), "engines": engines}


VERIFY_TRIES: Final = 5


class LocalAuditLog:
    """Implements gateway.core.ports.AuditReader over the log of this process and of all that write beside it."""

    def __init__(self, audit: AuditSpec, state_dir: str, opener: Opener = CLOSED) -> None:
        self._keys, self._opener = Path(state_dir) / "keys", opener
        self._directory = local_sink(audit, state_dir, "0").directory

    def _reader(self) -> LogReader:
        return LogReader(self._directory, self._verifier(), self._opener)

    def tail(self, count: int, writer: str | None = None) -> list[dict[str, Any]]:
        return self._reader().tail(count, writer)

    def verify(self, scope: AuditScope = AuditScope()) -> dict[str, Any]:  # noqa: B008 - immutable
        """Again while retention takes segments away meanwhile: of one that was listed and is gone nothing can be said."""
        for _ in range(VERIFY_TRIES):
            there = self._names()
            try:
                report = self._reader().verify(scope)
            except FileNotFoundError:
                continue
            if report["ok"] or there == self._names():
                return report
        return self._reader().verify(scope)

    def _names(self) -> list[str]:
        return sorted(path.name for segments in list_segments(self._directory).values() for _, path in segments)

    def export(self, wanted: AuditFilter = AuditFilter(), format: str = "jsonl") -> Iterator[bytes]:  # noqa: B008 - immutable
        return self._reader().export(wanted) if format == "jsonl" else self._reader().export_as(wanted, format)

    def prove(self, request_id: str) -> list[dict[str, Any]]:
        return prove(self._directory, load_signer(str(self._keys.parent)), SystemClock(), request_id, self._opener)

    def newest(self, since: float | None = None, text: str = "") -> Iterator[dict[str, Any]]:
        return self._reader().newest(since, text)

    def public_keys(self) -> list[dict[str, Any]]:
        return published(self._verifier(), self._directory)

    def bundle(self, request_id: str) -> bytes | None:
        state_dir = self._keys.parent
        return bundle(self._directory, state_dir / POLICIES, load_signer(str(state_dir)), SystemClock(), request_id, self._opener)

    def endorsements(self) -> list[dict[str, Any]]:
        return [to_builtins(one) for one in endorsements(self._directory)]

    def consistency(self, writer: str, first: int, second: int | None = None) -> dict[str, Any]:
        return prove_consistency(self._directory, trusted(self._verifier(), self._directory), writer, first, second)

    def rotate_key(self) -> dict[str, Any]:
        found: dict[str, Any] = to_builtins(rotate(str(self._keys.parent), self._directory, SystemClock()))
        return found

    def _verifier(self) -> CheckpointVerifier:
        return load_verifier(self._keys / PUBLIC_KEY)


def logins(spec: ConfigSpec) -> list[dict[str, Any]]:
    """The issuers where people log in with `gatehouse login`. dpop: what their tokens may be bound to, where that counts here."""
    dpop = spec.identity.dpop
    proofs = None if dpop is None else {"algorithms": list(dpop.algorithms), "urls": list(dpop.urls)}
    return [
        {
            "name": issuer.name,
            "issuer": issuer.issuer,
            "client_id": issuer.login.client_id,
            "scopes": list(issuer.login.scopes),
            "resource": issuer.login.resource,
            "dpop": proofs,
        }
        for issuer in spec.identity.oidc
        if issuer.login is not None
    ]
