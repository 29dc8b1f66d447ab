"""Gateway tokens: signed by the gateway itself (Ed25519, RFC 8037), short, for itself alone. Reading and writing them.

They cannot be taken for other tokens, nor others for them: `typ` is `gatehouse-at+jwt` (RFC 8725, 3.11), which no authenticator of another
issuer accepts, and a token counts here only with exactly that header, issuer, audience and one of the gateway's own keys. All begin with
the same bytes, so that other credentials are told apart without being decoded. What was verified is remembered by the SHA-256 of the whole
token until it expires or a key is withdrawn; revocations count on each request.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64encode
from hashlib import sha256
from math import ceil
from typing import Any, Final, Protocol

import msgspec

from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs import GatewayTokensSpec
from gateway.core.specs.identity import Binding
from gateway.core.tokens import MAX_ACTORS, MAX_SOURCES, Grant, recipient_of
from gateway.core.types import Acting, Headers, Login, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity import jose
from gateway.identity.binding import Bound, bound_to, confirmation, proved
from gateway.identity.claims import actors_of
from gateway.identity.credentials import CHALLENGE, invalid_credentials, presented_token
from gateway.identity.jose import Malformed
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys

log = logging.getLogger("gatehouse.identity")

TYPE: Final = "gatehouse-at+jwt"
_HEAD: Final = b'{"typ":"gatehouse-at+jwt","alg":"EdDSA","kid":"'
PREFIX: Final = urlsafe_b64encode(_HEAD[: len(_HEAD) // 3 * 3])
"""The beginning of every gateway token."""
_BEARER: Final = b"Bearer " + PREFIX
REMEMBERED: Final = 16384
LEEWAY: Final = 30.0
"""Seconds by which the clocks of two replicas may differ. Nothing is added to the end of a token's life."""
_SHA256: Final = sha256().copy


