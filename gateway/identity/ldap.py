"""Names and passwords of a directory: `Authorization: Basic ...` (RFC 7617). The directory itself is gateway.identity.directory.

Logins run in a few threads, each at most for the settings' `timeout`. A login that succeeded is believed for `cache` seconds, by an HMAC of
name and password under a random key, so that the process keeps no password; a login with a new password ends that of the old one.

Failures are counted by name and peer, by name, and by peer (gateway.core.throttle), over all workers: beyond a few, more are refused
without asking the directory, so that guessing neither succeeds nor locks accounts. Others who log in with the same name from elsewhere,
those who have logged in from there before, and a password that was right before are not held up.

A refusal that the directory had no reason to think about is answered as late as one of a wrong password (gateway.identity.pace). Meanwhile
it holds no thread and no connection, but its place among the logins for as long as a wrong password would, and of one account one password
at a time is tried, so that the time of others that come with it tells nothing either.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

from gateway.core.clock import Clock
from gateway.core.deadlines import within
from gateway.core.errors import Overloaded
from gateway.core.logins import Attempt, LocalLogins, Logins
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs import LdapSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Login, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.credentials import invalid_credentials
from gateway.identity.directory import Directory, Found, Refused, Unavailable
from gateway.identity.pace import Pace
from gateway.identity.passwords import Believed, account_of, basic, decoded

log = logging.getLogger("gatehouse.identity")

THREADS: Final = 4
WAITING: Final = 64
"""Logins under way and waiting; more are refused with 503."""
PAUSING: Final = 1024
"""The same with those that are refused and not answered yet."""


class LdapAuthenticator:
    """One directory. pause: waits so many seconds. Life: `start`, `aclose`."""

    def __init__(
        self,
        spec: LdapSpec,
        directory: Directory,
        clock: Clock,
        logins: Logins | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spec, self._directory, self._clock, self._pause = spec, directory, clock, pause
        self._pace = Pace(spec.timeout)
        self._places = asyncio.Semaphore(THREADS)
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """Of each account that logs in at the moment, with one item for each of its logins."""
        self._undecided = 0
        key = os.urandom(32)
        self._logins: Logins = LocalLogins(clock, lambda: key) if logins is None else logins
        self._key = self._logins.key
        self._believed = Believed(clock, spec.cache)
        self._flights: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ldap")
        self._tasks = TaskOwner(f"ldap {spec.name}")
        self._away = False

    async def start(self) -> None:
        """Nothing is asked before the first login: a directory that is away keeps nobody else out."""

    async def aclose(self) -> None:
        await self._tasks.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._directory.close()

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """None for other credentials, and for a user whom this directory does not know."""
        sent = basic(headers)
        if sent is None:
            return None
        name, password = decoded(sent)
        digest = hmac.digest(self._key, sent, "sha256")
        known = self._believed.get(digest)
        return self._asked(digest, name, password, peer) if known is None else known

    def _asked(self, digest: bytes, name: str, password: str, peer: Peer) -> Maybe[Principal | None]:
        flight = self._flights.get(digest)
        if flight is None:
            if self._undecided >= WAITING or len(self._flights) >= PAUSING:
                raise Overloaded("Too many logins at once; try again.", retry_after=1.0)
            begun = self._logins.begin(self._spec.name, account_of(name), peer.address, digest)
            if begun is None:
                raise invalid_credentials()
            flight = self._flights[digest] = self._tasks.spawn(self._tried(begun, digest, name, password), name="login")
            flight.add_done_callback(lambda _: self._flights.pop(digest, None))
        return self._tasks.wait(asyncio.shield(flight), name="wait")

    async def _tried(self, begun: Attempt | Awaitable[Attempt | None], digest: bytes, name: str, password: str) -> Principal | None:
        self._undecided += 1
        try:
            attempt = await begun if isinstance(begun, Awaitable) else begun
            if attempt is None:
                raise invalid_credentials()
            try:
                principal, late = await self._login(digest, name, password)
            except BaseException:  # boundary: the directory did not answer, or the gateway ends
                attempt.abandoned()
                raise
            if principal is None:
                attempt.failed()
            else:
                attempt.succeeded()
        finally:
            self._undecided -= 1
        if principal is None:
            await self._pause(late)
            raise invalid_credentials()
        return principal

    async def _login(self, digest: bytes, name: str, password: str) -> tuple[Principal | None, float]:
        """Who it is; None for a refusal, which is to be answered so many seconds later."""
        self._believed.drop(digest)
        try:
            async with self._turn(account_of(name)):
                principal, late = await self._asked_directory(name, password)
        except (Unavailable, TimeoutError) as reason:
            if not self._away:
                log.warning("the directory %s does not answer (%s); its users cannot log in", self._spec.name, str(reason) or "too late")
            self._away = True
            raise Overloaded(
                "Logins by name and password are not possible at the moment.", code="directory_unavailable", retry_after=5.0
            ) from None
        if self._away:
            log.info("the directory %s answers again", self._spec.name)
        self._away = False
        if principal is not None:
            self._believed.add(digest, principal)
        return principal, late

    @asynccontextmanager
    async def _turn(self, account: str) -> AsyncIterator[None]:
        """One login of an account at a time, and so many in all. Raises Overloaded."""
        lock, logins = self._turns.setdefault(account, (asyncio.Lock(), []))
        logins.append(None)
        try:
            try:
                async with within(self._spec.timeout):
                    await lock.acquire()
                    try:
                        await self._places.acquire()
                    except BaseException:
                        lock.release()
                        raise
            except TimeoutError:
                raise Overloaded("Too many logins at once; try again.", retry_after=1.0) from None
            try:
                yield
            finally:
                self._places.release()
                lock.release()
        finally:
            logins.pop()
            if not logins:
                del self._turns[account]

    async def _asked_directory(self, name: str, password: str) -> tuple[Principal | None, float]:
        """As `_login`, by one who has a place. Raises Unavailable, TimeoutError."""
        account, began = account_of(name), self._clock.monotonic()
        try:
            async with within(self._spec.timeout + 1.0):
                found = await asyncio.get_running_loop().run_in_executor(self._threads, self._directory.login, name, password)
            self._pace.right(account, found.seconds)
            return self._principal(found), 0.0
        except Refused as reason:
            log.info("a login at the directory %s was refused: %s", self._spec.name, reason)
            taken, checked, stood = self._clock.monotonic() - began, reason.checked, reason.stood
        if checked and self._spec.users.dn is None:
            self._pace.wrong(account, taken - stood)
        busy = self._pace.busy(taken, checked)
        if busy > taken:
            await self._pause(busy - taken)
        return None, max(0.0, self._pace.answer(busy) - busy)

    def _principal(self, found: Found) -> Principal:
        """Raises Refused when the entry lacks a name or a tenant."""
        tenant = self._spec.tenant
        name = found.attributes.get(self._spec.users.name.lower(), "")
        owner = tenant.value or found.attributes.get((tenant.attribute or "").lower(), "")
        if not name or not owner:
            raise Refused("the entry has no name or no tenant")
        now = self._clock.wall()
        login = Login("password", issuer=self._spec.name, issued=now, auth_time=now, amr=("pwd",), groups=found.groups)
        return Principal(name, owner, "ldap", user=name, groups=found.groups, login=login)


def build(settings: LdapSpec, context: AuthenticatorContext) -> LdapAuthenticator:
    """Raises OSError, ValueError for TLS settings that cannot be used."""
    return LdapAuthenticator(settings, Directory(settings), context.clock, context.logins)
