"""The control process's side of the feed: every worker with its channel, the numbers of the changes, and who has them in force."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

from gateway.app.workers import states
from gateway.app.workers.channel import Channel, FeedClosed, Handlers
from gateway.app.workers.codec import CHANGE, TELL, Codec
from gateway.app.workers.messages import MESSAGES, Beat, ConfigChanged, KeysMissed, Pulse, State
from gateway.core.messages import Ask, Message
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.workers")
A = TypeVar("A", bound=Message)

PULSE_SECONDS: Final = 1.0
MISSED_PULSES: Final = 10
"""Pulses after which a worker that answers none is ended. They are counted, so that a pause of this process does not count."""


class Process(Protocol):
    """A worker's process (child.Child)."""

    pid: int
    returncode: int | None

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(eq=False)
class Worker:
    """One worker as the control process knows it. number: of its id, and of its audit writer. channel: None while it is not connected.

    left: it serves no more, or soon will not, so that another one takes its place. over: its process has ended. started: monotonic.
    settled: it does not start any more, whatever has become of it. grace: seconds that it may take from `left` to `over`. adopted: the
    program before this one has started it, maybe of another version. dismissed: this process has ended it while it started.
    """

    id: str
    number: int
    child: Process
    state: states.State = "starting"
    channel: Channel | None = None
    acknowledged: int = 0
    beat: Beat = field(default_factory=Beat)
    started: float = field(default_factory=time.monotonic)
    reason: str = ""
    compiled: bool = False
    missed: int = 0
    adopted: bool = False
    dismissed: bool = False
    grace: float = 0.0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, event: states.Event) -> None:
        self.state = states.after(self.state, event)
        self.settled.set()
        if self.state == "ready":
            self.ready.set()
        elif self.state not in states.LIVE:
            self.left.set()

    @property
    def live(self) -> bool:
        return self.state in states.LIVE