class TokenClaims(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The payload (RFC 7519, RFC 8693 for `act` and `scope`). `gh_...`: what only the gateway itself reads."""

    iss: str
    sub: str
    aud: str
    exp: int
    iat: int
    jti: str
    scope: str | None = None
    act: dict[str, Any] | None = None
    may_act: dict[str, Any] | None = None
    cnf: dict[str, Any] | None = None
    auth_time: float | None = None
    acr: str = ""
    amr: tuple[str, ...] = ()
    gh_tenant: str
    gh_user: str = ""
    gh_groups: tuple[str, ...] = ()
    gh_roles: tuple[str, ...] = ()
    gh_scopes: tuple[str, ...] = ()
    gh_agent: str = ""
    gh_session: str = ""
    gh_strength: str = ""
    gh_sources: tuple[tuple[str, str, str, float | None], ...] = ()
    """(kind, issuer, token id, issued) of what it was issued for, the newest first."""
    gh_acting: tuple[tuple[str, str, str, str, float | None], ...] = ()
    """(actor, user, issuer, token id, issued) of the credentials by which its actors act."""


class Signer(Protocol):
    def sign(self, data: bytes, /) -> bytes: ...


def encoded(claims: TokenClaims, kid: str, key: Signer) -> str:
    """The token in compact form."""
    head = json.dumps({"typ": TYPE, "alg": "EdDSA", "kid": kid}, separators=(",", ":")).encode()
    signed = _b64(head) + b"." + _b64(msgspec.json.encode(claims))
    return (signed + b"." + _b64(key.sign(signed))).decode()


def claims_of(grant: Grant, spec: GatewayTokensSpec, token_id: str, now: float) -> TokenClaims:
    """What a token says. Raises ValueError when its life would be over already."""
    issued = int(now)
    ends = now + spec.ttl if grant.latest is None else min(now + spec.ttl, grant.latest)
    expires = int(ends)  # never beyond what it was issued for
    if expires <= now:
        raise ValueError("it would have expired")
    act: dict[str, Any] | None = None
    for actor in reversed(grant.actors):
        act = {"sub": actor} if act is None else {"sub": actor, "act": act}
    return TokenClaims(
        iss=spec.issuer,
        sub=grant.subject,
        aud=recipient_of(spec),
        exp=expires,
        iat=issued,
        jti=token_id,
        scope=None if grant.scope is None else " ".join(grant.scope),
        act=act,
        may_act=_may_act(grant),
        cnf=confirmation(Bound(grant.certificate, grant.key)),
        auth_time=grant.auth_time,
        acr=grant.acr,
        amr=grant.amr,
        gh_tenant=grant.tenant,
        gh_user=grant.user,
        gh_groups=grant.groups,
        gh_roles=grant.roles,
        gh_scopes=grant.scopes,
        gh_agent=grant.agent,
        gh_session=grant.session,
        gh_strength=grant.strength,
        gh_sources=tuple((one.kind, one.issuer, one.token_id, one.issued) for one in grant.sources),
        gh_acting=tuple((one.id, one.user, one.issuer, one.token_id, one.issued) for one in grant.acting),
    )


def _may_act(grant: Grant) -> dict[str, Any] | None:
    if not grant.may_act:
        return None
    return {"sub": grant.may_act, **({"iss": grant.may_act_issuer} if grant.may_act_issuer else {})}


def principal_of(claims: TokenClaims, binding: Binding = "optional", signer: str = "") -> Principal:
    """The caller. binding: to what the token must be bound. signer: name of the key. Raises Malformed."""
    bound = bound_to({} if claims.cnf is None else {"cnf": claims.cnf}, binding)
    source: Login | None = None
    if len(claims.gh_sources) > MAX_SOURCES or len(claims.gh_acting) > MAX_ACTORS * MAX_SOURCES:
        raise Malformed("it was exchanged too many times")
    for _, issuer, token_id, issued in reversed(claims.gh_sources):
        source = Login(issuer=issuer, token_id=token_id, issued=issued, source=source)
    login = Login(
        claims.gh_strength,
        issuer=claims.iss,
        token_id=claims.jti,
        issued=float(claims.iat),
        auth_time=claims.auth_time,
        acr=claims.acr,
        amr=claims.amr,
        groups=claims.gh_groups,
        roles=claims.gh_roles,
        actors=actors_of(claims.act),
        may_act=str((claims.may_act or {}).get("sub", "")),
        may_act_issuer=str((claims.may_act or {}).get("iss", "")),
        acting=tuple(Acting(*one) for one in claims.gh_acting),
        certificate=bound.certificate,
        key=bound.key,
        source=source,
        signer=signer,
    )
    return Principal(
        claims.sub,
        claims.gh_tenant,
        "gateway_token",
        roles=claims.gh_roles,
        expires=float(claims.exp),
        user=claims.gh_user,
        groups=claims.gh_groups,
        scopes=claims.gh_scopes,
        agent=claims.gh_agent,
        session=claims.gh_session,
        login=login,
        reach=None if claims.scope is None else tuple(claims.scope.split()),
    )


class GatewayTokenAuthenticator:
    """The tokens that this gateway, or another replica of it, has issued."""

    def __init__(self, spec: GatewayTokensSpec, clock: Clock, keys: TokenKeys, revocations: Revocations) -> None:
        self._spec, self._clock, self._keys, self._revocations = spec, clock, keys, revocations
        self._recipient = recipient_of(spec)
        self._known: dict[bytes, Principal] = {}
        self._version = keys.version

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """None for every other credential."""
        value = headers.get(b"authorization")
        if value is not None and value.startswith(_BEARER) and b"x-api-key" not in headers and b"api-key" not in headers:
            token = value[7:]
        else:
            found = presented_token(headers)
            if found is None or not found.startswith(PREFIX):
                return None
            token = found
        hashed = _SHA256()
        hashed.update(token)
        digest = hashed.digest()
        if self._version != self._keys.version:
            self._version = self._keys.version
            self._known.clear()
        principal = self._known.get(digest)
        if principal is None:
            principal = self._verified(token)
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[digest] = principal
        if principal.expires <= self._clock.wall():  # type: ignore[operator]  # they all expire
            del self._known[digest]
            raise AuthenticationError("The token has expired.", code="expired_token", headers=CHALLENGE)
        if self._revocations.active and self._revocations.refuse(principal):
            raise invalid_credentials()
        return proved(principal, headers, peer)

    def _verified(self, value: bytes) -> Principal:
        """Raises AuthenticationError."""
        try:
            token = jose.read(value)
            key = self._keys.get(token.kid)
            if token.type != TYPE or token.algorithm != "EdDSA" or key is None:
                raise Malformed("it is not one of ours")
            jose.verify(token, key)
            return self._judged(token.claims, token.kid or "")
        except Malformed as reason:
            log.debug("a gateway token was refused: %s", reason)
            rejection = invalid_credentials()
        raise rejection

    def _judged(self, members: dict[str, Any], signer: str) -> Principal:
        try:
            claims = msgspec.convert(members, TokenClaims)
        except msgspec.ValidationError:
            raise Malformed("its claims cannot be read") from None
        if claims.iss != self._spec.issuer or claims.aud != self._recipient:
            raise Malformed("it is for somebody else, or from somebody else")
        if claims.iat > ceil(self._clock.wall() + LEEWAY) or not claims.jti or not claims.sub or not claims.gh_tenant:
            raise Malformed("it is not valid yet, or says too little")
        return principal_of(claims, self._spec.binding, signer)


def build(settings: GatewayTokensSpec, context: AuthenticatorContext) -> GatewayTokenAuthenticator:
    keys = TokenKeys() if context.token_keys is None else context.token_keys
    revocations = Revocations() if context.revocations is None else context.revocations
    return GatewayTokenAuthenticator(settings, context.clock, keys, revocations)


def _b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
