"""People whose names and passwords are in the configuration, as hashes (Argon2id, RFC 9106): for a gateway without a directory or an
issuer, and for the day when these are away.

A name that is not among them is left to the directories. So that the time of a refusal does not tell which names there are, the password
is compared with a hash that nobody has; that takes as long. Failures are counted, and passwords compared, as for directories
(gateway.identity.ldap), those of unknown names too.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import unicodedata
from base64 import b64encode
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from gateway.core.clock import Clock
from gateway.core.deadlines import within
from gateway.core.errors import Overloaded
from gateway.core.logins import Attempt, LocalLogins, Logins
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs.identity import LocalUserSpec, LocalUsersSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import Headers, Login, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.credentials import invalid_credentials
from gateway.identity.passwords import Believed, account_of, basic, decoded

NAME: Final = "local_users"
"""As whose logins are counted, recorded and revoked; no directory may have this name."""
THREADS: Final = 1
"""A comparison takes some 50 ms of a processor and the memory that its hash says: guesses are to take one processor at most."""
WAITING: Final = 64
SECONDS: Final = 5.0
"""For a whole login."""
TAG_BYTES: Final = 32


class LocalUsers:
    """The users of the configuration. Life: `start`, `aclose`."""

    def __init__(self, spec: LocalUsersSpec, clock: Clock, logins: Logins | None = None) -> None:
        self._users = {user.name: user for user in spec.users}
        self._nobody = like(spec.users[0].password_hash.reveal())
        self._clock = clock
        key = os.urandom(32)
        self._logins: Logins = LocalLogins(clock, lambda: key) if logins is None else logins
        self._key = self._logins.key
        self._believed = Believed(clock, spec.cache)
        self._flights: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._tasks = TaskOwner(NAME)

    async def start(self) -> None:
        """There is nothing to start."""

    async def aclose(self) -> None:
        await self._tasks.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        """None for other credentials, and for a name that is not among the users."""
        sent = basic(headers)
        if sent is None:
            return None
        name, password = decoded(sent)
        digest = hmac.digest(self._key, sent, "sha256")
        known = self._believed.get(digest)
        if known is not None:
            return known
        flight = self._flights.get(digest)
        if flight is None:
            if len(self._flights) >= WAITING:
                raise Overloaded("Too many logins at once; try again.", retry_after=1.0)
            begun = self._logins.begin(NAME, account_of(name), peer.address, digest)
            flight = self._flights[digest] = self._tasks.spawn(self._tried(begun, digest, name, password), name="login")
            flight.add_done_callback(lambda _: self._flights.pop(digest, None))
        return self._tasks.wait(asyncio.shield(flight), name="wait")

    async def _tried(self, begun: Attempt | Awaitable[Attempt | None] | None, digest: bytes, name: str, password: str) -> Principal | None:
        attempt = await begun if isinstance(begun, Awaitable) else begun
        user = self._users.get(name)
        if attempt is not None:
            try:
                right = await self._compared(user, password)
            except BaseException:  # boundary: too many at once, or the gateway ends
                attempt.abandoned()
                raise
            if right and user is not None:
                attempt.succeeded()
                principal = self._principal(user)
                self._believed.add(digest, principal)
                return principal
            attempt.failed()
        if user is None:
            return None
        raise invalid_credentials()

    async def _compared(self, user: LocalUserSpec | None, password: str) -> bool:
        """Raises Overloaded."""
        encoded = self._nobody if user is None else user.password_hash.reveal()
        try:
            async with within(SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, fits, password, encoded)
        except TimeoutError:
            raise Overloaded("Too many logins at once; try again.", retry_after=1.0) from None

    def _principal(self, user: LocalUserSpec) -> Principal:
        now = self._clock.wall()
        login = Login("password", issuer=NAME, issued=now, auth_time=now, amr=("pwd",), groups=user.groups)
        return Principal(user.name, user.tenant, "local_user", user=user.name, groups=user.groups, roles=user.roles, login=login)


def fits(password: str, encoded: str) -> bool:
    """Whether it is the password of a hash ("$argon2id$v=19$m=...,t=...,p=...$SALT$TAG"). Blocks for some 50 ms, without the interpreter's
    lock. Different ways to write an accent are one (RFC 8265, 4.2.2)."""
    try:
        Argon2id.verify_phc_encoded(unicodedata.normalize("NFC", password).encode(), encoded)
    except InvalidKey:
        return False
    return True


def like(encoded: str) -> str:
    """A hash that takes as long to compare with, of a password that nobody knows."""
    return "$".join((*encoded.split("$")[:4], *(b64encode(os.urandom(size)).decode().rstrip("=") for size in (16, TAG_BYTES))))


def build(settings: LocalUsersSpec, context: AuthenticatorContext) -> LocalUsers:
    return LocalUsers(settings, context.clock, context.logins)
