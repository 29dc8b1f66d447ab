"""Gateway tokens in the process that has the store: its keys, their rotation, and the signature of every token.

Only this process signs. A data worker reads what strangers send, so it has the public keys and nothing that could make a token that lasts
longer than the worker; it asks for each token over its feed, and the audit log of this process has each before it is handed out.

The keys are resources of the store, the private part sealed (gateway.store.seal), so all replicas share them; one that is new is numbered,
and of two replicas that make the same number one wins. A new key is published PUBLISH_SECONDS before it signs, so that everybody knows it
by then. One that no longer signs loses its private part, and stays known for as long as a token of it can be valid.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import floor
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.identity.revocations import RevocationBook
from gateway.app.store.following import Followed
from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.errors import (
    AlreadyExists,
    AuditUnavailable,
    ConfigError,
    GatehouseError,
    LimitExceeded,
    NotFound,
    Overloaded,
    RequestError,
)
from gateway.core.ports import AuditLog
from gateway.core.secret import Secret
from gateway.core.specs import GatewayTokensSpec
from gateway.core.specs.identity import MAX_TOKEN_SECONDS
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner
from gateway.core.throttle import Buckets
from gateway.core.tokens import KEY_ID, Mint, Minted
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future
from gateway.identity.gateway_tokens import claims_of, encoded
from gateway.identity.token_keys import TokenKeys, name_of, text_of

log = logging.getLogger("gatehouse.identity")

KIND: Final = "token_keys"
PUBLISH_SECONDS: Final = 300.0
"""Between the publication of a key and its first signature: longer than anybody remembers the old set of keys."""
SLACK_SECONDS: Final = 60.0
"""How far the clocks of replicas, and the times at which they look, may differ."""
BURST: Final = 30
SECONDS: Final = 1.0
"""Tokens that one subject may have at once, and one more in each of these periods."""


@dataclass(frozen=True)
class Key:
    """One signing key. number: of its resource. signs_from: when it begins to sign, in seconds since the epoch. private: None once it has
    been erased, or where it cannot be opened."""

    number: int
    kid: str
    x: str
    created: float
    signs_from: float
    private: Ed25519PrivateKey | None
    sealed: bool

    @property
    def name(self) -> str:
        return f"{self.number:06}"


class TokenService:
    """Life: `start` once the store has been started, then `heard` for the feed and `look` now and then; the owner ends its tasks.

    keys: where the public keys go. settings: those in force. revoked: where a withdrawn key is noted for what outlives its tokens. ahead:
    seconds by which this machine's clock is ahead of the store's; None while that is not known. Keys come and go by the store's clock, on
    which all replicas agree: one whose own is a day ahead would erase what tokens of the others are still verified with.
    """

    def __init__(
        self,
        store: ControlStore,
        keys: TokenKeys,
        audit: AuditLog,
        settings: Callable[[], GatewayTokensSpec],
        owner: TaskOwner,
        revoked: RevocationBook,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        ahead: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        self.ahead = ahead
        self._store, self._public, self._audit, self._settings, self._revoked = store, keys, audit, settings, revoked
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._keys: tuple[Key, ...] = ()
        self._pace = Buckets(self._clock, BURST, SECONDS)
        self._followed = Followed(store, KIND, self._take, owner)
        self.start, self.heard = self._followed.start, self._followed.heard
        self.issued = 0

    def _take(self, found: list[Resource]) -> None:
        self._keys = tuple(sorted(map(self._key, found), key=lambda key: key.number))
        self._public.replace({key.kid: key.x for key in self._keys})

    def _key(self, resource: Resource) -> Key:
        body, number = resource.body, int(resource.name)
        x, sealed = str(body["x"]), body.get("sealed")
        private = None
        if sealed is not None:
            known = next((key for key in self._keys if key.x == x), None)
            private = known.private if known is not None else self._opened(str(sealed), x)
        return Key(number, name_of(x), x, resource.created, float(body["signs_from"]), private, sealed is not None)

    def _opened(self, sealed: str, x: str) -> Ed25519PrivateKey | None:
        try:
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self._store.unseal(Secret(sealed).reveal(), _purpose(x)).reveal()))
        except (ConfigError, ValueError) as error:
            log.error("a signing key of gateway tokens cannot be opened here: %s", error)
            return None

    # --- keys

    async def look(self) -> None:
        """Makes the first key, the next one when it is due, and clears away what is over. A store that does not answer is left to the next
        time."""
        settings = self._settings()
        try:
            if settings.enabled:
                await self._keep_up(settings)
            if self.ahead() is not None:
                await self._clear()
        except GatehouseError as error:
            log.warning("the signing keys of gateway tokens could not be rotated or cleared away: %s", error.message)

    async def _keep_up(self, settings: GatewayTokensSpec) -> None:
        now = self._now()
        newest = max((key.signs_from for key in self._keys if key.private is not None), default=None)
        if newest is None:
            await self._make(0.0)
        elif self.ahead() is not None and now >= newest + settings.rotate - min(PUBLISH_SECONDS, settings.rotate / 2):
            await self._make(min(PUBLISH_SECONDS, settings.rotate / 2))

    async def _make(self, after: float, actor: str = "gatehouse", *, dry_run: bool = False) -> None:
        """A new key that signs after so many seconds; or the one that another replica has just made."""
        async with self._followed.lock:
            if self._followed.stale:
                await self._followed.read()
            private = Ed25519PrivateKey.generate()
            x = text_of(private.public_key().public_bytes_raw())
            sealed = self._store.seal(Secret(private.private_bytes_raw().hex()), _purpose(x))
            number = max((key.number for key in self._keys), default=0) + 1
            body = {"x": x, "sealed": sealed, "signs_from": self._now() + after}
            try:
                await self._store.create(KIND, f"{number:06}", body, actor=actor, dry_run=dry_run)
            except AlreadyExists:
                log.info("another replica has made the next key of gateway tokens")
            if not dry_run:
                await self._followed.read()

    async def _clear(self) -> None:
        """Erases the private part of what no longer signs, and forgets what no valid token can be signed with."""
        now = self._now()
        for key in self._keys:
            successor = min((other.signs_from for other in self._keys if other.number > key.number), default=None)
            if successor is None or now < successor + SLACK_SECONDS:
                continue
            try:
                if now >= successor + MAX_TOKEN_SECONDS + 2 * SLACK_SECONDS:
                    await self._store.delete(KIND, key.name, actor="gatehouse")
                elif key.sealed:
                    await self._store.update(KIND, key.name, {"x": key.x, "signs_from": key.signs_from}, actor="gatehouse")
            except NotFound:
                pass  # another replica was faster

    def _signing(self) -> Key | None:
        """The newest key whose time has come; before that of the first, the first."""
        able = [key for key in self._keys if key.private is not None]
        now = self._now()
        return next((key for key in reversed(able) if key.signs_from <= now), able[0] if able else None)

    def _now(self) -> float:
        """By the store's clock."""
        return self._clock.wall() - (self.ahead() or 0.0)

    # --- tokens

    async def mint(self, wanted: Mint) -> Minted:
        """Signs a token, once the audit log has it. Raises LimitExceeded, AuditUnavailable, StoreUnavailable, RequestError."""
        settings, grant = self._settings(), wanted.grant
        if not settings.enabled:
            raise NotFound("This gateway issues no tokens.")
        who = (grant.tenant, grant.subject)
        if wait := self._pace.wait(who):
            raise LimitExceeded("Too many tokens were asked for; use one until it expires.", retry_after=wait)
        self._pace.take(who)
        key = self._signing()
        if key is None:
            await self._make(0.0)
            key = self._signing()
        if key is None or key.private is None:
            raise Overloaded("No key to sign tokens with can be opened here.", retry_after=5.0)
        now = self._clock.wall()
        token_id = urlsafe_b64encode(self._entropy.bytes(16)).rstrip(b"=").decode()
        try:
            claims = claims_of(grant, settings, token_id, now)
        except ValueError:
            raise RequestError("The token that was sent is about to expire.", code="invalid_request", param="subject_token") from None
        await self._record(wanted, token_id, claims.exp, key.kid, now)
        token = Secret(encoded(claims, key.kid, key.private))
        self.issued += 1
        return Minted(token=token, token_id=token_id, expires=float(claims.exp), lifetime=float(max(1, floor(claims.exp - now))))

    async def _record(self, wanted: Mint, token_id: str, expires: int, kid: str, now: float) -> None:
        grant = wanted.grant
        detail: dict[str, Any] = {
            "method": wanted.method,
            "credential": grant.sources[0].kind if grant.sources else "",
            "user": grant.user,
            "scope": None if grant.scope is None else list(grant.scope),
            "actors": list(grant.actors),
            "source": grant.sources[0].token_id if grant.sources else "",
            "expires": expires,
            "kid": kid,
            "peer": wanted.peer,
            "request_id": wanted.request_id,
        }
        if not self._audit.accepting:
            raise AuditUnavailable("The audit log cannot take records, so no token was issued.")
        await as_future(
            self._audit.event(EventRecord(now, "token_issued", f"{grant.tenant}/{grant.subject}", token_id, "ok", detail, (grant.tenant,)))
        )

    # --- for operators

    def views(self) -> list[dict[str, Any]]:
        """The keys, the oldest first. state: `next`, `signing`, `former` (its tokens still count)."""
        signing = self._signing()
        found = []
        for key in self._keys:
            later = signing is not None and key.number > signing.number
            state = "next" if later else "signing" if key is signing else "former"
            found.append({"id": key.kid, "state": state, "created": key.created, "signs_from": key.signs_from})
        return found

    async def rotate(self, after: float, actor: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Makes a new key that signs after so many seconds; tokens of the others go on counting. Raises StoreUnavailable, RequestError."""
        self._insist()
        await self._make(after, actor, dry_run=dry_run)
        return self.views()

    async def withdraw(self, kid: str, actor: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Refuses all tokens of a key from now on; of the last one that can sign only after a new one was made. Ends the schedules that
        were made with them. Raises NotFound, StoreUnavailable."""
        self._insist()
        key = next((key for key in self._keys if key.kid == kid), None)
        if key is None:
            raise NotFound(f"There is no key {kid[:64]!r}.")
        if not dry_run and not any(other.private is not None and other is not key for other in self._keys):
            await self._make(0.0, actor)
        try:
            noted = ("token", self._settings().issuer, KEY_ID + kid, None, None, "signing key withdrawn", actor)
            await self._revoked.revoke(*noted, dry_run=dry_run)
        except RequestError as error:  # there is no room
            log.error("schedules of jobs that were made with tokens of the withdrawn key %s could not be ended: %s", kid, error.message)
        await self._store.delete(KIND, key.name, actor=actor, dry_run=dry_run)
        async with self._followed.lock:
            await self._followed.read()
        return self.views()

    def _insist(self) -> None:
        if not self._settings().enabled:
            raise RequestError("This gateway issues no tokens: identity.gateway_tokens has no issuer.", code="invalid_request")

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        yield CounterMetricFamily("gatehouse_tokens_issued", "Gateway tokens issued", value=self.issued)
        yield GaugeMetricFamily("gatehouse_token_keys", "Keys that gateway tokens are verified with", value=len(self._keys))


def _purpose(x: str) -> str:
    """The purpose with which a private key is sealed, so that it opens for this public key only."""
    return f"token_keys {x}"
