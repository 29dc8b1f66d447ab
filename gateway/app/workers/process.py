"""One worker's process, from its first message to its last: waits for its state, serves, drains, ends.

It ends when it is told to, and by itself when the feed closes: then the control process is gone, and a worker that nobody can reach must
not go on serving on what it knew.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import msgspec
import uvloop

from gateway.app.configuration.plugin_set import WORKER, with_installed
from gateway.app.data_side import DataSide
from gateway.app.telemetry.observing import log_as_configured
from gateway.app.workers.channel import Channel, Handlers
from gateway.app.workers.codec import Codec
from gateway.app.workers.messages import MESSAGES, ConfigChanged, Drain, Failed, Retire, State
from gateway.app.workers.settings import Received, SettingsPart, SettingsTold, Whole
from gateway.app.workers.worker import Worker, worker_handlers
from gateway.core.deadlines import Deadline
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.slices import at_once, in_slices
from gateway.core.tasks import TaskOwner
from gateway.core.tokens import TokenDesk
from gateway.server.leaving import Leaving
from gateway.telemetry import logging as gatehouse_logging

log = logging.getLogger("gatehouse.workers")
STATE_SECONDS = 60.0
"""How long a worker waits for its state."""
SAY_SECONDS = 2.0
"""How long the last messages may take."""


def work(feed: int, data: int) -> int:
    """Runs a worker; returns the exit code. feed, data: inherited descriptors."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the control process's, which a terminal or a service manager may send to all processes
    gatehouse_logging.setup("info", "text", worker="a worker")
    listening = socket.socket(fileno=data)
    listening.setblocking(False)
    code: int = uvloop.run(_run(socket.socket(fileno=feed), listening))
    return code


async def _run(feed: socket.socket, data: socket.socket) -> int:
    return await WorkerProcess(feed, data).run()


class WorkerProcess:
    """feed: one end of the feed. data: the listening socket, which other workers share. Needs a running loop."""

    def __init__(self, feed: socket.socket, data: socket.socket) -> None:
        self._feed, self._data = feed, data
        self._leaving = Leaving()
        self._retiring = asyncio.Event()
        self._delay = 0.0
        self._state: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._worker: Worker | None = None
        self._failed = False
        self._deadline = Deadline(STATE_SECONDS, self._late)
        self._received = Received()
        self._unfit: GatehouseError | None = None
        """What was wrong with a part of the configuration: the one that it belongs to is not put into force."""

    async def run(self) -> int:
        """Returns the exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._asked_to_end)
        tasks = TaskOwner("feed")
        self._handlers = Handlers()
        self._handlers.on(SettingsPart, lambda _, part: self._part(part))
        self._handlers.on(SettingsTold, lambda _, told: self._received.settle())
        self._handlers.on(State, lambda _, state: self._begin(state))
        self._handlers.on(Drain, lambda _, drain: self._drain(drain))
        self._channel = Channel("control", Codec(MESSAGES), self._handlers, tasks, on_end=self._feed_ended)
        await self._channel.open(self._feed)
        try:
            self._wait_for_state()
            await self._state
            self._deadline.cancel()
            await self._serve()
        except (ConfigError, GatehouseError, TimeoutError) as error:
            reason = str(error) or f"no state came within {STATE_SECONDS:.0f} s"
            log.error("the worker ends: %s", reason)
            self._channel.tell(Failed(reason))
            self._failed = True
        finally:
            self._deadline.cancel()
            self._data.close()
            if self._worker is not None:
                await self._worker.aclose()
            await self._channel.aclose(SAY_SECONDS)
            await tasks.aclose()
        return 1 if self._failed else 0

    def _wait_for_state(self) -> None:
        self._deadline.cancel()
        self._deadline = Deadline(STATE_SECONDS, self._late)

    def _late(self) -> None:
        if not self._state.done():
            self._state.set_exception(TimeoutError())

    def _part(self, part: SettingsPart) -> None:
        if not self._state.done():
            self._wait_for_state()  # a large state comes as long as it takes
        try:
            self._received.part(part)
        except GatehouseError as error:
            self._unfit = error
        except Exception as error:  # boundary: whatever was wrong, the configuration is not whole without it
            log.exception("a part of the configuration could not be taken")
            self._unfit = GatehouseError(f"a part of the configuration could not be taken: {error}")

    def _begin(self, state: State) -> None:
        """The parts are there before the next message is read."""
        try:
            if self._unfit is not None:
                raise self._unfit
            told = self._received.take(state.spec, state.version)
            state = msgspec.structs.replace(state, spec=at_once(self._received.composed(told, state.digests)))
            log_as_configured(state.spec.telemetry, state.worker)
            self._worker = Worker(state, self._channel, with_installed(WORKER))
        except GatehouseError as error:
            self._state.set_exception(error)
            return
        self._channel.applied.reset(state.number)
        worker_handlers(self._handlers, self._worker)
        self._handlers.change(ConfigChanged, lambda _, change: self._apply(self._taken(change), change))
        self._state.set_result(state)

    def _taken(self, change: ConfigChanged) -> Whole:
        return self._received.take(change.settings.rest, change.version, change.settings.since)

    async def _apply(self, told: Whole, change: ConfigChanged) -> None:
        """Returns once it is in force; never, if it cannot be put into force: then the worker ends."""
        assert self._worker is not None
        try:
            if self._unfit is not None:
                raise self._unfit
            await self._worker.apply(await in_slices(self._received.composed(told, change.settings.digests)), change.version)
        except Exception as error:  # boundary: whatever the reason, a worker that lags behind must not go on serving
            trace = None if isinstance(error, GatehouseError) else error
            log.error("a change could not be put into force (%s): the worker finishes what runs and ends", error, exc_info=trace)
            self._failed = True
            self._channel.tell(Failed(str(error)))
            self._leaving.ask()
            await asyncio.Event().wait()

    async def _serve(self) -> None:
        worker = self._worker
        assert worker is not None
        await worker.start()
        if self._leaving.asked.is_set():
            return  # the gateway leaves, and this worker has served nobody yet
        listen = worker.plane.current().spec.listen
        tokens = TokenDesk(worker.issue, worker.token_keys)
        data_side = DataSide(
            worker.plane, worker.health, listen, self._leaving, worker.tls, tokens, worker.work.desk, (worker.tickets, worker.ticket_desk)
        )
        await data_side.start(self._data)
        worker.ready()
        waiting = TaskOwner("leaving")
        retiring = waiting.spawn(self._retire(data_side), name="retire")
        await self._leaving.asked.wait()
        await data_side.leave(self._delay)
        retiring.cancel()
        await data_side.aclose()
        await waiting.aclose()

    async def _retire(self, data_side: DataSide) -> None:
        await self._retiring.wait()
        await data_side.retire()
        self._leaving.ask()

    # --- when to end

    def _drain(self, drain: Drain) -> None:
        if drain.others and not self._leaving.asked.is_set():
            self._retiring.set()
            return
        self._delay = drain.delay
        self._leaving.ask()

    def _asked_to_end(self) -> None:
        """SIGTERM. A service manager may send it to every process of a service at once: the control process decides what it means."""
        if self._channel.ended is None:
            self._channel.tell(Retire())
        else:
            self._leaving.ask()

    def _feed_ended(self, reason: str) -> None:
        if not self._state.done():
            self._state.set_exception(GatehouseError(f"the feed ended before the state came: {reason}"))
        elif not self._leaving.asked.is_set():
            log.error("the feed of the control process has ended (%s): the worker finishes what runs and ends", reason)
            self._delay = 0.0
            self._leaving.ask()
        if self._worker is not None:
            self._worker.shares.lost()
