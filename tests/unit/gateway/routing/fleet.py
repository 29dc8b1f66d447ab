"""A fleet under a fake clock: the registry, its clients and its scheduler, all in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.core.clock import FakeClock
from gateway.core.ports import AttemptResult, Call, Receiver
from gateway.core.specs import EngineSpec, ModelSpec
from gateway.core.types import InferenceRequest, Principal, Priority
from gateway.routing.build import FleetRouter, build_router
from gateway.routing.registry import EndpointRegistry
from gateway.routing.router import PoolAttempt, PoolRoute, Waiting
from gateway.wire.openai.api import ChatApi
from gateway.wire.openai.views import ChatRequest, Message

SUCCESS, FAILURE, NEUTRAL = AttemptResult.SUCCESS, AttemptResult.FAILURE, AttemptResult.NEUTRAL

CHAT = ChatApi()
REFUSED = AttemptResult("refused")


class Client:
    """A client that only knows where it would go and whether it was closed."""

    def __init__(self, spec: EngineSpec, address: str) -> None:
        self.spec, self.address, self.closed = spec, address, False
        self.forsaken = 0

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        raise AssertionError("nothing is sent in these tests")

    def forsake(self) -> None:
        self.forsaken += 1

    async def aclose(self) -> None:
        self.closed = True


class Scheduler:
    """Runs what is due when the test says so."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.now: list[Callable[[], None]] = []
        self.timed: list[tuple[float, Callable[[], None]]] = []

    def soon(self, action: Callable[[], None]) -> None:
        self.now.append(action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.timed.append((self.clock.monotonic() + seconds, action))

    def run(self) -> None:
        """Everything that is due now, and what that makes due."""
        while True:
            due = [action for at, action in self.timed if at <= self.clock.monotonic()]
            self.timed = [(at, action) for at, action in self.timed if at > self.clock.monotonic()]
            actions, self.now = self.now + due, []
            if not actions:
                return
            for action in actions:
                action()


class FixedEntropy:
    """Randomness that is always in the middle."""

    def bytes(self, n: int) -> bytes:
        return b"\x7f" * n

    def uniform(self) -> float:
        return 0.5


class Fleet:
    """A registry with external engines a, b, c ... and one model `m` over all of them."""

    def __init__(self, count: int = 3, *, engine: dict[str, Any] | None = None, entropy: Any = None, **model: Any) -> None:
        self.clock = FakeClock()
        self.scheduler = Scheduler(self.clock)
        self.events: list[tuple[str, str, str, str]] = []
        self.clients: list[Client] = []
        self.registry = EndpointRegistry(
            self.clock, entropy or FixedEntropy(), self.client, lambda *event: self.events.append(event), self.scheduler
        )
        self.engines = tuple(
            EngineSpec(name=name, runtime="external", url=f"http://{name}:80", **(engine or {"slots": 2})) for name in names(count)
        )
        self.models: tuple[ModelSpec, ...] = (ModelSpec(name="m", pool=names(count), **model),)
        self.router = self.load()

    def client(self, spec: EngineSpec, address: str) -> Client:
        self.clients.append(Client(spec, address))
        return self.clients[-1]

    def load(self, engines: tuple[EngineSpec, ...] | None = None, models: tuple[ModelSpec, ...] | None = None) -> FleetRouter:
        """Applies a configuration, as a reload does."""
        self.engines, self.models = engines or self.engines, models or self.models
        self.router = build_router(self.models, self.engines, self.registry)
        self.registry.activate(self.router)
        return self.router

    @property
    def route(self) -> PoolRoute:
        route = self.router.route("m")
        assert route is not None
        return route

    def acquire(
        self,
        text: str = "hello",
        *,
        tenant: str = "t",
        priority: Priority = "standard",
        tried: tuple[str, ...] = (),
        tokens: int = 10,
        seconds: float = 600.0,
        session: bytes | None = None,
    ) -> PoolAttempt | Waiting:
        principal = Principal("k", tenant, "api_key", priority=priority)
        return self.route.acquire(chat(text, tokens), principal, session, tried, self.clock.monotonic() + seconds)

    def attempt(self, text: str = "hello", **options: Any) -> PoolAttempt:
        """An attempt that must be granted at once."""
        attempt = self.acquire(text, **options)
        assert isinstance(attempt, PoolAttempt)
        return attempt

    def wait(self, text: str = "hello", **options: Any) -> Waiting:
        """A request that must have to wait."""
        waiting = self.acquire(text, **options)
        assert isinstance(waiting, Waiting)
        return waiting

    def advance(self, seconds: float, step: float = 0.05) -> None:
        """Lets time pass, running what comes due on the way."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end - 1e-9:
            self.clock.advance(min(step, end - self.clock.monotonic()))
            self.scheduler.run()

    def state(self, endpoint: str) -> str:
        return str(next(view["state"] for view in self.registry.endpoints() if view["name"] == endpoint))

    def in_flight(self) -> int:
        return sum(view["in_flight"] for view in self.registry.endpoints())

    def fail(self, endpoint: str, count: int, result: AttemptResult = FAILURE) -> None:
        """So many requests at one endpoint end with this result, one after the other."""
        others = tuple(name for name in names(len(self.engines)) if name != endpoint)
        for _ in range(count):
            attempt = self.attempt(tried=others)
            assert attempt.endpoint_name == endpoint
            attempt.close(result)


def names(count: int) -> tuple[str, ...]:
    return tuple("abcdefghijklmnopqrstuvwxyz"[:count])


def chat(text: str = "hello", tokens: int = 10) -> InferenceRequest:
    view = ChatRequest(model="m", messages=[Message(role="system", content="You help."), Message(role="user", content=text)])
    return InferenceRequest(CHAT, b"/v1/chat/completions", "m", {}, view, prompt_tokens=tokens, max_tokens=0)


def sidecar(name: str = "a", **options: object) -> EngineSpec:
    return EngineSpec(name=name, runtime="llama.cpp", **options)  # type: ignore[arg-type]


async def settled() -> None:
    """Lets tasks that were started run to their end."""
    for _ in range(5):
        await asyncio.sleep(0)
