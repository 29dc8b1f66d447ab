"""Keeps so many workers serving: starts them, replaces one that leaves, ends all.

Each of the N places has one worker that serves or is about to. A worker that dies is replaced at once, after several quick deaths after a
growing pause (states.pause). One that still finishes what it has keeps its id until its process has ended; its successor takes another.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.app.workers import states
from gateway.app.workers.hub import PULSE_SECONDS, Hub, Process, Worker
from gateway.app.workers.messages import Drain
from gateway.core.errors import GatehouseError
from gateway.core.pauses import slept
from gateway.core.specs import ListenSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.workers")

START_SECONDS: Final = 120.0
"""A worker that is not ready by then is ended."""
END_SECONDS: Final = 15.0
"""What a worker may take beyond its deadlines to close the audit log and everything else."""
REAP_SECONDS: Final = 0.5
"""Seconds that a worker may take to exit after its feed has ended. Until then its id is taken: a successor gets another."""
MOST_LEFT: Final = 256
"""Workers of earlier starts that may still have ids."""
STEP_SECONDS: Final = 5.0
"""Of a wait for a worker: a pause of this process costs the worker none of its time, but for the step in which it ends."""
Spawn = Callable[[int, int], Process]
"""(descriptor of the feed, of the listening socket) -> the process that has inherited both. Raises OSError."""
Record = Callable[[str, str, dict[str, Any], str], None]
"""(event, worker, detail, outcome): for the audit log."""


class Place:
    """One of the N. worker: the one that serves there or is about to. failed: why one could not be told its settings, which time does not
    mend."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.failed = ""
        self.quick_deaths = 0
        self.replacing = asyncio.Lock()


