"""Data keys in a process: kept for a bounded time, given away when they change, and what they encrypt and open.

AES-256-GCM. No process encrypts with a data key itself: it derives a key of its own from it (HKDF-SHA256, RFC 5869, with 16 random bytes
that stand in each envelope) and counts its nonces from 1. So no nonce is used twice under one key, however many processes share the data
key, and after USES texts a process derives another. What an envelope belongs to (tenant, record) is authenticated with it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.audit.record import Envelope
from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.deadlines import within
from gateway.core.errors import GatehouseError, MasterUnavailable, Shredded
from gateway.core.tasks import TaskOwner
from gateway.core.vault import DataKeyGiven
from gateway.core.waiting import Signal

log = logging.getLogger("gatehouse.audit")

FORMAT: Final = 1
SYSTEM: Final = "@gatehouse"
"""Whose key encrypts what belongs to no tenant; no tenant's name has an `@`."""
SALTS: Final = 256
"""Derived keys that an opened data key remembers: each process that encrypts has one."""
USES: Final = 1 << 32
"""Texts that are encrypted with one derived key (NIST SP 800-38D allows as many with counted nonces, and more)."""
CAPACITY: Final = 4096
"""Tenants whose keys a process remembers."""
FETCH_SECONDS: Final = 8.0
"""How long it may take to get a data key: a little longer than the store and the master take at most."""
PAUSE_SECONDS: Final = 1.0
"""After a failure nobody asks again for so long."""
SAY_SECONDS: Final = 60.0
"""Between two lines of the log about the same failure."""
_SALT: Final = 16
_INFO: Final = b"gatehouse audit text 1"
_BLIND: Final = b"gatehouse audit index 1"
_base64: Final[Callable[[bytes], bytes]] = import_module("pybase64" if find_spec("pybase64") else "base64").b64encode
"""The standard library's does the same, five times as slow: it is there for an environment that has not been brought up to date."""


class _Derived:
    """A key of this process. counts: gives each nonce once, to any thread. head: what its envelopes begin with."""

    __slots__ = ("cipher", "counts", "head")

    def __init__(self, cipher: AESGCM, head: bytes) -> None:
        self.cipher, self.head, self.counts = cipher, head, count(1)


