"""Gateway tokens as they are passed between packages: the request for a token, what it is to say, and the answer.

Only the process that has the store signs (gateway.app.identity.tokens). A worker asks it with a `Mint`; the answer is `Minted`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from gateway.core.messages import Ask, Message
from gateway.core.secret import Secret
from gateway.core.specs import GatewayTokensSpec
from gateway.core.types import Principal

MAX_SOURCES: Final = 4
KEY_ID: Final = "key:"
"""Prefix of a withdrawn signing key's name in the `jti` of its revocation, which also ends what outlives the tokens that the key signed. No
token has such a `jti`."""
"""How many logins and tokens in a row a token may come from."""
MAX_ACTORS: Final = 8
"""How many may act for each other in a row."""


def recipient_of(settings: GatewayTokensSpec) -> str:
    """The `aud` of gateway tokens."""
    return settings.audience or settings.issuer


class Source(Message, frozen=True, kw_only=True):
    """A login or token that a gateway token comes from. kind: of the login (`ldap`, `oidc`, ...). Times in seconds since the epoch."""

    kind: str
    issuer: str
    token_id: str = ""
    issued: float | None = None


class ActorSource(Source, frozen=True, kw_only=True):
    """A login or token of an actor, `id`, by which it was let act. user: the actor's."""

    id: str
    user: str = ""


class Grant(Message, frozen=True, kw_only=True):
    """What a token is to say. latest: when it must end. scope: permissions that it is narrowed to; None: not narrowed.

    certificate: SHA-256, in hex, of the client certificate that the token is bound to; key: thumbprint of the key that it is bound to; ""
    for none. groups, roles, scopes: as the login named them. actors: the current one first; acting: the credentials by which they act.
    sources: the newest first. Times in seconds since the epoch.
    """

    subject: str
    tenant: str
    user: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    scope: tuple[str, ...] | None = None
    agent: str = ""
    actors: tuple[str, ...] = ()
    session: str = ""
    strength: str = ""
    auth_time: float | None = None
    acr: str = ""
    amr: tuple[str, ...] = ()
    may_act: str = ""
    may_act_issuer: str = ""
    acting: tuple[ActorSource, ...] = ()
    certificate: str = ""
    key: str = ""
    sources: tuple[Source, ...] = ()
    latest: float | None = None


class Minted(Message, frozen=True, kw_only=True):
    """A token. expires: in seconds since the epoch. lifetime: in seconds."""

    token: Secret
    token_id: str
    expires: float
    lifetime: float


class Mint(Ask[Minted], frozen=True, kw_only=True):
    """Asks for a token. peer, request_id: of the caller, for the audit log. method: `login` or `exchange`."""

    grant: Grant
    method: str
    peer: str
    request_id: str


Issue = Callable[[Mint], Awaitable[Minted]]
"""Raises LimitExceeded, AuditUnavailable, StoreUnavailable, Overloaded, RequestError."""


class PublicKeys(Protocol):
    """jwks: the JWK Set (RFC 7517) of the keys that gateway tokens are signed with."""

    @property
    def jwks(self) -> bytes: ...


class TokenDesk(NamedTuple):
    """What the data listener needs to hand out tokens."""

    issue: Issue
    keys: PublicKeys


def sources_of(principal: Principal) -> tuple[Source, ...]:
    """The logins and tokens from which a token for this caller is made, the newest first."""
    found: list[Source] = []
    login = principal.login
    while login is not None:
        found.append(Source(kind="" if found else principal.kind, issuer=login.issuer, token_id=login.token_id, issued=login.issued))
        login = login.source
    return tuple(found)


def acting_of(principal: Principal) -> tuple[ActorSource, ...]:
    """The credentials by which others act for this caller, in the form for a token that is issued for it."""
    acting = () if principal.login is None else principal.login.acting
    return tuple(
        ActorSource(kind="", id=one.id, user=one.user, issuer=one.issuer, token_id=one.token_id, issued=one.issued) for one in acting
    )


def as_actor(principal: Principal) -> tuple[ActorSource, ...]:
    """The credentials by which this caller will act for somebody else: its own and those that they come from."""
    return tuple(
        ActorSource(kind=one.kind, id=principal.id, user=principal.user, issuer=one.issuer, token_id=one.token_id, issued=one.issued)
        for one in sources_of(principal)
    )
