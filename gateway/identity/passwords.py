"""What every login by name and password shares (`Authorization: Basic ...`, RFC 7617): how it is read, and whose it is believed to be."""

from __future__ import annotations

import binascii
import unicodedata
from base64 import b64decode
from collections import OrderedDict
from typing import Final

from gateway.core.clock import Clock
from gateway.core.types import Headers, Principal
from gateway.identity.credentials import MAX_CREDENTIAL_BYTES, invalid_credentials, presented

REMEMBERED: Final = 10_000
MAX_NAME: Final = 256
_IGNORED: Final = frozenset({"Cc", "Cf", "Mn", "Me"})
"""Categories of characters that make no difference between two names."""


def basic(headers: Headers) -> bytes | None:
    """The credential as it was sent; None for other credentials."""
    found = presented(headers)
    return None if found is None or found[0] != b"basic" else found[1]


def decoded(value: bytes) -> tuple[str, str]:
    """Name and password. Raises AuthenticationError for anything else, an empty password included."""
    if len(value) > MAX_CREDENTIAL_BYTES:
        raise invalid_credentials()
    try:
        name, colon, password = b64decode(value, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        raise invalid_credentials() from None
    if not colon or not name or not password or len(name) > MAX_NAME or "\x00" in name or "\x00" in password:
        raise invalid_credentials()
    return name, password


def account_of(name: str) -> str:
    """By what the failures of a name are counted: all spellings that a directory may take for it (RFC 4518, 2; Active Directory ignores
    accents too) are one, or else each would be allowed as many guesses."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    return " ".join("".join(char for char in plain if char.isspace() or unicodedata.category(char) not in _IGNORED).split())


class Believed:
    """Logins that succeeded, by a hash of name and password, for so many seconds. A login with a new password ends that of the old one."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._digests: OrderedDict[str, bytes] = OrderedDict()
        """Of the login that is believed, by the user's name."""

    def get(self, digest: bytes) -> Principal | None:
        known = self._known.get(digest)
        return known[1] if known is not None and known[0] > self._clock.monotonic() else None

    def drop(self, digest: bytes) -> None:
        self._known.pop(digest, None)

    def add(self, digest: bytes, principal: Principal) -> None:
        before = self._digests.pop(principal.id, None)
        if before is not None:
            self._known.pop(before, None)
        self._known[digest] = (self._clock.monotonic() + self._seconds, principal)
        self._digests[principal.id] = digest
        if len(self._digests) > REMEMBERED:
            _, oldest = self._digests.popitem(last=False)
            self._known.pop(oldest, None)