class DataKey:
    """An opened data key. `seal` may be called in any thread; after `drop` it raises Shredded."""

    def __init__(self, id: str, tenant: str, version: int, key: bytes, entropy: Entropy | None = None, uses: int = USES) -> None:
        self.id, self.tenant, self.version = id, tenant, version
        self._material: bytearray | None = bytearray(key)
        self._entropy: Entropy = entropy or SystemEntropy()
        self._uses = uses
        self._current: _Derived | None = None
        self._ciphers: dict[str, AESGCM] = {}
        self._blind: bytes | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, given: DataKeyGiven) -> DataKey:
        return cls(given.id, given.tenant, given.version, bytes.fromhex(given.key.reveal()))

    def copy(self) -> DataKey | None:
        """One that outlives this one's end; None if that has come."""
        material = self._material
        return None if material is None else DataKey(self.id, self.tenant, self.version, bytes(material), self._entropy)

    @property
    def gone(self) -> bool:
        return self._material is None

    def seal(self, text: bytes, bound: bytes) -> bytes:
        """The envelope's JSON. bound: what the text belongs to. Raises Shredded."""
        derived = self._current
        while derived is None or (number := next(derived.counts)) > self._uses:
            derived = self._another(derived)
        data = derived.cipher.encrypt(number.to_bytes(12, "big"), text, bound)
        return b'%b%d,"data":"%b"}' % (derived.head, number, _base64(data))

    def _another(self, spent: _Derived | None) -> _Derived:
        """A derived key that is not the one given. Raises Shredded."""
        with self._lock:
            found = self._current
            if found is None or found is spent:
                salt = self._entropy.bytes(_SALT)
                empty = msgspec.json.encode(Envelope(FORMAT, self.id, salt.hex(), 0, b""))
                found = self._current = _Derived(self._derived(salt), empty.removesuffix(b'0,"data":""}'))
            return found

    def open(self, envelope: Envelope, bound: bytes) -> bytes:
        """Raises ValueError for what was not sealed with this key for this record, Shredded."""
        try:
            return self._cipher(envelope.salt).decrypt(envelope.n.to_bytes(12, "big"), envelope.data, bound)
        except (InvalidTag, OverflowError, ValueError):
            raise ValueError("it was not encrypted with this key for this record") from None

    def _cipher(self, salt: str) -> AESGCM:
        """Of a salt in hex, remembered. Raises Shredded, ValueError."""
        found = self._ciphers.get(salt)
        if found is None or self._material is None:
            found = self._derived(bytes.fromhex(salt))
            if len(self._ciphers) >= SALTS:
                self._ciphers.clear()
            self._ciphers[salt] = found
        return found

    def _derived(self, salt: bytes) -> AESGCM:
        if self._material is None:
            raise Shredded("The data key was destroyed.")
        return AESGCM(HKDF(SHA256(), 32, salt=salt, info=_INFO).derive(bytes(self._material)))

    def blind(self) -> bytes:
        """The key of the tokens in the index (gateway.audit.blind_index). Raises Shredded."""
        found, material = self._blind, self._material
        if material is None:
            raise Shredded("The data key was destroyed.")
        if found is None:
            found = self._blind = HKDF(SHA256(), 32, salt=None, info=_BLIND).derive(bytes(material))
        return found

    def revealed(self) -> str:
        """The key itself in hex, for a worker. Raises Shredded."""
        if self._material is None:
            raise Shredded("The data key was destroyed.")
        return self._material.hex()

    def drop(self) -> None:
        """Forgets the key; what this process had of it is overwritten."""
        with self._lock:
            if self._material is not None:
                self._material[:] = bytes(len(self._material))
            self._material = self._current = self._blind = None
            self._ciphers.clear()


def envelope_of(value: Any) -> Envelope | None:
    """The envelope in a record that was read; None for anything else."""
    try:
        found = msgspec.convert(value, Envelope)
    except msgspec.ValidationError:
        return None
    return found if found.v == FORMAT else None


class _Kept:
    __slots__ = ("due", "key", "until")

    def __init__(self, key: DataKey, until: float, due: float) -> None:
        self.key, self.until, self.due = key, until, due


class _Failures:
    """What the log says of keys that do not come: a new reason at once, the same one again once a minute."""

    def __init__(self) -> None:
        self._reason, self._said, self._unsaid, self._count = "", 0.0, 0, 0

    def happened(self, tenant: str, reason: str, now: float) -> None:
        self._count += 1
        if reason != self._reason:
            self._reason, self._said, self._unsaid = reason, now, 0
            log.error("there is no data key for the texts of the tenant %r: %s", tenant[:128], reason)
            return
        self._unsaid += 1
        if now >= self._said + SAY_SECONDS:
            log.error("there are still no data keys (%d more attempts): %s", self._unsaid, reason)
            self._said, self._unsaid = now, 0

    def over(self) -> None:
        if self._count:
            log.info("there are data keys again, after %d failed attempts", self._count)
            self._reason, self._count = "", 0


