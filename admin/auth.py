"""Authenticates callers of the admin listener: the data plane's Authenticator, roles of credential and bindings, a throttle for failures.

Every failed login gets the same text and code. Failures are counted per credential and address: a stale client gets 429 while others behind
its address get in. An address is throttled only after failures with many different credentials, and even then a credential that got in
before still does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any, Final, TypeVar

from admin.permissions import ROLES, Access, Grant
from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError, GatehouseError, LimitExceeded, RequestError, StoreUnavailable
from gateway.core.ports import Authenticator
from gateway.core.storage import ControlStore, Resource
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Driver, Maybe

T = TypeVar("T")
BURST: Final = 20.0
PER_SECOND: Final = 1.0
MAX_PEERS: Final = 4096
MAX_KNOWN: Final = 1024
"""How many hashes of successful credentials are remembered."""
_SENSITIVE: Final = (b"authorization", b"x-api-key", b"api-key")
_CHALLENGE: Final = (("www-authenticate", 'Bearer realm="gatehouse admin"'),)
BINDINGS_SECONDS: Final = 1.0


class Throttle:
    """Failed logins by name (an address, or a credential at one): `BURST` at once, `PER_SECOND` more each second. Bounded: the name that
    failed least recently is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raises LimitExceeded when the peer has failed too often."""
        left = self._left(peer)
        if left < 1.0:
            raise LimitExceeded("Too many failed logins; try again later.", retry_after=(1.0 - left) / PER_SECOND)

    def failed(self, peer: str) -> bool:
        """Counts a failure; True when it is the first in a while and should be recorded."""
        left = self._left(peer)
        self._tokens[peer] = (left - 1.0, self._clock.monotonic())
        self._tokens.move_to_end(peer)
        if len(self._tokens) > MAX_PEERS:
            self._tokens.popitem(last=False)
        return left >= BURST or left < 2.0

    def fresh(self, peer: str) -> bool:
        """Whether it has no recent failures."""
        return self._left(peer) >= BURST

    def _left(self, peer: str) -> float:
        tokens, stamp = self._tokens.get(peer, (BURST, 0.0))
        return min(BURST, tokens + (self._clock.monotonic() - stamp) * PER_SECOND)


class Bindings:
    """Roles bound to principals in the store, reread after a second. The last read counts while the store is unavailable."""

    def __init__(self, store: ControlStore | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._read_at = float("-inf")
        self._grants: dict[tuple[str, str], tuple[Grant, ...]] = {}
        if store is not None:
            store.subscribe(lambda change: self._forget() if change.kind == "bindings" else None)

    def _forget(self) -> None:
        self._read_at = float("-inf")

    async def of(self, principal: Principal) -> tuple[Grant, ...]:
        if self._store is not None and self._clock.monotonic() - self._read_at >= BINDINGS_SECONDS:
            await self._read(self._store)
        return self._grants.get((principal.tenant, principal.id), ())

    async def _read(self, store: ControlStore) -> None:
        found: dict[tuple[str, str], tuple[Grant, ...]] = {}
        cursor: str | None = None
        try:
            while True:
                page = await store.list("bindings", limit=1000, cursor=cursor)
                for resource in page.items:
                    holder, grant = binding_of(resource)
                    found[holder] = (*found.get(holder, ()), grant)
                cursor = page.cursor
                if cursor is None:
                    break
        except StoreUnavailable:
            return
        self._grants, self._read_at = found, self._clock.monotonic()


def binding_of(resource: Resource) -> tuple[tuple[str, str], Grant]:
    """Which principals (tenant and credential) are bound to which roles. The resource's tenant is the principal's."""
    body = resource.body
    return (resource.tenant, str(body.get("principal", ""))), Grant.of(str(body.get("role", "")), resource.tenant)


class Gate:
    """Authenticates callers of the admin listener."""

    def __init__(self, authenticator: Authenticator, store: ControlStore | None, clock: Clock) -> None:
        self._authenticator, self._bindings = authenticator, Bindings(store, clock)
        self._by_address, self._by_credential = Throttle(clock), Throttle(clock)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def enter(self, scope: Any) -> Access:
        """The caller of a request. Raises LimitExceeded, AuthenticationError, RequestError, or what the store raises."""
        peer = peer_of(scope)
        headers = headers_of(scope)
        credential = digest_of(headers)
        if credential not in self._known:
            self._by_address.check(peer.address)
        self._by_credential.check(_at(peer, credential))
        try:
            principal = await settled(self._authenticator.authenticate(headers, peer))
        except AuthenticationError as error:
            failure = self._failure(error, peer, credential)
            raise failure from None
        if principal is None:
            raise self._failure(AuthenticationError("", code="missing_credentials"), peer, credential)
        self._known[credential] = None
        self._known.move_to_end(credential)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        own = tuple(Grant.of(role, principal.tenant) for role in principal.roles if role in ROLES)
        return Access(principal, own + await self._bindings.of(principal))

    def _failure(self, error: AuthenticationError, peer: Peer, credential: bytes) -> LoginFailed:
        self._known.pop(credential, None)
        who = _at(peer, credential)
        fresh = self._by_credential.fresh(who)
        first = self._by_credential.failed(who)
        if fresh:  # repetitions count against the credential alone
            first = self._by_address.failed(peer.address)
        if error.code == "missing_credentials":
            return LoginFailed("No usable credential was sent. Send an API key as 'Authorization: Bearer gh_...'.", error.code, first)
        return LoginFailed("The credential is not valid.", "invalid_credentials", first)


class LoginFailed(AuthenticationError):
    """`first`: record it; later failures of a series are only throttled."""

    def __init__(self, message: str, code: str, first: bool) -> None:
        super().__init__(message, code=code, headers=_CHALLENGE)
        self.first = first


def digest_of(headers: Headers) -> bytes:
    """A hash of the credential, of any kind."""
    return sha256(b"\0".join(headers.get(name, b"") for name in _SENSITIVE)).digest()


def _at(peer: Peer, credential: bytes) -> str:
    return f"{peer.address} {credential.hex()}"


def peer_of(scope: Any) -> Peer:
    client = scope.get("client")
    return Peer(client[0] if client else "local")


def headers_of(scope: Any) -> Headers:
    """The headers as authenticators read them. Raises RequestError when one that identifies the caller is repeated."""
    found: Headers = {}
    for name, value in scope["headers"]:
        lower = name.lower()
        if lower in found:
            if lower in _SENSITIVE:
                raise RequestError("The request carries two different credentials; send one.", code="ambiguous_credentials")
            value = found[lower] + b", " + value
        found[lower] = value
    return found


async def settled(answer: Maybe[T]) -> T:
    """Awaits an authenticator's answer inside a task. It may await the hot path's Signals, which tasks cannot handle."""
    if not inspect.isawaitable(answer):
        return answer
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run(waiting: Awaitable[T]) -> None:
        value = await waiting
        if not future.done():
            future.set_result(value)

    def done(error: BaseException | None) -> None:
        if error is not None and not future.done():
            future.set_exception(
                error if isinstance(error, GatehouseError) else RuntimeError(f"the authenticator failed ({type(error).__name__})")
            )

    driver = Driver(run(answer), done)
    driver.start()
    try:
        return await future
    except asyncio.CancelledError:
        driver.cancel(asyncio.CancelledError())
        raise
