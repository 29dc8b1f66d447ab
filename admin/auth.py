"""Authenticates callers of the admin listener: the data plane's Authenticator, its roles and bindings, a throttle for failures.

Every failed login gets the same text and code. A credential is always checked first, and only one that fails is ever throttled (429): no
number of failures, from whatever address, keeps a valid one out. Failures are counted by credential and address, and those with ever new
credentials by address. Passwords, which could be guessed, are throttled before the check by whoever checks them (gateway.core.throttle).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

from admin import step_up
from admin.permissions import Access
from admin.ports import RoleBook
from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError, GatehouseError, LimitExceeded, RequestError
from gateway.core.ports import Authenticator
from gateway.core.proofs import INVALID_PROOF, PROOF, USE_NONCE, note_target, proven
from gateway.core.specs import StepUpSpec
from gateway.core.throttle import Buckets, neighbourhood
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Driver, Maybe

T = TypeVar("T")
BURST: Final = 20
SECONDS: Final = 1.0
"""Failures that are answered as such: so many at once, and one more in each of these periods. Further ones get 429."""
MAX_PEERS: Final = 4096
PEER: Final = "gatehouse.peer"
"""Where the listener puts the Peer (gateway.server.admin_protocol)."""
CREDENTIAL: Final = "gatehouse.credential"
"""Where the headers of a caller who has logged in are kept, to look again later (`Gate.again`)."""
_SENSITIVE: Final = (b"authorization", b"x-api-key", b"api-key")
_CHALLENGE: Final = (("www-authenticate", 'Bearer realm="gatehouse admin"'),)


class Gate:
    """Authenticates callers of the admin listener. rules: those of step-up in force."""

    def __init__(
        self, authenticator: Authenticator, roles: RoleBook, clock: Clock, rules: Callable[[], Sequence[StepUpSpec]] = tuple
    ) -> None:
        self._clock, self._rules = clock, rules
        self._authenticator, self._roles = authenticator, roles
        self._by_address, self._by_credential = (Buckets(clock, BURST, SECONDS, MAX_PEERS) for _ in range(2))

    async def enter(self, scope: Any) -> Access:
        """The caller of a request. Raises LimitExceeded, AuthenticationError, RequestError, or what the store raises."""
        peer = peer_of(scope)
        headers = headers_of(scope)
        try:
            principal = await settled(self._authenticator.authenticate(headers, peer))
        except AuthenticationError as error:
            if error.code == USE_NONCE:  # no failure: who has a key is told with which number to try again
                raise
            failure = self._failure(error, peer, headers)
            raise failure from None
        if principal is None:
            raise self._failure(AuthenticationError("", code="missing_credentials"), peer, headers)
        proven(headers)
        scope.setdefault("extensions", {})[CREDENTIAL] = headers
        return await self._access(principal, peer)

    async def again(self, scope: Any, before: Access) -> Access:
        """The same caller later on, while the request goes on: with the rights of that moment. Raises AuthenticationError once the
        credential has ended, PermissionDenied for a caller who is stopped, and what the store raises."""
        peer, known = peer_of(scope), before.principal
        principal = await settled(self._authenticator.authenticate(scope["extensions"][CREDENTIAL], peer))
        if principal is None or (principal.tenant, principal.kind, principal.id) != (known.tenant, known.kind, known.id):
            raise AuthenticationError("The credential is not valid.", code="invalid_credentials", headers=_CHALLENGE)
        return await self._access(principal, peer)

    async def _access(self, principal: Principal, peer: Peer) -> Access:
        grants, denied = await self._roles.held(principal, peer)
        return Access(principal, grants, self._step_up, denied)

    def _step_up(self, principal: Principal, permission: str) -> None:
        step_up.check(self._rules(), principal, permission, self._clock.wall())

    def _failure(self, error: AuthenticationError, peer: Peer, headers: Headers) -> GatehouseError:
        where = neighbourhood(peer.address)
        who = (where, digest_of(headers, peer))
        wait = self._by_credential.wait(who) or self._by_address.wait(where)
        if wait:
            return LimitExceeded("Too many failed logins; try again later.", retry_after=wait)
        fresh = self._by_credential.full(who)
        first = self._counted(self._by_credential, who)
        if fresh:  # repetitions count against the credential alone
            first = self._counted(self._by_address, where)
        if error.code == "missing_credentials":
            return LoginFailed("No usable credential was sent. Send an API key as 'Authorization: Bearer gh_...'.", error.code, first)
        if error.code == INVALID_PROOF:
            return LoginFailed(error.message, error.code, first, error.headers)
        return LoginFailed("The credential is not valid.", "invalid_credentials", first)

    def _counted(self, buckets: Buckets, name: Hashable) -> bool:
        """Counts a failure. Returns whether it is the first in a while, or the last before a pause."""
        first = buckets.full(name)
        buckets.take(name)
        return first or buckets.wait(name) > 0.0


class LoginFailed(AuthenticationError):
    """`first`: record it; later failures of a series are only throttled."""

    def __init__(self, message: str, code: str, first: bool, headers: tuple[tuple[str, str], ...] = _CHALLENGE) -> None:
        super().__init__(message, code=code, headers=headers)
        self.first = first


def digest_of(headers: Headers, peer: Peer) -> bytes:
    """A hash of the credential, of any kind."""
    return sha256(b"\0".join((*(headers.get(name, b"") for name in _SENSITIVE), peer.thumbprint.encode()))).digest()


def peer_of(scope: Any) -> Peer:
    """Who sent a request, as the listener has found out."""
    known = scope.get("extensions", {}).get(PEER)
    if isinstance(known, Peer):
        return known
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
    if PROOF in found:
        note_target(found, scope["method"].encode("ascii"), scope["raw_path"])
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
