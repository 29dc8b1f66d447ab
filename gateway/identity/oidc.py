"""Access tokens of OpenID Connect issuers: `Authorization: Bearer eyJ...`, or `DPoP eyJ...` with a proof.

A token counts when its issuer is configured, the issuer's own key signed it by an allowed algorithm, it is an access token for one of the
audiences, it is valid now, and its claims are what the settings require. Every other token gets the same answer, except that an expired
one is called expired. What was verified is remembered by the SHA-256 of the whole token until it expires or the issuer's keys change.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.core.clock import Clock
from gateway.core.deadlines import within
from gateway.core.errors import AuthenticationError, GatehouseError, Overloaded
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs import ClientTlsSpec, OidcSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity import jose
from gateway.identity.binding import bind, bound_to, proved
from gateway.identity.claims import login_of, meets, numeric_date, principal_of
from gateway.identity.credentials import CHALLENGE, invalid_credentials, looks_like_jwt, presented_token
from gateway.identity.jose import Malformed, Unverified, WrongSignature
from gateway.identity.jwks import FETCH_SECONDS, KeyRing
from gateway.identity.revocations import Revocations
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.identity")

REMEMBERED: Final = 16384
MAX_DOCUMENT: Final = 256 * 1024
_ID_TOKEN: Final = ("nonce", "at_hash", "c_hash", "s_hash")
"""Claims that only ID tokens have (OpenID Connect Core 1.0, 2 and 3.3.2.11)."""
_ACCESS_TOKEN: Final = ("scope", "scp", "client_id", "cid")
"""Claims of which an access token has one, where its `typ` does not say what it is."""


class Issuer:
    """One issuer's settings and keys."""

    def __init__(self, spec: OidcSpec, clock: Clock, on_change: Any) -> None:
        self.spec, self._clock = spec, clock
        self.keys = KeyRing(spec.name, self._fetch, clock, on_change)
        self._algorithms = frozenset(spec.algorithms)
        self._audiences = frozenset(spec.audiences)

    def judge(self, token: Unverified, key: Any) -> Principal:
        """The caller. Raises Malformed, or AuthenticationError (expired_token) for a token that was good."""
        jose.verify(token, key)
        claims, now = token.claims, self._clock.wall()
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        if not isinstance(audiences, list) or not any(isinstance(one, str) and one in self._audiences for one in audiences):
            raise Malformed("it is for another audience")
        if not is_access_token(token):
            raise Malformed("it is not an access token")
        if not meets(claims, self.spec.require):
            raise Malformed("a required claim is not as it must be")
        expires = self._valid(claims, now)
        principal = principal_of(claims, self.spec.claims, "oidc", expires)
        principal.login = login_of(claims, principal, self.spec.issuer)
        bind(principal, bound_to(claims, self.spec.binding), self.spec.issuer)
        if expires + self.spec.leeway <= now:
            raise expired()
        return principal

    def _valid(self, claims: dict[str, Any], now: float) -> float:
        """The end of its life. Raises Malformed when it has none, when it is too far away, or when the token is not valid yet."""
        leeway = self.spec.leeway
        expires, issued, begins = (numeric_date(claims.get(name)) for name in ("exp", "iat", "nbf"))
        if expires is None or expires > now + self.spec.max_lifetime + leeway:
            raise Malformed("it does not expire, or too late")
        for name, when in (("iat", issued), ("nbf", begins)):
            if name in claims and (when is None or when > now + leeway):
                raise Malformed("it is not valid yet")
        return expires

    def allows(self, algorithm: str) -> bool:
        return algorithm in self._algorithms

    async def _fetch(self) -> bytes:
        url = self.spec.jwks_url
        if url is None:
            found = json.loads(await get(self.spec.issuer.rstrip("/") + "/.well-known/openid-configuration", self.spec.tls))
            if not isinstance(found, dict) or found.get("issuer") != self.spec.issuer:
                raise ValueError("the discovery document is another issuer's")
            url = found.get("jwks_uri")
            if not isinstance(url, str) or urlsplit(url).scheme not in _schemes(self.spec.issuer):
                raise ValueError("the discovery document names no address for its keys, or one without TLS")
        return await get(url, self.spec.tls)


