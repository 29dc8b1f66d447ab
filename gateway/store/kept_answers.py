"""Answers of the Responses API that are kept. Everything of them is encrypted but what is needed to find, bound and forget them.

AES-256-GCM under a key of each tenant, derived from the pepper (HKDF-SHA256, RFC 5869): every replica that shares a store can open it, the
database alone cannot. The row's identifier, tenant, owner, model and times are authenticated with it: moved to another tenant, or changed,
it does not open. Moments are the database's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.clock import Entropy
from gateway.core.conversations import AnswerFound, KeepAnswer, Said
from gateway.core.errors import Overloaded, RequestError
from gateway.core.slices import portions
from gateway.core.specs.responses import ResponsesSpec
from gateway.store import rows, tombstones
from gateway.store.database import Database
from gateway.store.tables import kept_answers as table

log = logging.getLogger("gatehouse.store")
_NONCE: Final = 12
_BOUND: Final = ("id", "tenant", "owner", "model", "created", "expires")
FRESH: Final = 10.0
"""Seconds for which what was read of a tenant's total counts; longer where reading it took long, up to LONGEST."""
LONGEST: Final = 60.0
_SHARE: Final = 100
"""A total counts for so many times as long as it took to read."""
_TENANTS: Final = 10_000
PORTION: Final = 200
"""Answers, of up to a megabyte each, that are erased in one transaction."""


class Sizes(NamedTuple):
    """What is kept: answers, and bytes of them."""

    answers: int
    size: int


class _Total:
    """What a tenant keeps: as it was read at `since`, and what this process has added or erased. until: when it is to be read again."""

    __slots__ = ("since", "size", "until")

    def __init__(self, size: int, since: float, until: float) -> None:
        self.size, self.since, self.until = size, since, until