class Hub:
    """state: makes the whole state for a new worker: (id, number of the last change) -> State. tasks: runs what is asked of this
    process."""

    def __init__(self, handlers: Handlers, state: Callable[[str, int], State], tasks: TaskOwner) -> None:
        self.handlers, self._state, self._tasks = handlers, state, tasks
        self.codec = Codec(MESSAGES)
        self.workers: dict[str, Worker] = {}
        """Every worker whose process has not ended."""
        self.number = 0
        """Of the last change."""
        self.on_joined: list[Callable[[str], None]] = []
        """Called with the id of a new worker once it has been sent its state: what it must hear first may be told now."""
        self.on_leaving: list[Callable[[str], None]] = []
        """Called with the id of a worker that finishes what it has and takes nothing new."""
        self.on_gone: list[Callable[[str], None]] = []
        """Called with the id of a worker whose process has ended."""
        self.pulse: Callable[[], Pulse] = Pulse
        self.introduce: Callable[[Channel], Awaitable[None]] = _nothing
        """Tells a new worker what comes before its state. When it returns that is complete, as the state is sent in the same step."""
        self._waiting: set[asyncio.Future[None]] = set()

    # --- connections

    async def connect(self, worker: Worker, sock: socket.socket) -> None:
        """Sends the state to a new worker, and from now on every change. Nothing, if its process or the feed to it ends before that."""
        channel = self._channel(worker)
        await channel.open(sock)
        await self.introduce(channel)
        if worker.over.is_set():  # everybody has heard of its end
            channel.end("its process has ended")
            return
        if channel.ended is not None:  # and everybody has heard that it leaves
            return
        worker.channel, worker.acknowledged = channel, self.number
        self.workers[worker.id] = worker
        channel.tell(self._state(worker.id, self.number))
        for hear in self.on_joined:
            hear(worker.id)

    async def adopt(self, worker: Worker, sock: socket.socket, unread: bytes, asked: int) -> None:
        """Goes on with a worker that another program has started. It keeps its configuration, and hears of keys and of nothing else."""
        worker.adopted = True
        worker.channel = channel = self._channel(worker)
        self.workers[worker.id] = worker
        await channel.resume(sock, unread, asked)

    def _channel(self, worker: Worker) -> Channel:
        return Channel(
            worker.id,
            self.codec,
            self.handlers,
            self._tasks,
            on_end=lambda reason: self._ended(worker, reason),
            on_ack=lambda number: self._acknowledged(worker, number),
        )

    def _ended(self, worker: Worker, reason: str) -> None:
        """The feed has ended: the worker finishes what runs and ends, unless it is dead already."""
        worker.reason = worker.reason or reason
        if worker.live:
            self.leaving(worker)
        self._look()

    def leaving(self, worker: Worker) -> None:
        """A worker was asked to finish, or finishes by itself."""
        worker.move("drain")
        for hear in self.on_leaving:
            hear(worker.id)

    def gone(self, worker: Worker, code: int) -> None:
        """The worker's process has ended with this code."""
        if worker.channel is not None:
            worker.channel.end("its process has ended")
        if self.workers.get(worker.id) is worker:
            del self.workers[worker.id]
        worker.move("end" if worker.state == "draining" and code == 0 else "die")
        worker.over.set()
        worker.ready.set()  # nobody waits for it any more
        for hear in self.on_gone:
            hear(worker.id)
        self._look()

    async def beat(self) -> None:
        """Asks every serving worker how it is; ends those that have not answered for a while. To be called each PULSE_SECONDS."""
        for worker in list(self.workers.values()):
            if worker.channel is None or worker.channel.ended is not None or worker.state == "starting":
                continue
            worker.missed += 1
            if worker.missed > MISSED_PULSES:
                self.end(worker, f"it did not answer for {MISSED_PULSES} s")
            elif worker.missed == 1:
                worker.channel.ask(self.pulse(), 3600.0).add_done_callback(partial(self._beaten, worker))

    def _beaten(self, worker: Worker, answer: asyncio.Future[Beat]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            worker.beat, worker.missed = answer.result(), 0

    def end(self, worker: Worker, reason: str) -> None:
        """Ends a worker's process at once."""
        if not worker.over.is_set():
            log.error("worker %s is ended: %s", worker.id, reason)
            worker.reason = worker.reason or reason
            worker.child.kill()

    # --- sending

    def tell(self, worker: str, message: Message) -> None:
        """Never waits; does nothing when there is no such worker."""
        if (found := self.workers.get(worker)) is not None and found.channel is not None:
            found.channel.tell(message)

    def tell_all(self, message: Message) -> None:
        encoded = self.codec.encode(TELL, 0, message)
        for worker in list(self.workers.values()):
            if worker.channel is not None:
                worker.channel.send(encoded)

    def ask(self, worker: str, message: Ask[A], seconds: float) -> asyncio.Future[A]:
        """As Channel.ask; fails with FeedClosed when there is no such worker."""
        found = self.workers.get(worker)
        if found is None or found.channel is None:
            answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
            answer.set_exception(FeedClosed(f"There is no worker {worker}."))
            return answer
        return found.channel.ask(message, seconds)

    def change(self, message: Message, before: Sequence[bytes] = (), whole: Callable[[], Message] | None = None) -> int:
        """Numbers a change, sends it to every worker and returns the number. before: what those that are not adopted are told just before
        it. whole: what those that are adopted are told instead. Raises FeedError, and then nothing was sent."""
        encoded = plain = self.codec.encode(CHANGE, self.number + 1, message)
        if isinstance(message, ConfigChanged):
            plain = self.codec.encode(CHANGE, self.number + 1, KeysMissed())
        elif whole is not None and any(worker.adopted for worker in self.workers.values()):
            plain = self.codec.encode(CHANGE, self.number + 1, whole())
        self.number += 1
        for worker in list(self.workers.values()):
            if worker.channel is not None:
                worker.channel.send_whole([plain] if worker.adopted else [*before, encoded])
        return self.number

    # --- who has it in force

    def lagging(self, number: int) -> list[str]:
        """Ids of the serving workers that have not acknowledged the change with this number."""
        return sorted(worker.id for worker in self.workers.values() if worker.state == "ready" and worker.acknowledged < number)

    async def in_force(self, number: int, seconds: float) -> bool:
        """Waits until every serving worker has acknowledged the change; False if that took longer than so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self.lagging(number):
                    looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.add(looked)
                    try:
                        await looked
                    finally:
                        self._waiting.discard(looked)
        except TimeoutError:
            return not self.lagging(number)
        return True

    def _acknowledged(self, worker: Worker, number: int) -> None:
        worker.acknowledged = max(worker.acknowledged, number)
        self._look()

    def _look(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


async def _nothing(channel: Channel) -> None:
    """Nothing comes before the state."""
