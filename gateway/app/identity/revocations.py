"""Revoked tokens in the store, for all replicas: what operators add and take back, and what this process knows of it.

A change is in force here when the write returns, and reaches the other replicas and the workers over their feeds. Each replica clears away
what is over; that two of them may try is harmless.

Replicas judge tokens by their own clocks, which may differ. So "until now" is now by the clock of the replica that is furthest ahead, whose
tokens say that they were issued then; and a revocation is over when the replica that is furthest behind refuses its tokens as expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.app.replicas.membership import Clocks
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import AlreadyExists, GatehouseError, NotFound, RequestError, StoreUnavailable, VersionMismatch
from gateway.core.ports import Change
from gateway.core.specs import IdentitySpec
from gateway.core.specs.identity import MAX_TOKEN_SECONDS
from gateway.core.storage import ControlStore, Page, Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity.revocations import MAX, Revocations, Row, name_of
from gateway.store.feed import CHANGE, RESYNC

KIND: Final = "revocations"
RETRY_SECONDS: Final = 0.5
SLACK_SECONDS: Final = 60.0
"""How far the clocks of issuers and replicas may differ."""
MANY: Final = 64
"""From so many changes on, all are read."""
MAX_TRIES: Final = 5


class RevocationBook:
    """Life: `start` once the store has been started, then `heard` for the feed and `clear` now and then; the owner ends its tasks."""

    def __init__(
        self,
        store: ControlStore,
        known: Revocations,
        settings: Callable[[], IdentitySpec],
        owner: TaskOwner,
        clock: Clock | None = None,
        clocks: Callable[[], Clocks] = Clocks,
    ) -> None:
        self._store, self._known, self._settings, self._owner, self._clocks = store, known, settings, owner, clocks
        self._clock: Clock = clock or SystemClock()
        self._stale: set[str] | None = None
        """Names that have changed; None: all."""
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Puts what is revoked into force. Raises StoreUnavailable."""
        async with self._lock:
            await self._read()

    def heard(self, change: Change) -> None:
        """For the feed: revocations of the store may have changed."""
        _, kind, payload = change
        if kind == RESYNC:
            self._stale = None
        elif kind == CHANGE and isinstance(payload, StoreChange) and payload.kind == KIND:
            if self._stale is not None:
                self._stale.add(payload.name)
        else:
            return
        self._owner.spawn(self._refresh(), name="revocations")

    async def _refresh(self) -> None:
        async with self._lock:
            while self._stale is None or self._stale:
                try:
                    await self._read()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        stale, self._stale = self._stale, set()
        try:
            if stale is None or len(stale) > MANY:
                await self._all()
            else:
                await self._some(stale)
        except StoreUnavailable:
            self._stale = None if stale is None or self._stale is None else stale | self._stale
            raise

    async def _all(self) -> None:
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(KIND, limit=1000, cursor=cursor)
            rows += map(row_of, page.items)
            cursor = page.cursor
            if cursor is None:
                break
        self._known.replace(rows)

    async def _some(self, names: Iterable[str]) -> None:
        put: dict[str, Row] = {}
        dropped: list[str] = []
        for name in names:
            try:
                put[name] = row_of(await self._store.get(KIND, name))
            except NotFound:
                dropped.append(name)
        self._known.apply(put, dropped)

    async def clear(self) -> None:
        """Deletes what is over. A store that does not answer is left to the next time."""
        clocks = self._clocks()
        latest = self._clock.wall() - clocks.own + clocks.least - SLACK_SECONDS
        for name, row in self._known.rows().items():
            if row[4] < latest:
                try:
                    found = await self._store.get(KIND, name)
                    if row_of(found)[4] < latest:  # it may have been revoked anew elsewhere, until later
                        await self._store.delete(KIND, name, actor="gatehouse", version=found.version)
                except (NotFound, VersionMismatch):
                    continue
                except GatehouseError:
                    return

    # --- for operators

    def longest(self) -> float:
        """Seconds that a token which is accepted now can be valid at most."""
        return max([MAX_TOKEN_SECONDS, *(issuer.max_lifetime + issuer.leeway for issuer in self._settings().oidc)]) + SLACK_SECONDS

    async def revoke(
        self, kind: str, issuer: str, value: str, before: float | None, expires: float | None, reason: str, actor: str, *, dry_run: bool
    ) -> Resource:
        """Revokes from now on; again, with a later moment, what is revoked already. before: what was issued until then; None: until now.
        expires: when the revocation is not needed any more; None: when all such tokens have expired.

        Raises RequestError, StoreUnavailable.
        """
        clocks = self._clocks()
        now = self._clock.wall() - clocks.own + clocks.most
        before = now if before is None else before
        over = max(before, now) + self.longest() if expires is None else expires
        row: Row = (kind, issuer, value, before, over)
        name = name_of(row)
        if len(self._known) >= MAX and name not in self._known.rows():
            raise RequestError(
                f"{MAX} revocations are in force, and there is no room for more: revoke a subject or an issuer instead.", code="too_many"
            )
        made = await self._written(name, row, reason, actor, dry_run)
        if not dry_run:
            self._known.apply({name: row_of(made)}, ())
        return made

    async def _written(self, name: str, row: Row, reason: str, actor: str, dry_run: bool) -> Resource:
        kind, issuer, value, before, expires = row
        for _ in range(MAX_TRIES):
            body: dict[str, Any] = {
                "type": kind, "issuer": issuer, "value": value, "before": before, "expires": expires, "reason": reason,
            }  # fmt: skip
            try:
                known = await self._store.get(KIND, name)
                body["before"] = max(before, float(known.body["before"]))
                body["expires"] = max(expires, float(known.body["expires"]))
                return await self._store.update(KIND, name, body, actor=actor, version=known.version, dry_run=dry_run)
            except NotFound:
                pass
            except VersionMismatch:
                continue  # by somebody else, perhaps until later
            try:
                return await self._store.create(KIND, name, body, actor=actor, dry_run=dry_run)
            except AlreadyExists:
                continue  # another replica was faster
        raise StoreUnavailable("The revocation changes too often.", retry_after=1.0)

    async def page(self, limit: int, cursor: str | None) -> Page[Resource]:
        return await self._store.list(KIND, limit=limit, cursor=cursor)

    async def get(self, name: str) -> Resource:
        return await self._store.get(KIND, name)

    async def lift(self, name: str, actor: str, *, dry_run: bool) -> Resource:
        """Takes a revocation back. Raises NotFound."""
        gone = await self._store.delete(KIND, name, actor=actor, dry_run=dry_run)
        if not dry_run:
            self._known.apply({}, (name,))
        return gone

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        yield GaugeMetricFamily("gatehouse_revocations", "Revocations of tokens in force", value=len(self._known))


def row_of(resource: Resource) -> Row:
    body = resource.body
    return str(body["type"]), str(body["issuer"]), str(body["value"]), float(body["before"]), float(body["expires"])
