"""The map from pseudonyms to values: sealed in memory (AES-256-GCM with a key that only this process has), for a request or a session.

A session is one caller's: tenant, kind of login, id and session. It is dropped when it was not used for `ttl` seconds, when there are too
many or they take too many bytes (the one longest unused goes first), and when the guardrail is closed.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from hashlib import blake2b
from secrets import token_bytes
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.core.types import Principal

OVERHEAD: Final = 256
"""Bytes of an entry beside its value, about."""
HIGHEST: Final = 999_999
"""The highest number of a session's pseudonyms."""


class Seal:
    """Encrypts values, and hashes them so that the same value is found again. Neither key leaves the object."""

    __slots__ = ("_cipher", "_count", "_key", "_prefix")

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(bit_length=256))
        self._key = token_bytes(32)
        self._prefix, self._count = token_bytes(4), 0

    def sealed(self, value: str, label: str) -> bytes:
        """Bound to its label: a value cannot be moved to another pseudonym."""
        self._count += 1
        nonce = self._prefix + self._count.to_bytes(8, "big")
        return nonce + self._cipher.encrypt(nonce, value.encode("utf-8", "surrogatepass"), label.encode())

    def opened(self, sealed: bytes, label: str) -> str:
        return self._cipher.decrypt(sealed[:12], sealed[12:], label.encode()).decode("utf-8", "surrogatepass")

    def digest(self, entity: str, value: str) -> bytes:
        return blake2b(f"{entity}\0{value}".encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()


class Session:
    """The pseudonyms of one session. secret: what their numbers are derived from, the same in every process. nested: a value would be
    written otherwise in a string of JSON. alive: the vault has it."""

    __slots__ = ("_order", "alive", "digests", "labels", "nested", "secret", "size", "used")

    def __init__(self, secret: bytes, now: float) -> None:
        self.secret, self.used, self.size = secret, now, 0
        self.alive, self.nested = True, False
        self.labels: dict[str, bytes] = {}
        self.digests: dict[bytes, str] = {}
        self._order: OrderedDict[str, bytes] = OrderedDict()

    def number(self, entity: str, value: str, tries: int) -> int:
        """The number of a value, of which nobody without the secret can tell the value; `tries` of others were taken."""
        found = hmac.digest(self.secret, f"{entity}\0{tries}\0{value}".encode("utf-8", "surrogatepass"), "sha256")
        return 1 + int.from_bytes(found[:8], "big") % HIGHEST

    def add(self, label: str, digest: bytes, sealed: bytes, most: int) -> None:
        """most: values that it may have; the oldest go. A request keeps its own for as long as it lasts."""
        self.labels[label], self.digests[digest] = sealed, label
        self._order[label] = digest
        self.size += len(sealed) + OVERHEAD
        while len(self._order) > most:
            old, gone = self._order.popitem(last=False)
            self.size -= len(self.labels.pop(old)) + OVERHEAD
            del self.digests[gone]


class Vault:
    """The sessions of one guardrail. most_sessions, most_values (of one session), most_bytes (of all): the bounds. ttl: seconds."""

    def __init__(self, ttl: float, most_sessions: int, most_values: int, most_bytes: int) -> None:
        self.seal = Seal()
        self._ttl, self._most_sessions, self._most_bytes = ttl, most_sessions, most_bytes
        self.most_values = most_values
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def size(self) -> int:
        return self._bytes

    def session(self, principal: Principal, secret: bytes, now: float) -> Session:
        """The caller's session, new if there is none. secret: of pseudonyms, the same in every process."""
        self.sweep(now)
        made = (repr(principal.made),) if principal.made else ()  # another key that has the id later has sessions of its own
        name = "\0".join(map(_counted, (principal.tenant, principal.kind, principal.id, principal.session, *made))).encode()
        key = blake2b(name, key=secret[:64], digest_size=32).digest()
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = Session(hmac.digest(secret, name, "sha256"), now)
            if len(self._sessions) > self._most_sessions:
                self._drop()
        found.used = now
        self._sessions.move_to_end(key)
        return found

    def grown(self, session: Session, label: str, digest: bytes, sealed: bytes) -> None:
        """Adds a value to a session, which may have been dropped meanwhile."""
        before = session.size
        session.add(label, digest, sealed, self.most_values)
        if session.alive:
            self._bytes += session.size - before
            while self._bytes > self._most_bytes and len(self._sessions) > 1:
                self._drop()

    def sweep(self, now: float) -> None:
        """Drops the sessions that are over."""
        while self._sessions and next(iter(self._sessions.values())).used + self._ttl <= now:
            self._drop()

    def clear(self) -> None:
        while self._sessions:
            self._drop()

    def _drop(self) -> None:
        _, gone = self._sessions.popitem(last=False)
        self._bytes -= gone.size
        gone.alive = False


def _counted(text: str) -> str:
    return f"{len(text)}:{text}"
