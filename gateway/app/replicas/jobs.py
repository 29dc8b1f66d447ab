"""Jobs that one replica does for all: each under a lease in the store, in turns of its period, taken over when its holder dies.

Every replica looks every LOOK seconds which jobs are due and free, and takes one. While a job runs, its lease is renewed; when that fails,
the job is cancelled. A job whose replica was killed, or is paused, is done by another one after HOLD + LOOK seconds at the latest. What a
job writes to the store is written under its lease (`lease` is passed to it), so one that was paused too long writes nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct

from gateway.core.errors import GatehouseError, LeaseLost
from gateway.core.storage import ControlStore, Lease, LeaseRoll
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse")
LOOK: Final = 5.0
HOLD: Final = 15.0
"""Seconds for which a lease lasts without being renewed."""


class Job(Struct, frozen=True):
    """period: seconds from the end of one run to the beginning of the next."""

    name: str
    period: float
    run: Callable[[Lease], Coroutine[Any, Any, None]]


class Jobs:
    """holder: this process, unlike every other. Life: `start`, `aclose` before the store closes."""

    def __init__(self, store: ControlStore, holder: str, jobs: Sequence[Job], *, look: float = LOOK, hold: float = HOLD) -> None:
        self._store, self._holder, self._jobs = store, holder, tuple(jobs)
        self._look_seconds, self._hold = look, hold
        self._held: dict[str, Lease] = {}
        self._looking = asyncio.Lock()
        self._tasks = TaskOwner("jobs")

    def start(self) -> None:
        self._tasks.spawn(self.look(), name="first look")
        self._tasks.every(self._look_seconds, self.look, name="look")

    async def look(self) -> None:
        """Starts the jobs that are due and that nobody does. A store that does not answer is left to the next time.

        One look at a time: the store gives whoever holds a lease a new one, so two looks would begin the same job twice.
        """
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        try:
            roll = await self._store.leases()
            for job in self._jobs:
                if job.name not in self._held and _free(roll, job):
                    lease = await self._store.take_lease(job.name, self._holder, self._hold, period=job.period)
                    if lease is not None:
                        self._held[job.name] = lease
                        self._tasks.spawn(self._do(job, lease), name=job.name)
        except GatehouseError as error:
            log.debug("jobs could not be looked for: %s", error.message)

    async def _do(self, job: Job, lease: Lease) -> None:
        """One run. A job that failed is tried again when its lease has expired, here or elsewhere."""
        running = self._tasks.spawn(job.run(lease), name=f"{job.name}:run")
        try:
            while not (await asyncio.wait((running,), timeout=self._hold / 3))[0]:
                self._held[job.name] = await self._store.renew_lease(lease, self._hold)
            await running
            await self._store.finish_lease(lease, done=True)
        except asyncio.CancelledError:
            running.cancel()
            raise  # `aclose` gives the lease back
        except LeaseLost as error:
            log.warning("the job %r is not this replica's any more: %s", job.name, error.message)
        except GatehouseError as error:
            log.warning("the job %r failed: %s", job.name, error.message)
        except Exception:  # boundary: this replica or another one tries again
            log.exception("the job %r failed", job.name)
        running.cancel()
        del self._held[job.name]

    async def aclose(self) -> None:
        """Breaks off what runs here and gives it back: another replica does it again."""
        await self._tasks.aclose()
        for lease in self._held.values():
            try:
                await self._store.finish_lease(lease, done=False)
            except GatehouseError as error:
                log.debug("the job %r could not be given back: %s", lease.name, error.message)


def _free(roll: LeaseRoll, job: Job) -> bool:
    known = next((lease for lease in roll.leases if lease.name == job.name), None)
    if known is None:
        return True
    return (not known.holder or known.expires <= roll.now) and roll.now >= known.done + job.period
