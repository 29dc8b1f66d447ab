"""Opaque access tokens: the issuer is asked whether they are valid, and whose they are (RFC 7662).

Asked last, so that no API key is ever sent to an issuer. What it said is remembered by the SHA-256 of the whole token, for `cache` seconds
or until the token expires; a refusal for a shorter while. One question at a time about each token, a bounded number in all.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections import OrderedDict
from hashlib import sha256
from inspect import isdatadescriptor
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from gateway.core.clock import Clock
from gateway.core.deadlines import within
from gateway.core.errors import EngineError, Overloaded
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs.identity import IntrospectionSpec, OidcSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.binding import bind, bound_to, has_proved
from gateway.identity.claims import login_of, meets, numeric_date, principal_of
from gateway.identity.credentials import MAX_CREDENTIAL_BYTES, looks_like_jwt, nobody_knew, presented_token
from gateway.identity.jose import Malformed
from gateway.identity.revocations import Revocations
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.identity")

REMEMBERED: Final = 16384
REFUSED_SECONDS: Final = 10.0
"""How long an invalid token is not asked about again."""
FLIGHTS: Final = 256
ASK_SECONDS: Final = 5.0
MAX_ANSWER: Final = 64 * 1024
_TOKEN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")
"""Characters of a bearer token (RFC 6750, 2.1)."""
_KEPT: Final = frozenset(("expires", "login", "key_salt", "tenant_salt"))
_CLAIMED: Final = tuple(name for name, field in vars(Principal).items() if isdatadescriptor(field) and name not in _KEPT)
"""What an issuer's answer decides of a principal. A compiled class has no `__slots__`; its fields are descriptors in either build."""


class Worth:
    """What an issuer said of a token: its principal, or None, until `until` (monotonic)."""

    __slots__ = ("principal", "until")

    def __init__(self, principal: Principal | None, until: float) -> None:
        self.principal, self.until = principal, until


