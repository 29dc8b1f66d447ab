"""An exchange leaves nothing to the cycle collector, however it ends: the process collects seldom, and in overload most are refused.

With the collector off, what is still there after an exchange and is reachable from nowhere is what only the collector would free.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from gateway.core.errors import AuditUnavailable, EngineError, LimitExceeded, Overloaded
from gateway.core.waiting import Signal
from tests.unit.gateway.pipeline.world import SSE_HEAD, STREAM_BODY, World, chunk

COUNT = 20


def serves(world: World) -> None:
    world.start()
    world.call.answer()


def streams(world: World) -> None:
    world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a")).end()


def is_refused(world: World) -> None:
    world.route.errors.append(Overloaded("The queue is full.", retry_after=1.0))
    world.start()


def queues(world: World) -> Signal[object]:
    world.route.wait = True
    world.start()
    return world.route.queue[-1]  # type: ignore[return-value]


def is_dropped_from_the_queue(world: World) -> None:
    queues(world).fail(Overloaded("Others are due before you."))


def leaves_the_queue(world: World) -> None:
    world.route.wait = True
    exchange, _ = world.start()
    exchange.client_gone()


def leaves_the_engine(world: World) -> None:
    exchange, _ = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a"))
    exchange.client_gone()


def expires(world: World) -> None:
    exchange, _ = world.start()
    exchange.expired(exchange.deadline)


def fails(world: World) -> None:
    world.start()
    broken = EngineError("The connection broke.")
    broken.__cause__ = ConnectionResetError("reset")
    world.call.fail(broken)


def fails_in_the_middle(world: World) -> None:
    world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a")).fail(EngineError("The connection broke."))


def is_retried(world: World) -> None:
    broken = EngineError("The connection broke.")
    broken.safe = True
    world.route.retries.append(0.0)
    world.start()
    world.call.fail(broken)
    world.call.answer()


def is_served_by_the_fallback(world: World) -> None:
    world.route.errors.append(Overloaded("The queue is full."))
    world.start()
    world.call.answer()


def is_served_by_no_fallback(world: World) -> None:
    world.route.errors.append(Overloaded("The queue is full."))
    world.other.errors.append(EngineError("Nothing is healthy."))
    world.start()


def is_over_its_limit(world: World) -> None:
    world.limiter.error = LimitExceeded("Too many.")
    world.start()
    world.limiter.error = None


def is_not_recorded(world: World) -> None:
    world.audit.durable = False
    world.start()
    world.audit.tickets[-1].fail(AuditUnavailable("The disk is full."))


def is_nonsense(world: World) -> None:
    world.start(b"{")


ENDS: list[Callable[[World], None]] = [
    serves,
    streams,
    is_refused,
    is_dropped_from_the_queue,
    leaves_the_queue,
    leaves_the_engine,
    expires,
    fails,
    fails_in_the_middle,
    is_retried,
    is_served_by_the_fallback,
    is_served_by_no_fallback,
    is_over_its_limit,
    is_not_recorded,
    is_nonsense,
]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def forget(world: World) -> None:
    """What the fakes remember would keep alive what nobody else holds."""
    for remembered in (world.engine.calls, world.route.attempts, world.route.queue, world.route.abandoned, world.other.attempts):
        remembered.clear()
    world.audit.tickets.clear()
    world.route.wait, world.audit.durable = False, True


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_no_end_leaves_garbage(end: Callable[[World], None], no_collector: None) -> None:
    world = World(fallback=end in (is_served_by_the_fallback, is_served_by_no_fallback))
    end(world)
    forget(world)
    gc.collect()  # what is made once: caches of the libraries
    for _ in range(COUNT):
        end(world)
        forget(world)
    assert len(world.audit.outcomes) == COUNT + 1
    assert gc.collect() == 0
