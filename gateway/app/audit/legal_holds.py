"""Legal holds of the whole fleet: kept in the store, where every replica sees them, and in a file beside each replica's log.

The file is what retention asks, so that it works while the store is away. It follows the store, at once by the feed and every LOOK_SECONDS.
While a replica does not know what the store says, it takes nothing away. A hold is in force here before the store has it, and is brought
there later if the store is away. A hold in the store is never deleted, only marked as released, so that a store that was emptied or put
back to an older copy releases nothing; and each is authenticated with a key that only the gateways know, so that a row changed in the
database releases nothing either.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.audit.holds import Hold, Holds
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import AlreadyExists, GatehouseError, StoreUnavailable, VersionMismatch
from gateway.core.ports import Change
from gateway.core.storage import ControlStore, Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.feed import CHANGE, RESYNC

log = logging.getLogger("gatehouse.audit")
KIND: Final = "audit_holds"
LOOK_SECONDS: Final = 15.0
SURE_SECONDS: Final = 60.0
"""How long what was read from the store counts as current."""
TRIES: Final = 3
PAGE: Final = 200
"""Holds of the store that are authenticated in one step."""
CHANGED: Final = "its row in the store was changed by something other than a gateway"
UNKNOWN: Final = "which tenants are held cannot be known: the store has not answered for too long"


class HoldBody(msgspec.Struct, frozen=True, kw_only=True):
    """A legal hold, as it is stored. released: when it was lifted (seconds since the epoch); 0 while it is in force."""

    tenant: str
    since: float
    why: str
    actor: str
    released: float = 0.0
    proof: str = ""


class LegalHolds:
    """Life: `start` once the store has been started, then `heard` for the feed. key: what rows are authenticated with. files: of this
    replica's log."""

    def __init__(self, store: ControlStore, key: Callable[[], bytes], files: Holds, owner: TaskOwner, clock: Clock | None = None) -> None:
        self._store, self._key, self._files, self._owner = store, key, files, owner
        self._clock: Clock = clock or SystemClock()
        self._lock = asyncio.Lock()
        self._sure: float | None = None
        self._told = False
        self._held = 0

    # --- life

    async def start(self) -> None:
        await self.look()
        self._owner.every(LOOK_SECONDS, self.look, name="legal holds")

    def heard(self, change: Change) -> None:
        """For the feed: holds in the store may have changed."""
        _, kind, payload = change
        if kind == RESYNC or (kind == CHANGE and isinstance(payload, StoreChange) and payload.kind == KIND):
            self._owner.spawn(self.look(), name="legal holds")

    async def look(self) -> None:
        """Brings file and store together; what fails is left to the next time."""
        try:
            async with self._lock:
                await self._together()
        except (GatehouseError, OSError) as error:
            if not self._told:
                self._told = True
                log.warning("legal holds cannot be compared with the store: %s", error)
        else:
            self._told = False

    # --- for those who take something away

    def unsure(self) -> str:
        """Why nothing may be taken away now, or "". For any thread."""
        return UNKNOWN if self._sure is None or self._clock.monotonic() - self._sure > SURE_SECONDS else ""

    def why(self, tenant: str) -> str:
        """Why a tenant's texts may not be destroyed, or "". Blocks."""
        return self._files.why(tenant) or self.unsure()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_audit_holds", "Tenants under a legal hold", value=self._held)
        known = 0.0 if self.unsure() else 1.0
        yield GaugeMetricFamily("gatehouse_audit_holds_known", "Whether this replica knows which tenants are held", value=known)

    # --- for operators

    async def list(self) -> list[dict[str, Any]]:
        """As this replica knows them. Raises OSError."""
        return [_shown(hold) for hold in await asyncio.to_thread(self._files.list)]

    async def add(self, tenant: str, why: str, actor: str) -> dict[str, Any]:
        """Holds a tenant: here when this returns, and on every replica within seconds if the answer says `everywhere`. An older hold stays.
        Raises OSError."""
        async with self._lock:
            made = await asyncio.to_thread(self._files.add, tenant, why, actor)
            try:
                await self._together()
            except GatehouseError as error:
                log.warning("the legal hold of the tenant %r is not in the store yet: %s", tenant[:128], error.message)
            now = await asyncio.to_thread(self._files.list)
        return _shown(next((hold for hold in now if hold.tenant == tenant), made))

    async def release(self, tenant: str) -> dict[str, Any] | None:
        """The hold that was released everywhere, with the time (`released`), if there was one. Raises StoreUnavailable, OSError: then it
        stays."""
        async with self._lock:
            await self._together()
            moment = self._clock.wall()
            for _ in range(TRIES):
                found = (await self._rows()).get(tenant)
                if found is None or found[0].released:
                    break
                body = msgspec.structs.replace(found[0], released=moment)
                try:
                    await self._store.update(KIND, found[1].name, self._signed(body), actor="gatehouse", version=found[1].version)
                    break
                except VersionMismatch:
                    continue
            else:
                raise StoreUnavailable("the hold was changed by others all the time: try again")
            gone = await asyncio.to_thread(self._files.release, tenant)
            await self._together()
        return None if gone is None else {**_shown(gone), "released": moment}

    # --- file and store

    async def _together(self) -> None:
        """Raises StoreUnavailable, OSError."""
        rows = await self._rows()
        for hold in await asyncio.to_thread(self._files.list):
            row = rows.get(hold.tenant)
            if row is None:
                await self._push(hold, None)
            elif row[0].released and (not hold.stored or hold.since > row[0].released):  # held again; or an older row was put back
                await self._push(msgspec.structs.replace(hold, since=max(hold.since, row[0].released + 0.001)), row[1])
        rows = await self._rows()
        wanted = [Hold(body.tenant, body.since, body.why, body.actor, stored=True) for body, _ in rows.values() if not body.released]
        await asyncio.to_thread(self._files.follow, wanted)
        self._held, self._sure = len(wanted), self._clock.monotonic()

    async def _push(self, hold: Hold, over: Resource | None) -> None:
        body = self._signed(HoldBody(tenant=hold.tenant, since=hold.since, why=hold.why, actor=hold.actor))
        try:
            if over is None:
                await self._store.create(KIND, name_of(hold.tenant), body, actor="gatehouse")
            else:
                await self._store.update(KIND, over.name, body, actor="gatehouse", version=over.version)
        except (AlreadyExists, VersionMismatch):
            return  # another replica was faster

    async def _rows(self) -> dict[str, tuple[HoldBody, Resource]]:
        """The holds in the store, by tenant. In a row that was tampered with, nothing counts as released."""
        found: dict[str, tuple[HoldBody, Resource]] = {}
        cursor: str | None = None
        while True:
            page = await self._store.list(KIND, limit=PAGE, cursor=cursor)
            for one in page.items:
                body = self._read(one)
                if body is not None:
                    found[body.tenant] = (body, one)
            if (cursor := page.cursor) is None:
                return found

    def _read(self, row: Resource) -> HoldBody | None:
        try:
            body = msgspec.convert(row.body, HoldBody)
        except msgspec.ValidationError:
            log.error("the legal hold %s of the store cannot be understood", row.name)
            raise StoreUnavailable(f"the legal hold {row.name} of the store cannot be understood") from None
        if hmac.compare_digest(body.proof, self._proof(body)) and row.name == name_of(body.tenant):
            return body
        log.error("the legal hold %s of the store was changed by something other than a gateway: it stays in force", row.name)
        return msgspec.structs.replace(body, released=0.0, why=f"{body.why} ({CHANGED})")

    def _signed(self, body: HoldBody) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(body, proof=self._proof(body)))
        return plain

    def _proof(self, body: HoldBody) -> str:
        return hmac.new(self._key(), msgspec.json.encode(msgspec.structs.replace(body, proof="")), "sha256").hexdigest()


def name_of(tenant: str) -> str:
    """The row's name: a tenant's may hold what a resource's may not."""
    return sha256(tenant.encode()).hexdigest()[:40]


def _shown(hold: Hold) -> dict[str, Any]:
    return {"tenant": hold.tenant, "since": hold.since, "why": hold.why, "actor": hold.actor, "everywhere": hold.stored}
