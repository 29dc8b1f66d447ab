"""Data that a request carries through the phases: small classes with slots, compared and hashed by identity unless noted.

They are part of the compiled hot path (gateway.app.compiled), where reading an attribute of such a class is one load; msgspec's Structs
cannot be compiled and stay in gateway.core.types, from where all of them are imported.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal

Headers = dict[bytes, bytes]
"""Request headers: names in lower case, one value each (repeated ones joined by ", "; repeated sensitive ones are refused)."""

UNLABELLED: Final[frozenset[str]] = frozenset()
"""The data labels of most requests (gateway.core.labels)."""
Priority = Literal["interactive", "standard", "batch"]


class Peer:
    """The other end of a connection. `trusted`: its forwarding headers count. `certificate`: DER of a verified client certificate.

    thumbprint: the certificate's SHA-256 in hex, computed once; "" without one. chain: the certificates (DER) above it by which it was
    verified, as far as they are known. asserted: the headers Client-Cert and Client-Cert-Chain of a proxy that may send them; not verified
    yet. bearer: the last value of `authorization` that was read as a key (gateway.identity.api_key), and its SHA-256: where a head comes
    again, this is the very object that the connection has kept of it.
    """

    __slots__ = ("address", "asserted", "bearer", "bearer_digest", "certificate", "chain", "thumbprint", "trusted")

    def __init__(
        self,
        address: str,
        trusted: bool = False,
        certificate: bytes | None = None,
        asserted: tuple[bytes, bytes | None] | None = None,
        chain: tuple[bytes, ...] = (),
    ) -> None:
        self.address, self.trusted, self.certificate, self.asserted, self.chain = address, trusted, certificate, asserted, chain
        self.thumbprint = "" if certificate is None else sha256(certificate).hexdigest()
        self.bearer: bytes | None = None
        self.bearer_digest = b""

    def verified(self, certificate: bytes, chain: tuple[bytes, ...] = ()) -> str:
        """What was asserted has been verified: from now on it is the peer's certificate. Returns its thumbprint."""
        self.certificate, self.chain, self.asserted = certificate, chain, None
        self.thumbprint = sha256(certificate).hexdigest()
        return self.thumbprint


class Acting:
    """One credential by which an actor was let act for somebody: the actor's token, or a login or token that it came from. id, user: the
    actor's. issuer, token_id, issued: as of a Login."""

    __slots__ = ("id", "issued", "issuer", "token_id", "user")

    def __init__(self, id: str, user: str, issuer: str, token_id: str, issued: float | None) -> None:
        self.id, self.user, self.issuer, self.token_id, self.issued = id, user, issuer, token_id, issued


class Login:
    """How somebody has proved who they are, as far as it is known.

    strength: `key`, `password`, `token`, `certificate`, `mfa` (several factors), or "". issuer: of the token, or the directory's name.
    token_id: its `jti`. issued: its `iat`. auth_time: when the person proved who they are; acr, amr: how (OpenID Connect Core 1.0, 2).
    certificate: SHA-256 of the client certificate that the connection has (or that is the login), in hex. key: the thumbprint (RFC 7638) of
    the key that the token is bound to. Times in seconds since the epoch. groups, roles: what the login itself said, before the store's
    part. actors: who acts for the person, the present one first, then those before (RFC 8693, 4.1). may_act: the only one who may be made
    an actor; "" for anybody (RFC 8693, 4.4); may_act_issuer: whose subject that is, "" for anybody's. acting: the credentials of the actors
    that the gateway itself has let act; a token counts while all of them do. source: the login that a gateway token was issued for.
    signer: name of the key of the gateway that signed the token; "" for other logins.
    """

    __slots__ = (
        "acr",
        "acting",
        "actors",
        "amr",
        "auth_time",
        "certificate",
        "groups",
        "issued",
        "issuer",
        "key",
        "may_act",
        "may_act_issuer",
        "roles",
        "signer",
        "source",
        "strength",
        "token_id",
    )

    def __init__(
        self,
        strength: str = "",
        *,
        issuer: str = "",
        token_id: str = "",
        issued: float | None = None,
        auth_time: float | None = None,
        acr: str = "",
        amr: tuple[str, ...] = (),
        certificate: str = "",
        key: str = "",
        groups: tuple[str, ...] = (),
        roles: tuple[str, ...] = (),
        actors: tuple[str, ...] = (),
        may_act: str = "",
        may_act_issuer: str = "",
        acting: tuple[Acting, ...] = (),
        source: Login | None = None,
        signer: str = "",
    ) -> None:
        self.strength, self.issuer, self.token_id, self.issued, self.signer = strength, issuer, token_id, issued, signer
        self.groups, self.roles, self.actors, self.acting, self.source = groups, roles, actors, acting, source
        self.may_act, self.may_act_issuer = may_act, may_act_issuer
        self.auth_time, self.acr, self.amr, self.certificate, self.key = auth_time, acr, amr, certificate, key


