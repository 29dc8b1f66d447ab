"""This process among the replicas that share the store: tells that it serves, and notices another one with the same id.

Every `period` seconds it writes its row of the roll; after LOST periods without one a replica counts as lost. Two machines with one id (a
copied state directory, an id given twice) are seen as two rows that are both written again and again. Both say so, and go on serving:
which one is wrong only an operator can tell.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from gateway.core.errors import GatehouseError
from gateway.core.storage import ControlStore, ReplicaRecord, Roll
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse")
PERIOD: Final = 10.0
LOST: Final = 3
"""Periods after which a replica that wrote nothing counts as lost."""
SKEW_SECONDS: Final = 5.0
"""A larger difference to the database's clock is reported: keys expire by the replica's own clock."""
STEP_SECONDS: Final = 1.0
"""How much a clock's difference to the database's may change between two beats. If it changes more, other replicas are told at once."""


class Clocks(NamedTuple):
    """Seconds by which clocks are ahead of the database's. own: this machine's. least, most: of the replicas that serve, and of the
    database's own; so `least` is 0 or less, and `most` is 0 or more."""

    own: float = 0.0
    least: float = 0.0
    most: float = 0.0


class Membership:
    """Life: `start` once the addresses of the listeners are known, `aclose` before the store closes.

    record: (event, target, detail) for the audit log. `incarnation`: this process, among all that ever had this id.
    """

    def __init__(
        self, store: ControlStore, replica: str, version: str, record: Callable[[str, str, dict[str, Any]], None], period: float = PERIOD
    ) -> None:
        self._store, self._record, self._period = store, record, period
        self.replica, self.incarnation = replica, secrets.token_hex(8)
        self._told = ReplicaRecord(id=replica, incarnation=self.incarnation, host=socket.gethostname(), version=version)
        self.live = 1
        """How many replicas serve, as far as they were seen lately."""
        self.serving: frozenset[str] = frozenset((replica,))
        """The ids of those."""
        self.rivals: tuple[ReplicaRecord, ...] = ()
        """Other processes that have this replica's id at the same time."""
        self.skew = 0.0
        """Seconds by which this machine's clock is ahead of the database's."""
        self._least = self._most = 0.0
        self.processes = 1
        """How many processes serve, over all replicas that were seen lately: what each one has of a limit that cannot be shared."""
        self.call: Callable[[], None] = lambda: None
        """Asks the other replicas to write their rows now."""
        self._looked: float | None = None
        """When the roll was seen last, by the clock of the database."""
        self._off = self._joined = self._answering = False
        self._tasks = TaskOwner("membership")

    @property
    def holder(self) -> str:
        """How leases name this process."""
        return f"{self.replica}/{self.incarnation}"

    def clocks(self) -> Clocks:
        """How far the clocks of the replicas that serve are apart, as it was measured last."""
        return Clocks(self.skew, self._least, self._most)

    def ahead(self) -> float | None:
        """`skew`; None until it has been measured."""
        return None if self._looked is None else self.skew

    def start(self, data: str, admin: str, workers: int = 0) -> None:
        """Tells that it serves at these addresses, now and from now on."""
        self._told = replace(self._told, data=data, admin=admin, workers=workers)
        self._tasks.spawn(self.beat(), name="first beat")
        self._tasks.every(self._period, self.beat, name="beat")

    async def beat(self) -> None:
        """Writes this replica's row and looks at the others. A store that does not answer is left to the next time."""
        first, alone = not self._joined, not self.rivals
        try:
            roll = await self._store.beat(self._told, stale=LOST * self._period)
            self._joined = True
            self._look(roll)
            if alone and self.rivals:  # everybody is to see that this one was there after the other had come
                await self._store.beat(self._told, stale=LOST * self._period)
        except GatehouseError as error:
            log.debug("the roll of replicas could not be written: %s", error.message)
            return
        if first and any(one.id == self.replica and one.incarnation != self.incarnation for one in roll.replicas):
            self.call()  # is it a process that ended, or another one that serves?

    def called(self) -> None:
        """Another replica asks who serves; answered at most once a second."""
        if self._joined and not self._answering:
            self._answering = True
            self._tasks.spawn(self._answer(), name="answer")

    async def _answer(self) -> None:
        try:
            await self.beat()
            await asyncio.sleep(1.0)
        finally:
            self._answering = False

    def _look(self, roll: Roll) -> None:
        mine = next(one for one in roll.replicas if one.incarnation == self.incarnation)
        away, self._looked = self._looked is not None and roll.now - self._looked > 2 * self._period, roll.now
        alive = roll.now - LOST * self._period
        serving = {one.id: one for one in roll.replicas if one.seen >= alive or (away and one.id in self.serving)}
        stepped = abs(mine.skew - self.skew) > STEP_SECONDS
        if away or stepped:
            # This process or the store stood still: others may have, too, and are asked before they count as lost. Or its clock is another.
            self.call()
        self.processes = max(1, sum(max(1, one.workers) for one in serving.values()))
        self.skew = mine.skew
        skews = [0.0, mine.skew, *(one.skew for one in serving.values())]
        self._least, self._most = min(skews), max(skews)
        self.live, self.serving = max(1, len(serving)), frozenset((self.replica, *serving))
        if (abs(self.skew) > SKEW_SECONDS) != self._off:
            self._off = not self._off
            if self._off:
                log.warning("this machine's clock differs from the database's by %.0f s: keys expire by this machine's clock", self.skew)
            else:
                log.info("this machine's clock agrees with the database's again")
        before, self.rivals = self.rivals, self._rivals(roll, mine)
        if self.rivals and not before:
            where = ", ".join(f"{one.host} (data {one.data or 'unknown'})" for one in self.rivals)
            log.error("another gateway has this replica's id %r too, on %s: give each one an id of its own", self.replica, where)
            self._record("replica_duplicate", self.replica, {"host": self._told.host, "others": [one.host for one in self.rivals]})
        elif before and not self.rivals:
            log.info("no other gateway has this replica's id %r any more", self.replica)

    def _rivals(self, roll: Roll, mine: ReplicaRecord) -> tuple[ReplicaRecord, ...]:
        """Those that were seen after this one had started, and not too long ago: a process that this one replaced is never seen again."""
        alive = roll.now - LOST * self._period
        return tuple(
            one
            for one in roll.replicas
            if one.id == self.replica and one.incarnation != self.incarnation and one.seen > mine.started and one.seen >= alive
        )

    async def view(self) -> dict[str, Any]:
        """For operators: replicas with their state, and the jobs that one of them does for all. Raises StoreUnavailable."""
        roll, jobs = await self._store.roll(), await self._store.leases()
        alive = roll.now - LOST * self._period
        serving = [one for one in roll.replicas if one.seen >= alive]
        return {
            "replicas": [
                {
                    "id": one.id,
                    "state": "serving" if one in serving else "lost",
                    "here": one.incarnation == self.incarnation,
                    "duplicate": any(self._contend(one, other) for other in serving),
                    "host": one.host,
                    "data": one.data,
                    "admin": one.admin,
                    "version": one.version,
                    "workers": one.workers,
                    "started_at": one.started,
                    "seen_at": one.seen,
                    "clock_skew": round(one.skew, 3),
                }
                for one in roll.replicas
                if not any(self._replaced(one, other) for other in roll.replicas)
            ],
            "jobs": [
                {
                    "name": job.name,
                    "holder": job.holder.partition("/")[0] if job.expires > jobs.now else "",
                    "done_at": job.done or None,
                }
                for job in jobs.leases
            ],
        }

    @staticmethod
    def _replaced(one: ReplicaRecord, other: ReplicaRecord) -> bool:
        """Whether it was not seen again since another process with its id had started: a restart, not worth a line."""
        return one.id == other.id and one.incarnation != other.incarnation and one.started < other.started and one.seen <= other.started

    @staticmethod
    def _contend(one: ReplicaRecord, other: ReplicaRecord) -> bool:
        """Whether the older one was seen after the newer one had started: it was not replaced."""
        older, newer = sorted((one, other), key=lambda record: record.started)
        return one.id == other.id and one.incarnation != other.incarnation and older.seen > newer.started

    async def aclose(self) -> None:
        """Leaves the roll."""
        await self._tasks.aclose()
        if self._joined:
            try:
                await self._store.leave(self.replica, self.incarnation)
            except GatehouseError as error:
                log.debug("the roll of replicas could not be left: %s", error.message)
