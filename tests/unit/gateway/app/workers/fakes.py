"""Workers that live in the test: real channels over real socket pairs, scripted behaviour, processes that are objects."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

from gateway.app.workers.channel import Channel, Handlers
from gateway.app.workers.codec import Codec
from gateway.app.workers.hub import Hub
from gateway.app.workers.messages import MESSAGES, Beat, Drain, Failed, KeyChanged, KeysMissed, Pulse, Ready, State, Stopped
from gateway.app.workers.pool import Pool
from gateway.core.messages import Message
from gateway.core.secret import Secret
from gateway.core.specs import ConfigSpec, ListenSpec
from gateway.core.tasks import TaskOwner


class FakeWorker:
    """A worker's process and its end of the feed. Attributes of the farm say how it behaves."""

    def __init__(self, farm: Farm, pid: int, feed: int) -> None:
        self.farm, self.pid = farm, pid
        self.returncode: int | None = None
        self.killed = False
        self.heard: list[Message] = []
        self._ended = asyncio.Event()
        self._sock = socket.socket(fileno=os.dup(feed))
        self._sock.setblocking(False)
        handlers = Handlers()
        handlers.on(State, lambda _, state: self._state(state))
        handlers.on(Drain, lambda _, drain: self._drain(drain))
        handlers.change(KeyChanged, lambda _, change: self.heard.append(change) if self.prompt else self._late())
        handlers.change(KeysMissed, lambda _, change: self.heard.append(change))
        handlers.change(Stopped, lambda _, change: self.heard.append(change))
        handlers.answer(Pulse, lambda _, pulse: Beat(in_flight=3) if self.prompt else self._late())
        self.channel = Channel("control", Codec(MESSAGES), handlers, farm.tasks, on_end=lambda reason: None)
        self.prompt = True
        self.state: State | None = None
        farm.tasks.spawn(self.channel.open(self._sock), name="open")

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        self.killed = True
        self.end(-9)

    def end(self, code: int) -> None:
        """The process ends."""
        if self.returncode is None:
            self.returncode = code
            self.channel.end("the process ended")
            self._ended.set()

    def ready(self) -> None:
        self.channel.tell(Ready())

    def fail(self, reason: str) -> None:
        self.channel.tell(Failed(reason))
        asyncio.get_running_loop().call_later(0.01, self.end, 1)

    def _state(self, state: State) -> None:
        self.state = state
        self.channel.applied.reset(state.number)
        self.farm.on_state(self)

    def _drain(self, drain: Drain) -> None:
        self.heard.append(drain)
        if self.farm.ends_when_drained:
            self.end(0)

    async def _late(self) -> Any:
        await self.farm.release.wait()
        return Beat()


class Farm:
    """A pool over fake workers. on_state: what a new worker does with its state."""

    def __init__(self, size: int = 2) -> None:
        self.tasks = TaskOwner("fakes")
        self.handlers = Handlers()
        self.hub = Hub(self.handlers, self._state, self.tasks)
        self.gone: list[str] = []
        self.hub.on_gone.append(self.gone.append)
        self.handlers.on(Ready, lambda id, _: self.hub.workers[id].move("ready"))
        self.handlers.on(Failed, lambda id, failed: setattr(self.hub.workers[id], "reason", failed.reason))
        self.made: list[FakeWorker] = []
        self.events: list[tuple[str, str, str]] = []
        self.on_state: Callable[[FakeWorker], None] = FakeWorker.ready
        self.ends_when_drained = True
        self.release = asyncio.Event()
        self.refusals = 0
        self.stillborn = 0
        """Workers that end before the feed to them is open."""
        self.listen = ListenSpec(drain_timeout=0.0)
        self._pids = count(1000)
        self._data = socket.socket()
        self.held: set[str] = set()
        """Ids of workers that this farm knows nothing of."""
        told = (self._record, lambda: self.listen, lambda id: id not in self.held)
        self.pool = Pool(size, "gw", self._data, self.hub, self._spawn, *told)

    def _spawn(self, feed: int, data: int) -> FakeWorker:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no more processes")
        self.made.append(FakeWorker(self, next(self._pids), feed))
        if self.stillborn:
            self.stillborn -= 1
            self.made[-1].end(-9)
        return self.made[-1]

    def _record(self, event: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        self.events.append((event, target, outcome))

    def _state(self, worker: str, number: int) -> State:
        return State(
            number=number, worker=worker, replica="gw", count=2, base="/", salts=Secret("00"), spec=ConfigSpec(version=1), version=1
        )

    def ids(self, state: str = "ready") -> list[str]:
        return sorted(worker.id for worker in self.hub.workers.values() if worker.state == state)

    def fake(self, id: str) -> FakeWorker:
        child = self.hub.workers[id].child
        assert isinstance(child, FakeWorker)
        return child

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self.tasks.aclose()
        self._data.close()
