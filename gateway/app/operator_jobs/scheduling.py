"""Ends the schedules of those who are gone: jobs run as whoever made the schedule, and nobody is left to answer for them. The schedules and
jobs of those who are suspended or halted rest meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from gateway.core.batches import Creator
from gateway.core.clock import Clock
from gateway.core.errors import NotFound
from gateway.core.jobs import ScheduleRecord
from gateway.core.standing import Standing
from gateway.core.storage import KeyRecord
from gateway.core.types import Acting, Login, Principal
from gateway.identity.revocations import Revocations
from gateway.store.jobs import StoredJobs

log = logging.getLogger("gatehouse.jobs")
LOOK_SECONDS: Final = 5.0
PORTION: Final = 200
"""Schedules whose makers are looked for in one look, each with a question to the store."""
Record = Callable[..., None]


class Schedulers:
    """Whether those who made schedules are still there, and may have jobs run. key: of the store. fixed: (tenant, id) of the keys in the
    configuration. deleted: (tenant, user, since), whether the user was deleted since that moment."""

    def __init__(
        self,
        key: Callable[[str], Awaitable[KeyRecord]],
        fixed: Callable[[], Collection[tuple[str, str]]],
        revocations: Revocations,
        standing: Standing,
        clock: Clock,
        deleted: Callable[[str, str, float], Awaitable[bool]],
    ) -> None:
        self._key, self._fixed, self._revocations, self._standing, self._clock = key, fixed, revocations, standing, clock
        self._deleted = deleted

    def stopped(self, creator: Creator) -> bool:
        """Whether they, or those who act for them, are suspended or halted now."""
        if not self._standing.active:
            return False
        login = Login(acting=tuple(Acting(*one) for one in creator.acting))
        maker = Principal(creator.id, creator.tenant, creator.kind, user=creator.user, agent=creator.agent, login=login)
        return self._standing.of(maker) is not None

    async def gone(self, creator: Creator, since: float) -> bool:
        """Whether the key has ended, or is another one of its id than at the moment `since`; the token was revoked, or the user deleted, or
        that of somebody who acts in it. Raises StoreUnavailable."""
        if creator.kind != "api_key":
            if any(self._revocations.refuses(*one) for one in creator.tokens()):
                return True
            for user in {creator.user, *(user or actor for actor, user, *_ in creator.acting)} - {""}:
                if await self._deleted(creator.tenant, user, since):
                    return True
            return False
        if not creator.made and (creator.tenant, creator.id) in self._fixed():
            return False
        try:
            record = await self._key(creator.id)
        except NotFound:
            return True
        ends = record.ends()
        another = not creator.made_with(record) or (creator.made is None and record.created > since)
        return another or (ends is not None and ends <= self._clock.wall())


class ScheduleCheck:
    """record: (event, target, detail, actor=, outcome=) for the audit log."""

    def __init__(self, kept: StoredJobs, schedulers: Schedulers, record: Record, clock: Clock) -> None:
        self._kept, self._schedulers, self._record, self._clock = kept, schedulers, record, clock
        self._due = float("-inf")
        self._after: tuple[str, str] | None = None
        """The schedule that was looked at last; None: the next look begins anew."""

    async def look(self) -> None:
        """Ends the schedules whose maker is gone: of those that are due now every one, of the others PORTION every LOOK_SECONDS. Raises
        StoreUnavailable."""
        await self._check(await self._kept.due())
        now = self._clock.monotonic()
        if now < self._due:
            return
        found = await self._kept.schedules(None, after=self._after, most=PORTION)
        await self._check(found)
        self._after = (found[-1].tenant, found[-1].name) if len(found) == PORTION else None
        self._due = now + LOOK_SECONDS

    async def _check(self, schedules: list[ScheduleRecord]) -> None:
        for one in schedules:
            if not await self._schedulers.gone(one.creator, one.created):
                continue
            with suppress(NotFound):  # another replica was first
                await self._kept.drop_schedule(one.tenant, one.name, one.created)
                log.warning("the schedule %s/%s has ended: the credential of %s that made it has", one.tenant, one.name, one.creator.name)
                detail = {"tenant": one.tenant, "code": "creator_stopped"}
                self._record("job_unscheduled", f"{one.tenant}/{one.name}", detail, actor=one.creator.name, outcome="denied")