class Pool:
    """data: the listening socket, which is never closed here. replica: beginning of the workers' ids. listen: the settings in force. free:
    whether no process has an id. Life: `start`, `leave`, `aclose`."""

    def __init__(
        self,
        count: int,
        replica: str,
        data: socket.socket,
        hub: Hub,
        spawn: Spawn,
        record: Record,
        listen: Callable[[], ListenSpec],
        free: Callable[[str], bool] = lambda id: True,
    ) -> None:
        self._replica, self._data, self._hub, self._spawn, self._record = replica, data, hub, spawn, record
        self._listen, self._free = listen, free
        self._places = [Place() for _ in range(count)]
        self._tasks = TaskOwner("workers")
        self._leaving = False
        self._keepers: list[asyncio.Task[None]] = []
        self.restarts = 0
        """Workers that were started in the place of one that died."""
        self.failed = ""
        """Why the last worker that could not put its state into force could not."""

    @property
    def count(self) -> int:
        return len(self._places)

    # --- life

    def start(self) -> None:
        """Starts all workers; `ready` waits for them."""
        self._tasks.every(PULSE_SECONDS, self._hub.beat, name="pulse")
        for place in self._places:
            self._keepers.append(self._tasks.spawn(self._keep(place), name="keep a worker"))

    def adopt(self, worker: Worker) -> None:
        """Takes over a worker that another program has started. One that serves gets a place; `start` finds it there."""
        place = next((place for place in self._places if place.worker is None), None)
        if worker.live and place is not None:
            place.worker = worker
        self._tasks.spawn(self._reap(worker), name="reap a worker")
        self._tasks.spawn(self._watch(worker), name="watch a worker")
        if worker.live and place is None:
            self.drain(worker, 0.0, others=True)

    async def let_go(self) -> None:
        """Leaves all workers to the program that takes this one's place: nobody is replaced or asked any more. Those that still start
        are ended: they could not be told the rest of their state, and have served nobody."""
        self._leaving = True
        for keeper in self._keepers:
            keeper.cancel()
        starting = [worker for worker in self._hub.workers.values() if worker.state == "starting"]
        for worker in starting:
            self._dismiss(worker)
        for worker in starting:
            await _within(worker.over, END_SECONDS)
        await self._tasks.aclose()

    def busy(self) -> str | None:
        """Why the workers cannot be handed over now, or None. A place whose worker has died is no reason: where successors do not start
        it stays so, and the program that could start them would never come."""
        for place in self._places:
            if place.worker is None or place.worker.state == "starting" or place.replacing.locked():
                return "a worker is being started or replaced"
        return None

    def adopted(self) -> list[str]:
        """Ids of the workers that serve and were started by another program. One that has died is not renewed: it has a successor."""
        workers = [place.worker for place in self._places if place.worker is not None]
        return [worker.id for worker in workers if worker.adopted and worker.live]

    async def ready(self) -> None:
        """Returns once every place has a worker that serves. Raises GatehouseError with the reason when the first one of a place fails;
        one that another program has started does not count as that: it may die, and has a successor. While one of that program serves,
        no failure ends the gateway: the place is tried again."""
        for place in self._places:
            while True:
                failed = ""
                if (worker := place.worker) is not None:
                    await worker.ready.wait()
                    if worker.state != "failed":
                        break
                    if not worker.adopted:
                        failed = f"worker {worker.id} did not start: {worker.reason}"
                elif place.failed:
                    failed = f"a worker could not be started: {place.failed}"
                if failed and not self.adopted():
                    raise GatehouseError(failed)
                if failed:
                    break
                await asyncio.sleep(0.01)

    async def leave(self, delay: float) -> None:
        """Ends all workers: each goes on serving for `delay` seconds, then finishes what runs; one that starts closes its audit log.
        Returns when all processes have ended."""
        self._leaving = True
        for keeper in self._keepers:
            keeper.cancel()
        workers = list(self._hub.workers.values())
        for worker in workers:
            if worker.channel is None:  # it knows nothing yet, and has opened nothing
                self._dismiss(worker)
            else:
                self.drain(worker, 0.0 if worker.state == "starting" else delay)
        for worker in workers:
            await worker.over.wait()

    def hurry(self) -> None:
        """A second wish to leave: everything that is under way ends now."""
        for worker in list(self._hub.workers.values()):
            self._hub.tell(worker.id, Drain())

    async def aclose(self) -> None:
        """Ends every process that is left, and waits for their end."""
        self._leaving = True
        for keeper in self._keepers:
            keeper.cancel()
        for worker in list(self._hub.workers.values()):
            self._dismiss(worker)
            await worker.over.wait()
        await self._tasks.aclose()

    @staticmethod
    def _dismiss(worker: Worker) -> None:
        """Ends a process at once. For one that has served nobody yet that is no death."""
        worker.dismissed = worker.dismissed or worker.state == "starting"
        worker.child.kill()

    # --- one worker

    async def replace(self, id: str) -> None:
        """Starts another worker in the place of this one, and has this one finish once the other serves.

        Raises GatehouseError when there is no such worker or its successor does not start; then this one goes on.
        """
        place = next((place for place in self._places if place.worker is not None and place.worker.id == id), None)
        if place is None:
            raise GatehouseError(f"there is no worker named {id!r}", code="not_found", status=404)
        async with place.replacing:
            old = place.worker
            if self._leaving or old is None or old.id != id or not old.live:
                return  # it is being replaced already
            new = await self._launch()
            await new.ready.wait()
            if new.state != "ready":
                raise GatehouseError(f"the worker that was to replace {id} did not start: {new.reason}", code="worker_failed", status=502)
            place.worker = new
            self.drain(old, 0.0, others=True)

    async def renew(self, failed: Callable[[str], Awaitable[None]]) -> None:
        """Replaces the adopted workers that serve, one by one; returns when each has a successor that serves. failed: called with the
        reason why one does not start, while the old one goes on; when it returns, that is tried again."""
        while adopted := self.adopted():
            try:
                await self.replace(adopted[0])
            except (GatehouseError, OSError) as error:
                log.error("worker %s continues with the previous program, because its successor does not start: %s", adopted[0], error)
                self._record("upgrade_incomplete", adopted[0], {"reason": str(error)}, "failed")
                await failed(str(error))

    def drain(self, worker: Worker, delay: float, *, others: bool = False) -> None:
        """Has a worker finish. others: other workers go on accepting. It is ended if it takes longer than its deadlines allow."""
        if worker.live:
            listen = self._listen()
            finishing = listen.request_timeout + listen.keep_alive_timeout if others else delay + listen.drain_timeout
            worker.grace = finishing + END_SECONDS
            self._hub.leaving(worker)
            self._hub.tell(worker.id, Drain(delay, others))

    async def _keep(self, place: Place) -> None:
        """Keeps one place served until cancelled."""
        again = False
        while True:
            try:
                async with place.replacing:  # while one is being replaced, its successor is on its way already
                    if place.worker is None or not place.worker.live:
                        self.restarts += again
                        place.worker = await self._launch()
                    worker = place.worker
            except (OSError, GatehouseError) as error:
                log.error("a worker could not be started: %s", error)
                place.quick_deaths += states.QUICK_DEATHS
                if isinstance(error, GatehouseError):
                    place.failed = str(error)
            else:
                while worker is place.worker:
                    await worker.left.wait()
                    if worker is place.worker:
                        break
                    worker = place.worker  # it was replaced
                quick = time.monotonic() - worker.started < states.QUICK_SECONDS
                place.quick_deaths = place.quick_deaths + 1 if quick else 0
                if worker.channel is not None and worker.channel.ended is not None:
                    # Its feed ended, mostly because it was killed: as soon as its process is reaped its id and its audit chain are free.
                    await _within(worker.over, REAP_SECONDS)
            again = True
            await asyncio.sleep(states.pause(place.quick_deaths))

    async def _launch(self) -> Worker:
        """Starts a process and connects it. Raises OSError."""
        number = self._number()
        ours, theirs = socket.socketpair()
        try:
            child = self._spawn(theirs.fileno(), self._data.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = Worker(f"{self._replica}-{number}", number, child, grace=self._listen().drain_timeout + END_SECONDS)
        self._hub.workers[worker.id] = worker
        self._tasks.spawn(self._reap(worker), name="reap a worker")
        self._tasks.spawn(self._watch(worker), name="watch a worker")
        ours.setblocking(False)
        try:
            await self._hub.connect(worker, ours)
        except BaseException:
            self._dismiss(worker)  # it would never be told to end
            raise
        return worker

    def _number(self) -> int:
        """The lowest that no worker has: neither one of ours nor, where the gateway was started anew at once after it was killed, one of
        those that still finish what they had."""
        taken = {worker.number for worker in self._hub.workers.values()}
        free = [n for n in range(1, len(taken) + MOST_LEFT + 2) if n not in taken]
        return next((n for n in free if self._free(f"{self._replica}-{n}")), free[0])

    async def _watch(self, worker: Worker) -> None:
        """Ends a worker that is late."""
        if not await _within(worker.settled, START_SECONDS):
            self._hub.end(worker, f"it was not ready within {START_SECONDS:.0f} s")
        await worker.left.wait()
        if not await _within(worker.over, worker.grace):
            self._hub.end(worker, f"it did not end within {worker.grace:.0f} s")

    async def _reap(self, worker: Worker) -> None:
        code = await worker.child.wait()
        worker.reason = _why(worker, code)
        self._hub.gone(worker, code)
        detail = {"pid": worker.child.pid, "code": code, "reason": worker.reason}
        if worker.state == "gone" or worker.dismissed:
            log.info("worker %s has ended", worker.id)
            self._record("worker_ended", worker.id, detail, "ok")
        else:
            log.error("worker %s died (%s)%s", worker.id, worker.reason, "" if self._leaving else "; another one takes its place")
            self._record("worker_died", worker.id, detail, "failed")


def _why(worker: Worker, code: int) -> str:
    """Why a worker has ended. How its process ended is said beside what was known before, unless it is the reason why it did not start."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
        ended = f"signal {-code}{name and f', {name}'}"
    else:
        ended = f"exit code {code}"
    if not worker.reason or (code and worker.state != "starting"):
        return f"{worker.reason}; {ended}" if worker.reason else ended
    return worker.reason


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event for so long, of which pauses of this process are no part; whether it came."""
    left = seconds
    while not event.is_set() and left > 0:
        step, begun = min(left, STEP_SECONDS), time.monotonic()
        try:
            async with asyncio.timeout(step):
                await event.wait()
        except TimeoutError:
            if slept(begun, step, time.monotonic()):
                continue  # what has come meanwhile is heard first
        left -= step
    return event.is_set()