class IntrospectionAuthenticator:
    """The opaque tokens of one issuer. Life: `start`, `aclose`."""

    def __init__(self, spec: OidcSpec, introspection: IntrospectionSpec, clock: Clock, revocations: Revocations | None = None) -> None:
        self._revocations = Revocations() if revocations is None else revocations
        self._spec, self._clock, self._introspection = spec, clock, introspection
        self._audiences = frozenset(spec.audiences)
        parts = urlsplit(introspection.url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._origin = f"{parts.scheme}://{parts.netloc}"
        user, secret = quote_plus(introspection.client_id), quote_plus(introspection.client_secret.reveal())  # RFC 6749, 2.3.1
        self._headers = {
            "accept": "application/json",
            "content-type": "application/x-www-form-urlencoded",
            "authorization": f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}",
        }
        self._known: OrderedDict[bytes, Worth] = OrderedDict()
        self._flights: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._tasks = TaskOwner(f"introspection at {spec.name}")
        self._client: EndpointClient | None = None
        self._away = False
        self.questions = 0
        """How many questions were asked, for tests."""

    async def start(self) -> None:
        """Nothing is asked before the first token."""
        self._client = EndpointClient(self._origin, tls=self._spec.tls, connect_timeout=ASK_SECONDS, max_idle=8)
        self._tasks.every(0.1, self._tick, name="tick")

    async def aclose(self) -> None:
        await self._tasks.aclose()
        if self._client is not None:
            await self._client.aclose()

    async def _tick(self) -> None:
        if self._client is not None:
            self._client.tick(self._clock.monotonic())

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """None for other credentials, and for a token that is not valid here: another issuer may know it."""
        value = presented_token(headers)
        if value is None:
            return None
        digest = sha256(value).digest()
        known = self._known.get(digest)
        if known is not None and known.until > self._clock.monotonic():
            principal = known.principal
            if principal is None or principal.expires is None or principal.expires > self._clock.wall():
                return self._admitted(principal, headers, peer)
        if looks_like_jwt(value) or len(value) > MAX_CREDENTIAL_BYTES or not _TOKEN.issuperset(value):
            return None
        return self._asked(digest, value, headers, peer)

    def _asked(self, digest: bytes, value: bytes, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        flight = self._flights.get(digest)
        if flight is None:
            if len(self._flights) >= FLIGHTS:
                raise Overloaded("Too many tokens are being looked up.", retry_after=1.0)
            flight = self._flights[digest] = self._tasks.spawn(self._ask(digest, value), name="ask")
            flight.add_done_callback(lambda _: self._flights.pop(digest, None))
        return self._tasks.wait(self._waited(flight, headers, peer), name="wait")

    async def _waited(self, flight: asyncio.Task[Principal | None], headers: Headers, peer: Peer) -> Principal | None:
        return self._admitted(await asyncio.shield(flight), headers, peer)

    def _admitted(self, principal: Principal | None, headers: Headers, peer: Peer) -> Principal | None:
        """Refuses a token that is revoked, or whose sender lacks what it is bound to, with the error for an unknown token."""
        if principal is None:
            return None
        if (self._revocations.active and self._revocations.refuse(principal)) or not has_proved(principal, headers, peer):
            raise nobody_knew(headers)
        return principal

    async def _ask(self, digest: bytes, value: bytes) -> Principal | None:
        before = self._known.pop(digest, None)
        try:
            async with within(ASK_SECONDS):
                answer = await self._question(value)
        except (EngineError, TimeoutError, ValueError, RecursionError, OSError) as error:
            if not self._away:
                log.warning("the issuer %s cannot be asked about tokens: %s", self._spec.name, str(error) or "too late")
            self._away = True
            raise Overloaded("Tokens of this kind cannot be checked at the moment.", code="issuer_unavailable", retry_after=5.0) from None
        if self._away:
            log.info("the issuer %s answers again", self._spec.name)
        self._away = False
        principal = self._judged(answer)
        if before is not None and before.principal is not None and principal is not None and _same(before.principal, principal):
            before.principal.expires = principal.expires
            principal = before.principal  # decisions are remembered by the object
        self._known[digest] = Worth(
            principal, self._clock.monotonic() + (REFUSED_SECONDS if principal is None else self._introspection.cache)
        )
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return principal

    async def _question(self, value: bytes) -> dict[str, Any]:
        assert self._client is not None, "the authenticator has not been started"
        self.questions += 1
        form = urlencode({"token": value.decode("ascii"), "token_type_hint": "access_token"})
        reply = await ask(self._client, "POST", self._path, self._headers, form.encode(), max_body=MAX_ANSWER)
        if reply.head.status != 200:
            raise ValueError(f"status {reply.head.status}")
        answer = json.loads(reply.body)
        if not isinstance(answer, dict) or not isinstance(answer.get("active"), bool):
            raise ValueError("the answer is not one of RFC 7662")
        return answer

    def _judged(self, answer: dict[str, Any]) -> Principal | None:
        """The caller; None for a token that is not valid here."""
        try:
            return self._principal(answer) if answer["active"] else None
        except Malformed as reason:
            log.debug("a token was refused: %s", reason)
            return None

    def _principal(self, answer: dict[str, Any]) -> Principal:
        spec, now = self._spec, self._clock.wall()
        if answer.get("iss", spec.issuer) != spec.issuer:
            raise Malformed("it is another issuer's")
        bound, kind = bound_to(answer, spec.binding), str(answer.get("token_type", "Bearer")).lower()
        if kind not in (("bearer", "access_token", "dpop") if bound.key else ("bearer", "access_token")):
            raise Malformed("it is of another type")
        audience = answer.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        ours = isinstance(audiences, list) and any(isinstance(one, str) and one in self._audiences for one in audiences)
        if not ours and (audience is not None or self._introspection.check_audience):
            raise Malformed("it is for another audience")
        expires, begins = numeric_date(answer.get("exp")), numeric_date(answer.get("nbf"))
        if expires is None and "exp" in answer:
            raise Malformed("its end is not a time")
        if expires is None:
            expires = now + self._introspection.cache  # it is asked about again
        if expires <= now - spec.leeway or (begins is not None and begins > now + spec.leeway):
            raise Malformed("it is not valid now")
        if not meets(answer, spec.require):
            raise Malformed("a required claim is not as it must be")
        principal = principal_of(answer, spec.claims, "oidc", expires)
        principal.login = login_of(answer, principal, spec.issuer)
        bind(principal, bound, spec.issuer)
        return principal


def build(settings: OidcSpec, context: AuthenticatorContext) -> IntrospectionAuthenticator:
    if settings.introspection is None:
        raise ValueError("there is nothing to ask")
    return IntrospectionAuthenticator(settings, settings.introspection, context.clock, context.revocations)


def _same(one: Principal, other: Principal) -> bool:
    """Whether two principals differ in nothing but the end of their token."""
    holders = [None if login is None else (login.certificate, login.key) for login in (one.login, other.login)]
    return holders[0] == holders[1] and all(getattr(one, name) == getattr(other, name) for name in _CLAIMED)
