"""Answers as they lie outside the process: compressed, encrypted for their tenant, and bound to their place.

AES-256-GCM under a key that this process derives (HKDF-SHA256, RFC 5869, with 16 random bytes) from the tenant's key, with counted nonces,
so that no nonce is used twice, however many processes share the tenant's key. Authenticated with the answer are its key, model and tenant,
the marks of the purges before it, and the moment when it expires: an entry that was changed, moved, kept beyond its time or put back after
a purge does not open. Where the tenant's key is gone, nothing of the tenant opens.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.caches.place import BOUND, Place
from gateway.core.clock import Entropy

FORMAT: Final = 1
TAG: Final = 16
_SALT: Final = 16
_INFO: Final = b"gatehouse answer 1"
_COMPRESSED: Final = 1
_LEVEL: Final = 1
TENANTS: Final = 1024
"""Tenants whose derived keys are remembered; for each of them SALTS."""
SALTS: Final = 64
USES: Final = 1 << 32
"""Answers that are encrypted with one derived key (NIST SP 800-38D)."""

TenantKey = Callable[[str], tuple[str, bytes] | None]
"""The id and the 32 bytes of the key that encrypts for a tenant now; None where it is not at hand. Does not wait, raises nothing."""


class _Derived:
    """What was derived from one key of a tenant."""

    __slots__ = ("ciphers", "counts", "id", "material", "own", "salt")

    def __init__(self, id: str, material: bytes, salt: bytes) -> None:
        self.id, self.material, self.salt = id, material, salt
        self.own = derived(material, salt)
        self.counts = count(1)
        self.ciphers: OrderedDict[bytes, AESGCM] = OrderedDict({salt: self.own})


class Sealer:
    """What seals and opens the answers of one tenant with the key that it has now. Works in any thread."""

    __slots__ = ("_derived", "_lock", "_now")

    def __init__(self, found: _Derived, lock: threading.Lock, now: Callable[[], float]) -> None:
        self._derived, self._lock, self._now = found, lock, now

    def seal(self, value: bytes, place: Place, marks: bytes, expires: float, compress_above: int) -> bytes:
        """expires: seconds since the epoch. compress_above: bytes from which a value is compressed, if that makes it smaller; 0: never."""
        mine, flags = self._derived, 0
        if 0 < compress_above < len(value):
            smaller = zlib.compress(value, _LEVEL)
            if len(smaller) < len(value):
                value, flags = smaller, _COMPRESSED
        number, id = next(mine.counts), mine.id.encode()
        head = b"%c%c%b%c%b%b%b" % (
            FORMAT,
            flags,
            int(expires * 1000).to_bytes(8, "big"),
            len(id),
            id,
            mine.salt,
            number.to_bytes(12, "big"),
        )
        return head + mine.own.encrypt(number.to_bytes(12, "big"), value, _bound(head, place, marks))

    def open(self, sealed: bytes, place: Place, marks: bytes, most: int) -> tuple[bytes, float] | None:
        """The value, of `most` bytes at most, and the seconds since the epoch at which it expires; None for what was not sealed for this
        place with this key since the last purge, and for what has expired."""
        if len(sealed) < 11 or sealed[0] != FORMAT:
            return None
        start = 11 + sealed[10]
        end = start + _SALT + 12
        expires = int.from_bytes(sealed[2:10], "big") / 1000
        mine = self._derived
        if len(sealed) < end + TAG or sealed[11:start] != mine.id.encode() or expires <= self._now():
            return None
        head, salt = sealed[:end], sealed[start : start + _SALT]
        try:
            value = self._cipher(salt).decrypt(sealed[end - 12 : end], sealed[end:], _bound(head, place, marks))
        except InvalidTag:
            return None
        if sealed[1] & _COMPRESSED:
            unpacker = zlib.decompressobj()
            value = unpacker.decompress(value, most)
            if not unpacker.eof:
                return None
        return (value, expires) if len(value) <= most else None

    def _cipher(self, salt: bytes) -> AESGCM:
        mine = self._derived
        found = mine.ciphers.get(salt)
        if found is None:
            found = derived(mine.material, salt)
            with self._lock:
                mine.ciphers[salt] = found
                while len(mine.ciphers) > SALTS:
                    mine.ciphers.popitem(last=False)
        return found


class Sealers:
    """The sealers of a process, by tenant. now: seconds since the epoch."""

    def __init__(self, keys: TenantKey, entropy: Entropy, now: Callable[[], float], uses: int = USES) -> None:
        self._keys, self._entropy, self._now, self._uses = keys, entropy, now, uses
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[_Derived, Sealer]] = OrderedDict()
        self._used: dict[str, int] = {}

    def of(self, tenant: str) -> Sealer | None:
        """None where the tenant's key is not at hand now."""
        key = self._keys(tenant)
        if key is None:
            self.forget(tenant)
            return None
        id, material = key
        known = self._known.get(tenant)
        if known is not None and known[0].id == id and known[0].material == material and self._spare(tenant):
            return known[1]
        made = _Derived(id, material, self._entropy.bytes(_SALT))
        sealer = Sealer(made, self._lock, self._now)
        self._known[tenant], self._used[tenant] = (made, sealer), 0
        while len(self._known) > TENANTS:
            self.forget(next(iter(self._known)))
        return sealer

    def forget(self, tenant: str | None) -> None:
        """Drops what was derived from the keys of a tenant; None: of all."""
        for name in [tenant] if tenant is not None else list(self._known):
            self._known.pop(name, None)
            self._used.pop(name, None)

    def _spare(self, tenant: str) -> bool:
        """Counts a use; whether the derived key may have it."""
        self._used[tenant] += 1
        return self._used[tenant] < self._uses


def derived(material: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt=salt, info=_INFO).derive(material))


def _bound(head: bytes, place: Place, marks: bytes) -> bytes:
    """What is authenticated with an answer. The lengths keep the parts apart."""
    parts = (head, marks[:BOUND], place.key, place.model.encode(), place.tenant.encode("utf-8", "surrogatepass"))
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])
