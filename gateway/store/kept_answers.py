"""Answers of the Responses API that are kept. Everything of them is encrypted but what is needed to find, bound and forget them.

AES-256-GCM under a key of each tenant, derived from the pepper (HKDF-SHA256, RFC 5869): every replica that shares a store can open it, the
database alone cannot. The row's identifier, tenant, owner, model and times are authenticated with it: moved to another tenant, or changed,
it does not open. Moments are the database's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.clock import Entropy
from gateway.core.conversations import AnswerFound, KeepAnswer, ResponsesSpec, Said
from gateway.core.errors import Overloaded, RequestError
from gateway.store import gone, rows
from gateway.store.database import Database
from gateway.store.tables import kept_answers as table

log = logging.getLogger("gatehouse.store")
_NONCE: Final = 12
_BOUND: Final = ("id", "tenant", "owner", "model", "created", "expires")


class Sizes(NamedTuple):
    """What is kept: answers, and bytes of them."""

    answers: int
    size: int


class KeptAnswers:
    """key: 32 secret bytes that all replicas share, once the store has been started."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float], key: Callable[[], bytes], entropy: Entropy) -> None:
        self._database, self._now, self._key, self._entropy = database, now, key, entropy

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
        gone.check(connection, now, wanted.began, wanted.tenant, wanted.owner)
        mine = sa.select(sa.func.coalesce(sa.func.sum(table.c.size), 0)).where(table.c.tenant == wanted.tenant, table.c.expires > now)
        if connection.execute(mine).scalar_one() + len(content) > bounds.max_total_bytes:
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
            _overwriting(connection)
            return connection.execute(sa.delete(table).where(table.c.id == id[:64], table.c.tenant == tenant)).rowcount

        return bool(await self._database.run(erase, write=True))

    async def erase_all(self, tenant: str) -> int:
        """Erases what a tenant has; returns how many answers that was."""

        return await self._database.run(lambda connection: erased(connection, tenant), write=True)

    async def sweep(self) -> Sizes:
        """Forgets what has expired."""

        def clear(connection: sa.Connection) -> Sizes:
            connection.execute(sa.delete(table).where(table.c.expires <= self._now(connection)))
            count, size = connection.execute(sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.size), 0))).one()
            return Sizes(int(count), int(size))

        return await self._database.run(clear, write=True)


def erased(connection: sa.Connection, tenant: str, owner: str | None = None) -> int:
    """Erases what a tenant has, or only what one owner in it has; how many answers that was."""
    which = sa.true() if owner is None else table.c.owner == owner
    _overwriting(connection)
    return connection.execute(sa.delete(table).where(table.c.tenant == tenant, which)).rowcount


def _overwriting(connection: sa.Connection) -> None:
    """What is erased does not stay behind in the file of SQLite."""
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete=ON")).close()


def _bound(values: dict[str, Any]) -> bytes:
    """What is authenticated with the answer."""
    return msgspec.json.encode([values[name] for name in _BOUND])
