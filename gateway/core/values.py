"""Data that a request carries through the phases: small classes with slots, compared and hashed by identity unless noted.

They are part of the compiled hot path (gateway.app.compiled), where reading an attribute of such a class is one load; msgspec's Structs
cannot be compiled and stay in gateway.core.types, from where all of them are imported.
"""

from __future__ import annotations

from typing import Literal

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
    operations: those it may call; empty: all. limits: names of limits that apply to it besides those that match it.
    user, groups, scopes: of a person or service that logged in. agent: who acts for them (RFC 8693's `act`). session: of the agent's work.
    """

    __slots__ = (
        "agent",
        "expires",
        "groups",
        "id",
        "key_salt",
        "kind",
        "limits",
        "models",
        "operations",
        "priority",
        "roles",
        "scopes",
        "session",
        "tenant",
        "tenant_salt",
        "user",
    )

    def __init__(
        self,
        id: str,
        tenant: str,
        kind: str,
        models: tuple[str, ...] = (),
        priority: Priority = "standard",
        roles: tuple[str, ...] = (),
        expires: float | None = None,
        operations: tuple[str, ...] = (),
        limits: tuple[str, ...] = (),
        *,
        user: str = "",
        groups: tuple[str, ...] = (),
        scopes: tuple[str, ...] = (),
        agent: str = "",
        session: str = "",
    ) -> None:
        self.id, self.tenant, self.kind, self.models = id, tenant, kind, models
        self.priority, self.roles, self.expires = priority, roles, expires
        self.operations, self.limits = operations, limits
        self.user, self.groups, self.scopes = user, groups, scopes
        self.agent, self.session = agent, session
        self.key_salt = self.tenant_salt = b""  # kept here by gateway.core.isolation

    def __repr__(self) -> str:
        return f"Principal({self.tenant}/{self.id})"


class Usage:
    """Tokens of one exchange; compared by value. `estimated`: the engine did not count, so the relayed chunks were counted."""

    __slots__ = ("cached_tokens", "completion_tokens", "estimated", "prompt_tokens")

    def __init__(self, prompt_tokens: int = 0, completion_tokens: int = 0, cached_tokens: int = 0, estimated: bool = False) -> None:
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens
        self.cached_tokens, self.estimated = cached_tokens, estimated

    def _key(self) -> tuple[int, int, int, bool]:
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.estimated

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Usage{self._key()}"


class ResponseHead:
    """Status and headers (names as the engine spelled them) of an engine's answer."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers

    def get(self, name: bytes) -> bytes | None:
        """The value of a header; `name` in lower case."""
        for key, value in self.headers:
            if key == name or key.lower() == name:
                return value
        return None