class KeptAnswers:
    """key: 32 secret bytes that all replicas share, once the store has been started."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float], key: Callable[[], bytes], entropy: Entropy) -> None:
        self._database, self._now, self._key, self._entropy = database, now, key, entropy
        self._totals: dict[str, _Total] = {}

    def _cipher(self, tenant: str) -> AESGCM:
        return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"gatehouse kept answers 1 " + tenant.encode()).derive(self._key()))

    async def keep(self, wanted: KeepAnswer, bounds: ResponsesSpec) -> None:
        """Raises RequestError for an answer that is too long, Overloaded when the tenant keeps too much, PermissionDenied where the
        caller was deleted meanwhile."""
        content = msgspec.msgpack.encode(wanted.said)
        if len(content) > bounds.max_bytes:
            raise RequestError(
                f"The answer and its conversation have {len(content)} bytes, and {bounds.max_bytes} may be kept (responses.max_bytes); "
                "send store: false.",
                param="store",
                code="response_too_large",
            )
        nonce = self._entropy.bytes(_NONCE)
        await self._database.run(lambda connection: self._insert(connection, wanted, bounds, content, nonce), write=True)

    def _insert(self, connection: sa.Connection, wanted: KeepAnswer, bounds: ResponsesSpec, content: bytes, nonce: bytes) -> None:
        now = self._now(connection)
        tombstones.check(connection, now, wanted.began, wanted.tenant, wanted.owner)
        total = self._total(connection, wanted.tenant, now)
        if total.size + len(content) > bounds.max_total_bytes:
            raise Overloaded(
                "Too many responses of this tenant are kept (responses.max_total_bytes).", code="responses_full", retry_after=60.0
            )
        values: dict[str, Any] = {
            "id": wanted.id,
            "tenant": wanted.tenant,
            "owner": wanted.owner,
            "model": wanted.model,
            "created": now,
            "expires": now + bounds.retention,
            "size": len(content),
        }
        sealed = nonce + self._cipher(wanted.tenant).encrypt(nonce, content, _bound(values))
        connection.execute(sa.insert(table).values(**values, sealed=sealed))
        total.size += len(content)

    def _total(self, connection: sa.Connection, tenant: str, now: float) -> _Total:
        """Reading it takes the longer the more there is (0.1 s for 50,000 answers), and nobody else writes meanwhile; so not every answer
        that is kept reads it again, nor every one that is refused."""
        known = self._totals.get(tenant)
        if known is not None and known.since <= now < known.until:
            return known
        began = time.perf_counter()
        mine = sa.select(sa.func.coalesce(sa.func.sum(table.c.size), 0)).where(table.c.tenant == tenant, table.c.expires > now)
        size = int(connection.execute(mine).scalar_one())
        fresh = min(max(FRESH, _SHARE * (time.perf_counter() - began)), LONGEST)
        if len(self._totals) >= _TENANTS:
            self._totals.clear()
        self._totals[tenant] = found = _Total(size, now, now + fresh)
        return found

    async def find(self, id: str, tenant: str) -> AnswerFound:
        """One of a tenant that has not expired. A row that does not open is as good as none, and is logged."""

        def read(connection: sa.Connection) -> Any:
            if not rows.storable(id) or not rows.storable(tenant):
                return None
            return connection.execute(
                sa.select(table).where(table.c.id == id[:64], table.c.tenant == tenant, table.c.expires > self._now(connection))
            ).first()

        row = await self._database.run(read)
        if row is None:
            return AnswerFound()
        bound = _bound({name: getattr(row, name) for name in _BOUND})
        try:
            content = self._cipher(row.tenant).decrypt(row.sealed[:_NONCE], row.sealed[_NONCE:], bound)
            return AnswerFound(model=row.model, owner=row.owner, said=msgspec.msgpack.decode(content, type=Said))
        except (InvalidTag, msgspec.MsgspecError, ValueError):
            log.error("the kept response %s cannot be opened: it was changed, or stored with another pepper", row.id)
            return AnswerFound()

    async def erase(self, id: str, tenant: str) -> bool:
        """Whether there was one."""

        def erase(connection: sa.Connection) -> int:
            if not rows.storable(id) or not rows.storable(tenant):
                return 0
            this = (table.c.id == id[:64], table.c.tenant == tenant)
            size = connection.execute(sa.select(table.c.size).where(*this)).scalar()
            _overwriting(connection)
            count = connection.execute(sa.delete(table).where(*this)).rowcount
            if count and (total := self._totals.get(tenant)) is not None:
                total.size = max(0, total.size - (size or 0))
            return count

        return bool(await self._database.run(erase, write=True))

    async def erase_all(self, tenant: str) -> int:
        """Erases what a tenant has; returns how many answers that was."""
        count = await self._database.run_in_portions(lambda connection: _some(connection, table.c.tenant == tenant, erase=True), PORTION)
        self._totals.pop(tenant, None)
        return count

    async def sweep(self) -> Sizes:
        """Forgets what has expired; what is left."""

        def left(connection: sa.Connection) -> Sizes:
            count, size = connection.execute(sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.size), 0))).one()
            return Sizes(int(count), int(size))

        await self._database.run_in_portions(lambda connection: _some(connection, table.c.expires <= self._now(connection)), PORTION)
        return await self._database.run(left)


def _some(connection: sa.Connection, which: sa.ColumnElement[bool], *, erase: bool = False) -> int:
    """Deletes some of them; how many. erase: nothing of them stays behind in the file."""
    if erase:
        _overwriting(connection)
    return rows.delete_some(connection, table.c.id, PORTION, which)


def erased(connection: sa.Connection, tenants: Sequence[str]) -> int:
    """Erases what tenants have; how many answers that was."""
    _overwriting(connection)
    return sum(connection.execute(sa.delete(table).where(table.c.tenant.in_(some))).rowcount for some in portions(tenants, rows.MANY))


def erased_of(connection: sa.Connection, owners: Mapping[str, Sequence[str]]) -> None:
    """Erases what single owners have, by tenant. Most tenants keep nothing: they are asked first, all at once."""
    for some in portions(tuple(owners), rows.MANY):
        keeping = connection.execute(sa.select(table.c.tenant).where(table.c.tenant.in_(some)).distinct()).scalars().all()
        for tenant in keeping:
            _overwriting(connection)
            for theirs in portions(owners[tenant], rows.MANY):
                connection.execute(sa.delete(table).where(table.c.tenant == tenant, table.c.owner.in_(theirs)))


def _overwriting(connection: sa.Connection) -> None:
    """What is erased does not stay behind in the file of SQLite."""
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete=ON")).close()


def _bound(values: dict[str, Any]) -> bytes:
    """What is authenticated with the answer."""
    return msgspec.json.encode([values[name] for name in _BOUND])
