"""A control process and data workers in one test: their registries, joined by links that deliver when the test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from gateway.core.clock import FakeClock
from gateway.core.messages import Message
from gateway.core.ports import AttemptResult
from gateway.core.specs import EngineSpec, ModelSpec
from gateway.core.types import Principal
from gateway.routing import mirror_messages
from gateway.routing.build import build_router
from gateway.routing.endpoints import Endpoint
from gateway.routing.follower import Follower
from gateway.routing.health import ProbeResult
from gateway.routing.mirror import Mirror
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import PoolAttempt, Waiting
from tests.unit.gateway.routing.fleet import SUCCESS, Client, FixedEntropy, Scheduler, chat, names

ENCODER = msgspec.msgpack.Encoder()


class Link:
    """One direction between two processes: in order, late, and cut when one of them dies. What passes is encoded and decoded."""

    def __init__(self, kinds: tuple[type[Message], ...]) -> None:
        self.kinds = kinds
        self.waiting: deque[tuple[type[Message], bytes]] = deque()
        self.passed: list[Message] = []

    def tell(self, message: Message) -> None:
        assert type(message) in self.kinds
        self.waiting.append((type(message), ENCODER.encode(message)))

    def take(self) -> Message:
        kind, data = self.waiting.popleft()
        self.passed.append(msgspec.msgpack.decode(data, type=kind))
        return self.passed[-1]


class Process:
    """A registry with one model `m` over all engines."""

    def __init__(self, clock: FakeClock, engines: tuple[EngineSpec, ...], **model: Any) -> None:
        self.clock, self.scheduler = clock, Scheduler(clock)
        self.events: list[tuple[str, str, str, str]] = []
        self.asked: list[str] = []
        self.clients: list[Client] = []
        self.registry = EndpointRegistry(clock, FixedEntropy(), self.client, lambda *event: self.events.append(event), self.scheduler)
        self.engines, self.model = engines, model

    def client(self, spec: EngineSpec, address: str) -> Client:
        self.clients.append(Client(spec, address))
        return self.clients[-1]

    def load(self, engines: tuple[EngineSpec, ...] | None = None) -> None:
        """Puts a configuration into force."""
        self.engines = self.engines if engines is None else engines
        models = (ModelSpec(name="m", pool=tuple(engine.name for engine in self.engines), **self.model),)
        self.router = build_router(models, self.engines, self.registry)
        self.activate()

    def activate(self) -> None:
        self.registry.activate(self.router)

    def endpoint(self, name: str = "a") -> Endpoint:
        found = self.registry.find(name)
        assert found is not None
        return found

    def acquire(self, *, tried: tuple[str, ...] = (), seconds: float = 600.0) -> PoolAttempt | Waiting:
        route = self.router.route("m")
        assert route is not None
        return route.acquire(chat(), Principal("k", "t", "api_key"), None, tried, self.clock.monotonic() + seconds)

    def attempt(self, **options: Any) -> PoolAttempt:
        """An attempt that must be granted at once."""
        attempt = self.acquire(**options)
        assert isinstance(attempt, PoolAttempt)
        return attempt

    def wait(self, **options: Any) -> Waiting:
        waiting = self.acquire(**options)
        assert isinstance(waiting, Waiting)
        return waiting

    def fail(self, count: int, result: AttemptResult) -> None:
        """So many requests end with this result, one after the other."""
        for _ in range(count):
            self.attempt().close(result)


class Worker(Process):
    """A data worker with its two links."""

    def __init__(self, name: str, clock: FakeClock, engines: tuple[EngineSpec, ...], **model: Any) -> None:
        super().__init__(clock, engines, **model)
        self.name = name
        self.down, self.up = Link(mirror_messages.TO_WORKER), Link(mirror_messages.TO_CONTROL)
        self.follower = Follower(self.registry, self.up.tell, self.scheduler)
        self.alive = True


class House(Process):
    """The control process and its workers. engines: external ones a, b, c ... unless given."""

    def __init__(self, workers: int = 2, engines: int | tuple[EngineSpec, ...] = 1, *, slots: int = 4, **model: Any) -> None:
        if isinstance(engines, int):
            engines = tuple(EngineSpec(name=n, runtime="external", url=f"http://{n}:80", slots=slots) for n in names(engines))
        super().__init__(FakeClock(), engines, **model)
        self.registry._on_wanted = self.asked.append
        self.mirror = Mirror(self.registry, self.scheduler)
        self.workers: list[Worker] = []
        self.load()
        for _ in range(workers):
            self.start()
        self.settle()

    def activate(self) -> None:
        self.mirror.activate(self.router)

    def start(self, *, load: bool = True) -> Worker:
        """A new worker joins."""
        worker = Worker(str(len(self.workers) + 1), self.clock, self.engines, **self.model)
        self.workers.append(worker)
        self.mirror.join(worker.name, worker.down.tell)
        if load:
            worker.load()
        return worker

    def kill(self, worker: Worker) -> None:
        """It ends at once: nothing that it has not sent yet arrives, and what it was sent is lost."""
        worker.alive = False
        while worker.up.waiting:
            self.mirror.heard(worker.name, worker.up.take())
        self.mirror.gone(worker.name)

    def reload(self, engines: tuple[EngineSpec, ...]) -> None:
        """Puts another configuration into force everywhere."""
        self.load(engines)
        for worker in self.live:
            worker.load(engines)
        self.settle()

    @property
    def live(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    def deliver(self) -> bool:
        """One message of each link; False when there was none."""
        some = False
        for worker in self.live:
            if worker.down.waiting:
                worker.follower.apply(worker.down.take())
                some = True
            if worker.up.waiting:
                self.mirror.heard(worker.name, worker.up.take())
                some = True
        return some

    def settle(self) -> None:
        """Delivers everything, and what that leads to, without letting time pass."""
        for _ in range(10_000):
            for process in (self, *self.live):
                process.scheduler.run()
            if not self.deliver() and not any(process.scheduler.now for process in (self, *self.live)):
                return
        raise AssertionError("they do not come to rest")

    def advance(self, seconds: float, step: float = 0.01) -> None:
        """Lets time pass; messages take none."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end - 1e-9:
            self.clock.advance(min(step, end - self.clock.monotonic()))
            self.settle()

    def probe(self, result: ProbeResult, endpoint: str = "a", *, decisive: bool = False) -> None:
        """The result of a probe, as the prober reports it."""
        probed = self.endpoint(endpoint)
        probed.probed(result, decisive=decisive)
        self.mirror._probed(probed, result, decisive)
        self.settle()

    def states(self, name: str = "a") -> list[str]:
        """The endpoint's state here and in every live worker."""
        return [process.endpoint(name).state for process in (self, *self.live)]

    def slots(self, name: str = "a") -> list[int]:
        return [worker.endpoint(name).slots for worker in self.live]

    def attempt_somewhere(self) -> PoolAttempt:
        """An attempt in whichever worker may make one now, within two seconds."""
        for _ in range(40):
            for worker in self.live:
                if worker.endpoint().limit:
                    return worker.attempt()
            self.advance(0.05)
        raise AssertionError("no worker may")

    def serve_one(self, worker: Worker) -> None:
        """One request of this worker is served, however long it has to wait for a slot."""
        got = worker.acquire()
        for _ in range(100):
            if isinstance(got, PoolAttempt):
                got.close(SUCCESS)
                self.settle()
                return
            if got.done:
                assert got.error is None, got.error
                assert got.value is not None
                got = got.value
                continue
            self.advance(0.05)
        raise AssertionError("it was not served")