class OidcAuthenticator:
    """The tokens of one issuer. Life: `start`, `aclose`."""

    def __init__(self, spec: OidcSpec, clock: Clock, revocations: Revocations | None = None) -> None:
        self._clock, self._revocations = clock, Revocations() if revocations is None else revocations
        self._issuer = Issuer(spec, clock, self._forget)
        self._known: dict[bytes, Principal] = {}
        self._tasks = TaskOwner("oidc")

    async def start(self) -> None:
        await self._issuer.keys.start()

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._issuer.keys.aclose()

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """None for other credentials, and for tokens of other issuers."""
        token = presented_token(headers)
        if token is None or not looks_like_jwt(token):
            return None
        digest = sha256(token).digest()
        principal = self._known.get(digest)
        if principal is not None and principal.expires is not None and principal.expires > self._clock.wall():
            if self._revocations.active and self._revocations.refuse(principal):
                raise invalid_credentials()
            return proved(principal, headers, peer)
        return self._first(token, digest, headers, peer)

    def _first(self, value: bytes, digest: bytes, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        self._known.pop(digest, None)
        try:
            token = jose.read(value)
            issuer = self._issuer
            if token.claims.get("iss") != issuer.spec.issuer:
                return None
            if not issuer.allows(token.algorithm):
                raise Malformed("the algorithm is not allowed")
            key = issuer.keys.known(token.kid, token.algorithm)
            if key is not None:
                return proved(self._remember(digest, issuer.judge(token, key)), headers, peer)
            fetch = issuer.keys.fetched()
        except WrongSignature:  # forged, or signed with a new key that has the name of an old one
            fetch = issuer.keys.fetched(doubted=True)
            if fetch is None:
                raise invalid_credentials() from None
        except Malformed as reason:
            log.debug("a token was refused: %s", reason)
            raise invalid_credentials() from None
        if fetch is None:
            raise self._unknown()
        return self._tasks.wait(self._after(fetch, token, digest, headers, peer), name="keys")

    async def _after(self, fetch: Awaitable[None], token: Unverified, digest: bytes, headers: Headers, peer: Peer) -> Principal:
        keys = self._issuer.keys
        try:
            async with within(2 * FETCH_SECONDS):
                await fetch
                key = keys.known(token.kid, token.algorithm)
                if key is None and (own := keys.fetched()) is not None:  # it has waited for a refresh that began before its key was there
                    await own
                    key = keys.known(token.kid, token.algorithm)
            if key is not None:
                return proved(self._remember(digest, self._issuer.judge(token, key)), headers, peer)
        except Malformed as reason:
            log.debug("a token was refused: %s", reason)
            raise invalid_credentials() from None
        except TimeoutError:
            raise unavailable() from None
        raise self._unknown()

    def _unknown(self) -> GatehouseError:
        """What to raise for a key that is not known. An issuer that cannot be reached makes no credential wrong."""
        return unavailable() if self._issuer.keys.unreachable else invalid_credentials()

    def _remember(self, digest: bytes, principal: Principal) -> Principal:
        if self._revocations.refuse(principal):
            raise Malformed("it is revoked")
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[digest] = principal
        return principal

    def _forget(self) -> None:
        """Keys have changed: every token is verified again."""
        self._known.clear()


def is_access_token(token: Unverified) -> bool:
    """Whether it is an access token, and no ID token, logout token or the like (RFC 9068, 2.1; RFC 8725, 3.11 and 3.12)."""
    if not jose.is_access_type(token) or any(name in token.claims for name in _ID_TOKEN):
        return False
    if token.claims.get("typ") == "ID" or "events" in token.claims:
        return False
    return token.type == "at+jwt" or any(name in token.claims for name in _ACCESS_TOKEN)


def expired() -> AuthenticationError:
    return AuthenticationError("The token has expired.", code="expired_token", headers=CHALLENGE)


def unavailable() -> GatehouseError:
    return Overloaded("Tokens of this issuer cannot be checked at the moment.", code="issuer_unavailable", retry_after=5.0)


def build(settings: OidcSpec, context: AuthenticatorContext) -> OidcAuthenticator:
    return OidcAuthenticator(settings, context.clock, context.revocations)


async def get(url: str, tls: ClientTlsSpec | None) -> bytes:
    """The body at an address; no redirect is followed. Raises EngineError, ValueError; the caller bounds the time."""
    parts = urlsplit(url)
    client = EndpointClient(f"{parts.scheme}://{parts.netloc}", tls=tls, connect_timeout=FETCH_SECONDS, max_idle=1)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        reply = await ask(client, "GET", path, {"accept": "application/json"}, max_body=MAX_DOCUMENT)
    finally:
        await client.aclose()
    if reply.head.status != 200:
        raise ValueError(f"status {reply.head.status}")
    if len(reply.body) > MAX_DOCUMENT:
        raise ValueError(f"more than {MAX_DOCUMENT} bytes")
    return reply.body


def _schemes(issuer: str) -> tuple[str, ...]:
    """An issuer without TLS, which is on this machine, may have keys without TLS."""
    return ("https",) if issuer.startswith("https:") else ("https", "http")
