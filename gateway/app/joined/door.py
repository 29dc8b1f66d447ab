"""Where machines join and report: each message is signed with the machine's key, which is its credential, whatever stands in between."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.app.joined.machines import JoinedMachines
from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError, GatehouseError, LimitExceeded, NotFound, RequestError
from gateway.core.joining import BEATS, JOIN, REPORTS, SIGNATURE, Beat, Joining, signed
from gateway.core.throttle import Buckets, neighbourhood
from gateway.core.tickets import Report
from gateway.routing.leases import InUse, Replayed, TooSoon, Unknown

M = TypeVar("M", bound=msgspec.Struct)
BURST: Final = 20
SECONDS: Final = 1.0
"""Failures of an address that are answered as such: so many at once, and one more in each of these periods."""
MAX_SIGNATURE: Final = 128


class Door:
    """Answers (path, headers, body, address of the peer) with a status and JSON. Raises GatehouseError."""

    def __init__(self, machines: JoinedMachines, clock: Clock) -> None:
        self._machines = machines
        self._failures = Buckets(clock, BURST, SECONDS)
        self._joining, self._beat = msgspec.json.Decoder(Joining), msgspec.json.Decoder(Beat)
        self._report = msgspec.json.Decoder(Report)

    async def __call__(self, path: str, headers: Mapping[str, str], body: bytes, address: str) -> tuple[int, bytes]:
        where = neighbourhood(address)
        try:
            return await self._answer(path, headers, body, known_well=self._failures.wait(where) == 0.0)
        except AuthenticationError:
            if wait := self._failures.wait(where):
                raise LimitExceeded("Too many failures from here; try again later.", retry_after=wait) from None
            self._failures.take(where)
            raise

    async def _answer(self, path: str, headers: Mapping[str, str], body: bytes, *, known_well: bool) -> tuple[int, bytes]:
        if path == JOIN:
            return await self._join(path, headers, body, told=known_well)
        name, _, what = path.removeprefix(f"{JOIN}/").partition("/")
        key = await self._machines.key_of(name, ask=known_well)
        if key is None or not _verified(key, path, headers, body):
            raise AuthenticationError(
                "No machine of this name has joined with this key: it has not joined yet, or was removed.", code="unknown_machine"
            )
        if what == REPORTS and self._machines.office is not None:
            return 200, msgspec.json.encode(await self._machines.office.told(name, _read(self._report, body)))
        if what != BEATS:
            raise NotFound("There is no such path.")
        try:
            heard = await self._machines.beat(name, _read(self._beat, body))
        except Unknown as error:
            return 409, msgspec.json.encode({"code": "machine_session", "session": error.session})
        except Replayed:
            raise GatehouseError("This beat, or a later one, was heard before.", code="stale_beat", status=409) from None
        except TooSoon:
            raise LimitExceeded("Beats come faster than they are asked for.", retry_after=1.0) from None
        except InUse:
            message = "Another process serves as this machine now; it has the name until its lease is over."
            raise GatehouseError(message, code="machine_in_use", status=409) from None
        return 200, msgspec.json.encode(heard)

    async def _join(self, path: str, headers: Mapping[str, str], body: bytes, *, told: bool) -> tuple[int, bytes]:
        """told: whether a refusal is recorded. A flood of them is not."""
        asked = _read(self._joining, body)
        if not _verified(b64decode(asked.public_key), path, headers, body):
            raise AuthenticationError("The message is not signed with the key that it names.", code="unknown_machine")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise AuthenticationError("Send a join token as 'Authorization: Bearer ghj_...'.", code="invalid_join_token")
        return 201, msgspec.json.encode(await self._machines.join(token, asked, told=told))


def _verified(key: bytes, path: str, headers: Mapping[str, str], body: bytes) -> bool:
    given = headers.get(SIGNATURE, "")
    try:
        if len(given) > MAX_SIGNATURE:
            return False
        Ed25519PublicKey.from_public_bytes(key).verify(b64decode(given, validate=True), signed(path, body))
    except (InvalidSignature, ValueError, NoBase64):
        return False
    return True


def _read(decoder: msgspec.json.Decoder[M], body: bytes) -> M:
    """Raises RequestError."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The message cannot be read: {error}", code="invalid_value") from None