class Scope:
    """Models (patterns) with the operations that may be called on them; without any, all."""

    __slots__ = ("models", "operations")

    def __init__(self, models: tuple[str, ...], operations: tuple[str, ...] = ()) -> None:
        self.models, self.operations = models, operations


class Principal:
    """An authenticated caller. One object per credential while it is valid, so that decisions can be memoised by identity.

    id: the key's or subject's name. kind: api_key, oidc, ldap, local_user, mtls, gateway_token. models: patterns it may use ("*",
    "demo-*"). operations: those it may call; empty: all. limits: names of limits that apply to it besides those that match it.
    user, groups, scopes: of a person or service that logged in. agent: who acts for them (RFC 8693's `act`). session: of the agent's work.
    The id of an API key stays the same when it is rotated. login: how they proved who they are.
    bounds: of the tenant, the groups and the like: each of them must allow a request, by any of its scopes. reach: permissions beyond which
    a narrowed token gives nothing, whatever its holder may do; None: not narrowed. personal: an API key that may do nothing but what its
    user may. networks: where the credentials of the tenant may be used (gateway.core.network); none:
    everywhere. recorded: what the audit log keeps of the caller (gateway.core.decided), once it was asked for. made: when the key was
    made that the store has (seconds since the epoch, by the database's clock): the next key of its id is another; 0.0 for other callers.
    """

    __slots__ = (
        "agent",
        "bounds",
        "expires",
        "groups",
        "id",
        "key_salt",
        "kind",
        "limits",
        "login",
        "made",
        "models",
        "networks",
        "operations",
        "personal",
        "priority",
        "reach",
        "recorded",
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
        login: Login | None = None,
        bounds: tuple[tuple[Scope, ...], ...] = (),
        personal: bool = False,
        reach: tuple[str, ...] | None = None,
    ) -> None:
        self.id, self.tenant, self.kind, self.models = id, tenant, kind, models
        self.priority, self.roles, self.expires = priority, roles, expires
        self.operations, self.limits = operations, limits
        self.user, self.groups, self.scopes = user, groups, scopes
        self.agent, self.session, self.login = agent, session, login
        self.bounds, self.personal, self.reach = bounds, personal, reach
        self.networks: tuple[str, ...] = ()
        self.recorded: Any = None
        self.made = 0.0
        self.key_salt = self.tenant_salt = b""  # kept here by gateway.core.isolation

    def entitled(
        self,
        models: tuple[str, ...],
        groups: tuple[str, ...],
        roles: tuple[str, ...],
        bounds: tuple[tuple[Scope, ...], ...],
        networks: tuple[str, ...] = (),
    ) -> Principal:
        """The same caller with other rights: a new object, so that what is remembered by identity is decided anew."""
        found = Principal(
            self.id,
            self.tenant,
            self.kind,
            models,
            self.priority,
            roles,
            self.expires,
            self.operations,
            self.limits,
            user=self.user,
            groups=groups,
            scopes=self.scopes,
            agent=self.agent,
            session=self.session,
            login=self.login,
            bounds=bounds,
            personal=self.personal,
            reach=self.reach,
        )
        found.networks, found.made = networks, self.made
        return found

    def acting(self, agent: str, session: str, user: str) -> Principal:
        """The same caller with an agent that acts for it in a session. user: the caller's user, or the one for whom it asks."""
        made = self.entitled(self.models, self.groups, self.roles, self.bounds, self.networks)
        made.agent, made.session, made.user = agent, session, user
        return made

    def __repr__(self) -> str:
        return f"Principal({self.tenant}/{self.id})"


