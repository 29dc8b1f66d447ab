"""Login by client certificate: the connection's, which TLS has verified, or the one that a trusted proxy forwards.

A certificate that is revoked, out of time or no client's is refused, whatever else the request has. A good one is the login if the headers
have no credential; beside one it only counts as a fact (`source.certificate` of conditions). What a certificate says is read once and
remembered by its SHA-256; whether it is revoked is asked at each request, so that open connections end with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from gateway.core.errors import ConfigError, GatehouseError, Overloaded
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs.mtls import MtlsPrincipalSpec, MtlsSpec
from gateway.core.stamps import Stamps, stamps
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Login, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity import client_cert
from gateway.identity.certificate import NAMES, Names, Pattern, Unacceptable, filled, issuer_of, read, unknown_placeholders
from gateway.identity.client_cert import Malformed, Verifier
from gateway.identity.credentials import invalid_credentials, presented
from gateway.identity.revocation_list import POLL_SECONDS, OutOfDate, RevocationList, Unusable, authorities
from gateway.identity.revocation_list import read as read_list

log = logging.getLogger("gatehouse.identity")

REMEMBERED: Final = 16384
"""Certificates."""


class Known:
    """A certificate that was read. names: None for one that never counts. generation, chain: of the revocation list, and the certificates
    above it, that `revoked` and `known_issuer` are from."""

    __slots__ = ("begins", "chain", "expires", "generation", "known_issuer", "names", "principal", "revoked")

    def __init__(self, names: Names | None, principal: Principal | None) -> None:
        self.names, self.principal = names, principal
        self.begins, self.expires = (0.0, 0.0) if names is None else (names.begins, names.expires)
        self.generation = -1
        self.chain: tuple[bytes, ...] = ()
        self.revoked: bool | None = None
        self.known_issuer = False


class MtlsAuthenticator:
    """Life: `start`, `aclose`."""

    def __init__(self, spec: MtlsSpec, context: AuthenticatorContext) -> None:
        self._spec, self._clock = spec, context.clock
        self._entries = [(Pattern(entry.match), entry) for entry in spec.principals]
        self._known: dict[str, Known] = {}
        self._forwarded: dict[bytes, tuple[bytes, tuple[bytes, ...], float]] = {}
        """What headers have been verified: by their digest the certificate, those above it, and until when."""
        self._verifier: Verifier | None = None
        self._seen: Stamps = ()
        self._read_at: Stamps = ()
        self._crl: RevocationList | None = None
        if spec.crl is not None:
            self._crl = RevocationList(spec.crl, spec.authorities, context.clock, context.record, context.gauge)
        self._tasks = TaskOwner("mtls")

    async def start(self) -> None:
        if self._crl is not None:
            await self._crl.load()
            self._tasks.every(POLL_SECONDS, self._crl.look, name="revocation list")
        if self._spec.forwarded is not None:
            self._seen = await asyncio.to_thread(stamps, self._spec.authorities)
            await self.look()
            self._tasks.every(POLL_SECONDS, self.look, name="authorities")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def look(self) -> None:
        """Reads the authorities of forwarded certificates once their files have changed and come to rest."""
        seen = await asyncio.to_thread(stamps, self._spec.authorities)
        at_rest, self._seen = seen == self._seen, seen
        if not at_rest or seen == self._read_at:
            return
        self._read_at = seen
        try:
            trusted = await asyncio.to_thread(authorities, self._spec.authorities)
        except Unusable as error:
            log.error("identity.mtls.authorities: %s; the previous ones stay in force", error)
            return
        self._verifier = Verifier(trusted, require_eku=self._spec.require_eku)
        self._forwarded.clear()

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        thumbprint = peer.thumbprint
        if not thumbprint:
            if peer.asserted is None:
                return None
            thumbprint = self._take(peer)
        known = self._known.get(thumbprint)
        if known is None:
            known = self._read(thumbprint, peer.certificate or b"")
        now = self._clock.wall()
        if known.names is None or not known.begins <= now < known.expires:
            raise invalid_credentials()
        if self._crl is not None:
            self._ask(self._crl, known, known.names, peer.chain, now)
        found = presented(headers)
        return known.principal if found is None or not found[1] else None

    def _ask(self, crl: RevocationList, known: Known, names: Names, chain: tuple[bytes, ...], now: float) -> None:
        """Raises for a certificate that is revoked, or of which that cannot be said. One whose issuer is neither configured nor known from
        the connection never counts: that issuer may be revoked."""
        if known.generation != crl.generation or known.chain != chain:
            above = [issuer_of(one) for one in chain]
            known.generation, known.chain = crl.generation, chain
            known.revoked = crl.revokes(names.issuer_der, names.issuer_key, names.serial)
            if any(crl.revokes(one.issuer, one.key, one.serial) for one in above):
                known.revoked = True
            known.known_issuer = crl.configured(names.issuer_der) or any(one.subject == names.issuer_der for one in above)
        if known.revoked:
            raise invalid_credentials()
        if not known.known_issuer:
            raise unreliable()
        if self._spec.on_crl_failure == "closed" and (known.revoked is None or not crl.reliable(now)):
            raise unreliable()

    def _read(self, thumbprint: str, der: bytes) -> Known:
        try:
            names = read(der, thumbprint, require_eku=self._spec.require_eku)
            known = Known(names, self._principal(names))
        except Unacceptable as reason:
            log.info("a client certificate does not count: %s", reason)
            known = Known(None, None)
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[thumbprint] = known
        return known

    def _principal(self, names: Names) -> Principal | None:
        for pattern, entry in self._entries:
            matched = pattern.found(names)
            if matched is None:
                continue
            id = filled(entry.id, names, matched)
            user = filled(entry.user, names, matched) if entry.user is not None else id
            if not id or not user:
                raise Unacceptable("it lacks the name that its principal is called by")
            return principal_of(entry, names, id, user)
        return None

    def _take(self, peer: Peer) -> str:
        """Verifies what a proxy forwards and makes it the peer's certificate. Raises for anything that is none."""
        assert peer.asserted is not None
        if self._verifier is None:
            raise invalid_credentials()
        value, chain = peer.asserted
        digest, now = client_cert.digest(value, chain), self._clock.wall()
        der, above, until = self._forwarded.get(digest, (b"", (), 0.0))
        if until <= now:
            self._forwarded.pop(digest, None)
            try:
                der, between = client_cert.parse(value, chain)
                until, above = self._verifier.verify(der, between, now)
            except Malformed as reason:
                log.info("a forwarded client certificate does not count: %s", reason)
                raise invalid_credentials() from None
            if len(self._forwarded) >= REMEMBERED:
                del self._forwarded[next(iter(self._forwarded))]
            self._forwarded[digest] = (der, above, until)
        return peer.verified(der, above)


