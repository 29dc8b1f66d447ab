"""API keys: those of the configuration, held only as SHA-256, and those of the store.

Keys are looked up by the SHA-256 of the whole key. So no table ever holds a key, and the time of a look-up says nothing about its
characters. Clients send the same head with each request on a connection, which keeps it to compare the next one with
(gateway.transport.repeated): so does its Peer keep the SHA-256, for that very object alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from hashlib import sha256
from typing import Final

from gateway.core.clock import Clock, SystemClock
from gateway.core.plugins import AuthenticatorContext
from gateway.core.ports import KeyStore
from gateway.core.specs import ApiKeysSpec, StaticKeySpec
from gateway.core.specs.identity import MIN_KEY_LENGTH
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity import keys
from gateway.identity.credentials import MAX_CREDENTIAL_BYTES, invalid_api_key, presented

_SHA256: Final = sha256().copy
"""A fresh hash at a third of the cost: OpenSSL does not look its method up again."""


_PREFIX: Final = keys.PREFIX.encode()
_SHORTEST: Final = len(b"Bearer ") + MIN_KEY_LENGTH


class ApiKeyAuthenticator:
    """Accepts `Authorization: Bearer KEY`, `x-api-key: KEY` and `api-key: KEY`. A shorter value than MIN_KEY_LENGTH is no key, whatever
    digest the configuration has: that of a variable that was not set would let everybody in.

    A value that begins as the store's keys do is one of them, or is rejected with `invalid_api_key`. Any other unknown value is left to
    the authenticators that follow.
    """

    def __init__(self, static: Iterable[StaticKeySpec], store: KeyStore | None = None, clock: Clock | None = None) -> None:
        self._principals = {_digest(spec): static_principal(spec) for spec in static}
        self._store = store
        self._clock: Clock = clock or SystemClock()

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """The fast path: a single bearer credential that is a key of the configuration or a cached key of the store."""
        value = headers.get(b"authorization")
        if (
            value is not None
            and len(value) >= _SHORTEST
            and value.startswith(b"Bearer ")
            and b"x-api-key" not in headers
            and b"api-key" not in headers
        ):
            digest = peer.bearer_digest if peer.bearer is value else _hashed(peer, value)
            principal = self._principals.get(digest)
            if principal is None and self._store is not None:
                principal = self._store.remembered(digest, peer)
            if principal is not None:
                return principal
        return self._find(headers, peer)

    def _find(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        found = presented(headers)
        if found is None or found[0] != b"bearer":
            return None
        value = found[1]
        if len(value) > MAX_CREDENTIAL_BYTES:
            raise invalid_api_key()
        digest = sha256(value).digest()
        principal = self._principals.get(digest) if len(value) >= MIN_KEY_LENGTH else None
        if principal is not None:
            return principal
        if value and not value.startswith(_PREFIX):
            return None
        return self._stored(digest, value, peer)

    def _stored(self, digest: bytes, value: bytes, peer: Peer) -> Maybe[Principal | None]:
        if self._store is None or not value.isascii():
            raise invalid_api_key()
        key = value.decode("ascii")
        if not keys.well_formed(key):
            raise invalid_api_key()
        answer = self._store.lookup(digest, key, peer)
        if answer is None or isinstance(answer, Principal):
            return self._active(answer)
        return self._wait(answer)

    async def _wait(self, answer: Awaitable[Principal | None]) -> Principal:
        return self._active(await answer)

    def _active(self, principal: Principal | None) -> Principal:
        if principal is None or (principal.expires is not None and principal.expires <= self._clock.wall()):
            raise invalid_api_key()
        return principal


def build(settings: ApiKeysSpec, context: AuthenticatorContext) -> ApiKeyAuthenticator:
    return ApiKeyAuthenticator(settings.static, context.keys, context.clock)


def _hashed(peer: Peer, value: bytes) -> bytes:
    """The SHA-256 of the key in a value of `authorization`, which the peer remembers."""
    hashed = _SHA256()
    hashed.update(value[7:])
    digest: bytes = hashed.digest()
    peer.bearer, peer.bearer_digest = value, digest
    return digest


def _digest(spec: StaticKeySpec) -> bytes:
    if spec.key is not None:
        return keys.digest(spec.key.reveal())
    if spec.key_sha256 is None:
        raise ValueError(f"the static key {spec.id} has neither key nor key_sha256")
    return bytes.fromhex(spec.key_sha256)


def static_principal(spec: StaticKeySpec) -> Principal:
    """Whose key of the configuration it is."""
    return Principal(
        id=spec.id,
        tenant=spec.tenant,
        kind="api_key",
        models=spec.models,
        priority=spec.priority,
        roles=spec.roles,
        user=spec.user,
        groups=spec.groups,
    )