class KeyRing:
    """The data keys that a process encrypts with, by tenant. For one event loop.

    fetch: gets the key of a tenant. A key that was fetched is used for the seconds that come with it; at half of them it is fetched anew
    beside the work, so that a master that is away for a while holds up nobody.
    """

    def __init__(
        self,
        fetch: Callable[[str], Awaitable[DataKeyGiven]],
        owner: TaskOwner,
        clock: Clock | None = None,
        capacity: int = CAPACITY,
        seconds: float = FETCH_SECONDS,
    ) -> None:
        self._fetch, self._owner, self._capacity, self._seconds = fetch, owner, capacity, seconds
        self._clock: Clock = clock or SystemClock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._asked: dict[str, Signal[DataKey]] = {}
        self._failed: OrderedDict[str, tuple[float, GatehouseError]] = OrderedDict()
        self._failures = _Failures()
        self._stale: set[str] = set()
        """Tenants whose keys were dropped while they were being fetched."""

    @property
    def size(self) -> int:
        """How many keys are kept."""
        return len(self._kept)

    def current(self, tenant: str) -> DataKey | Signal[DataKey]:
        """The key that encrypts for a tenant now. Raises, or the awaitable fails with, GatehouseError."""
        now, kept = self._clock.monotonic(), self._kept.get(tenant)
        if kept is not None and now < kept.until:
            if now >= kept.due:
                kept.due = now + PAUSE_SECONDS
                self._ask(tenant)
            return kept.key
        failed = self._failed.get(tenant)
        if failed is not None and now < failed[0]:
            raise _again(failed[1])
        return self._ask(tenant)

    def kept(self, tenant: str) -> DataKey | None:
        """The key that is at hand, also one that is due to be fetched anew. For any thread."""
        kept = self._kept.get(tenant)
        return None if kept is None else kept.key

    def left(self, tenant: str) -> float:
        """For how many seconds the kept key may still be used."""
        kept = self._kept.get(tenant)
        return 0.0 if kept is None else kept.until - self._clock.monotonic()

    def drop(self, tenant: str | None) -> None:
        """Forgets the keys of a tenant, or all."""
        self._stale.update(self._asked if tenant is None else [tenant] if tenant in self._asked else [])
        self._failed.clear()
        for name in [tenant] if tenant is not None else list(self._kept):
            kept = self._kept.pop(name, None)
            if kept is not None:
                kept.key.drop()

    def _ask(self, tenant: str) -> Signal[DataKey]:
        asked = self._asked.get(tenant)
        if asked is None:
            asked = self._asked[tenant] = Signal()
            self._owner.spawn(self._get(tenant, asked), name="data key")
        return asked

    async def _get(self, tenant: str, asked: Signal[DataKey]) -> None:
        error: GatehouseError
        try:
            async with within(self._seconds):
                key = await self._fetched(tenant)
        except TimeoutError:
            error = MasterUnavailable(f"no data key came within {self._seconds:g} s")
        except GatehouseError as failed:
            error = failed
        except BaseException:
            self._ended(tenant)
            asked.fail(MasterUnavailable("the gateway ends"))
            raise
        else:
            self._failures.over()
            self._ended(tenant)
            asked.set(key)
            return
        self._failed[tenant] = (self._clock.monotonic() + PAUSE_SECONDS, error)
        while len(self._failed) > self._capacity:
            self._failed.popitem(last=False)
        self._failures.happened(tenant, error.message, self._clock.monotonic())
        self._ended(tenant)
        asked.fail(error)

    def _ended(self, tenant: str) -> None:
        self._asked.pop(tenant, None)
        self._stale.discard(tenant)

    async def _fetched(self, tenant: str) -> DataKey:
        while True:
            self._stale.discard(tenant)
            given = await self._fetch(tenant)
            if tenant not in self._stale:  # nothing of it was dropped meanwhile
                break
        now = self._clock.monotonic()
        known = self._kept.get(tenant)
        if known is not None and known.key.id == given.id:
            known.until, known.due = now + given.seconds, now + given.seconds / 2
            return known.key
        key = DataKey.of(given)
        self._kept[tenant] = _Kept(key, now + given.seconds, now + given.seconds / 2)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        return key


def _again(error: GatehouseError) -> GatehouseError:
    """The same error for another caller: an exception that is raised twice gathers tracebacks."""
    return MasterUnavailable(error.message, retry_after=PAUSE_SECONDS)
