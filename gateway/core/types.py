"""What phases hand to one another: small classes with slots, compared and hashed by identity unless said otherwise."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw, Struct

Headers = dict[bytes, bytes]
"""Request headers: names in lower case, one value each (repeated ones joined by ", "; repeated sensitive ones are refused)."""

Priority = Literal["interactive", "standard", "batch"]


class Peer:
    """The other end of a connection. `trusted`: its forwarding headers count. `certificate`: DER of a verified client certificate."""

    __slots__ = ("address", "certificate", "trusted")

    def __init__(self, address: str, trusted: bool = False, certificate: bytes | None = None) -> None:
        self.address, self.trusted, self.certificate = address, trusted, certificate


class Principal:
    """An authenticated caller. One object per credential while it is valid, so that decisions can be memoised by identity.

    id: the key's or subject's name. kind: api_key, oidc, ldap, mtls, gateway_token. models: patterns it may use ("*", "demo-*").
    operations: those it may call; empty: all. limits: names of limits that apply to it beside those that match it.
    claims: what conditions may read.
    """

    __slots__ = ("claims", "expires", "id", "kind", "limits", "models", "operations", "priority", "roles", "tenant")

    def __init__(
        self,
        id: str,
        tenant: str,
        kind: str,
        models: tuple[str, ...] = (),
        priority: Priority = "standard",
        roles: tuple[str, ...] = (),
        expires: float | None = None,
        claims: dict[str, Any] | None = None,
        operations: tuple[str, ...] = (),
        limits: tuple[str, ...] = (),
    ) -> None:
        self.id, self.tenant, self.kind, self.models = id, tenant, kind, models
        self.priority, self.roles, self.expires, self.claims = priority, roles, expires, claims or {}
        self.operations, self.limits = operations, limits

    def __repr__(self) -> str:
        return f"Principal({self.tenant}/{self.id})"


class InferenceRequest(Struct, eq=False):
    """The typed view of a request: `view` is what policy reads; what is forwarded is `fields` (JSON: top-level keys with the
    client's own bytes as values) or `raw` (tensors).

    operation: chat, completions, embeddings, rerank, classify, infer. model: the public name asked for.
    prompt_tokens: an estimate until the engine counts (for tensors: elements). max_tokens: the bound on what may be generated
    (0: nothing is). content: the header lines about the body that the engine gets. version: of the model, where the path names one.
    """

    operation: str
    path: bytes
    model: str
    fields: dict[str, Raw]
    view: Any
    stream: bool = False
    include_usage: bool = False
    prompt_tokens: int = 0
    max_tokens: int = 0
    content: bytes = b"content-type: application/json\r\n"
    raw: bytes = b""
    version: str = ""


class Decision(Struct, frozen=True):
    """The outcome of authorisation. `reason` is for the caller (never the policy's text), `rule` for the audit log."""

    allow: bool
    reason: str
    rule: str


class Usage(Struct, frozen=True):
    """Tokens of one exchange. `estimated`: the engine did not count, so the relayed chunks were."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False


class Verdict(Struct, frozen=True):
    """What a guardrail says of a text: allow, rewrite (with `texts`, one for each that was read), block or hold."""

    action: Literal["allow", "rewrite", "block", "hold"]
    guardrail: str = ""
    reason: str = ""
    texts: tuple[str, ...] = ()


ALLOW = Verdict("allow")


class ResponseHead:
    """Status and headers (lower-case names) of an engine's answer."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class IntentRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: what is about to be done, written before anything is forwarded. Times in seconds since the epoch."""

    time: float
    request_id: str
    tenant: str
    principal: str
    credential: str
    peer: str
    operation: str
    model: str
    stream: bool
    bytes: int
    body_hash: str = ""
    rule: str = ""
    config: int = 0
    detail: dict[str, Any] | None = None


class OutcomeRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: how it ended. outcome: ok, denied, failed, cancelled, timeout. A denial before an intent has its fields here."""

    time: float
    request_id: str
    outcome: str
    status: int
    code: str = ""
    tenant: str = ""
    principal: str = ""
    peer: str = ""
    operation: str = ""
    model: str = ""
    endpoint: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    bytes: int = 0
    body_hash: str = ""
    duration_ms: float = 0.0
    guardrail: str = ""
    detail: dict[str, Any] | None = None


class EventRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: something that is not a request: an administrative write, a start, a reload, a breaker, a flood of failed logins."""

    time: float
    event: str
    actor: str = ""
    target: str = ""
    outcome: str = "ok"
    detail: dict[str, Any] | None = None


AuditRecord = IntentRecord | OutcomeRecord | EventRecord