class DeviceTime:
    """For how long a request held one of the slots that share an engine's devices, in microseconds: until the first event of a stream, and
    from then on (a whole answer's time is all of the second kind). cost: in nano-units, by the engine's rate of this version."""

    __slots__ = ("cost", "decode_us", "prefill_us", "slots", "version")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.prefill_us = self.decode_us = self.cost = 0
        self.version = ""


class Usage:
    """Tokens of one exchange; compared by value, apart from `cost` and `device`.

    cached_tokens, image_tokens, audio_tokens: parts of the prompt. reasoning_tokens, audio_completion_tokens: parts of what was generated.
    estimated: the engine did not count, so the relayed chunks were counted. has_media: there are image or audio tokens. cost: in nano-units
    of the currency of its price (gateway.core.prices), set when the exchange is settled; 0 without a price. currency: of the cost.
    device: the time of the engine's devices, if it has a rate.
    """

    __slots__ = (
        "audio_completion_tokens",
        "audio_tokens",
        "cached_tokens",
        "completion_tokens",
        "cost",
        "currency",
        "device",
        "estimated",
        "has_media",
        "image_tokens",
        "prompt_tokens",
        "reasoning_tokens",
    )

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        estimated: bool = False,
        reasoning_tokens: int = 0,
    ) -> None:
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens
        self.cached_tokens, self.estimated = cached_tokens, estimated
        self.reasoning_tokens = reasoning_tokens
        self.cost = self.image_tokens = self.audio_tokens = self.audio_completion_tokens = 0
        self.has_media = False
        self.currency = ""
        self.device: DeviceTime | None = None

    def plus(self, other: Usage) -> Usage:
        """Both together. The device's time is this one's."""
        found = Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.estimated or other.estimated,
            self.reasoning_tokens + other.reasoning_tokens,
        )
        if self.has_media or other.has_media:
            found.of_media(
                self.image_tokens + other.image_tokens,
                self.audio_tokens + other.audio_tokens,
                self.audio_completion_tokens + other.audio_completion_tokens,
            )
        found.cost, found.currency, found.device = self.cost + other.cost, self.currency or other.currency, self.device
        return found

    def of_media(self, image_tokens: int, audio_tokens: int, audio_completion_tokens: int) -> None:
        """Says which tokens were of images and of sound."""
        self.image_tokens, self.audio_tokens, self.audio_completion_tokens = image_tokens, audio_tokens, audio_completion_tokens
        self.has_media = image_tokens > 0 or audio_tokens > 0 or audio_completion_tokens > 0

    def _key(self) -> tuple[int, ...]:
        tokens = self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.estimated, self.reasoning_tokens
        return (*tokens, self.image_tokens, self.audio_tokens, self.audio_completion_tokens)

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


MOST_FINDINGS: Final = 64
"""That one guardrail keeps of one text; what it does with further ones is the same."""


class Finding:
    """What a guardrail found in a text, from `start` up to `end`. text: the text's number. score: how sure it is, 0.0 if it does not say.
    value: what stands there, from which only a keyed hash is made; no description of a Finding has it."""

    __slots__ = ("end", "entity", "score", "start", "text", "value")

    def __init__(self, entity: str, start: int, end: int, value: str = "", text: int = 0, score: float = 0.0) -> None:
        self.entity, self.start, self.end, self.value, self.text, self.score = entity, start, end, value, text, score

    def __repr__(self) -> str:
        return f"Finding({self.entity!r}, {self.start}, {self.end}, text={self.text})"