def principal_of(entry: MtlsPrincipalSpec, names: Names, id: str, user: str) -> Principal:
    return Principal(
        id,
        entry.tenant,
        "mtls",
        entry.models,
        entry.priority,
        entry.roles,
        names.expires,
        user=user,
        groups=entry.groups,
        login=Login("certificate", issuer=names.issuer, certificate=names.sha256),
    )


def unreliable() -> GatehouseError:
    return Overloaded(
        "It cannot be checked at the moment whether this client certificate is revoked.", code="revocation_unavailable", retry_after=5.0
    )


def build(settings: MtlsSpec, context: AuthenticatorContext) -> MtlsAuthenticator:
    return MtlsAuthenticator(settings, context)


def check(settings: MtlsSpec) -> None:
    """Raises ConfigError for settings, and for files, that cannot be used from the beginning. A list that is only out of date is no error:
    then no certificate counts. Blocks."""
    for number, entry in enumerate(settings.principals):
        for name, template in (("id", entry.id), ("user", entry.user)):
            if template is not None and (wrong := unknown_placeholders(template)):
                known = ", ".join(f"{{{one}}}" for one in NAMES)
                message = f"{wrong[0]} is nothing that a certificate has; there are {known}"
                raise ConfigError(message, path=f"identity.mtls.principals[{number}].{name}")
    try:
        trusted = authorities(settings.authorities)
    except Unusable as error:
        raise ConfigError(str(error), path="identity.mtls.authorities") from None
    if settings.crl is None or settings.on_crl_failure == "open":
        return
    try:
        read_list(settings.crl, trusted, time.time())
    except OutOfDate:
        return
    except Unusable as error:
        raise ConfigError(str(error), path="identity.mtls.crl") from None
