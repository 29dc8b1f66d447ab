"""Places in queues: asked for before the queue is entered, and free again however the request leaves it."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.waiting import Signal
from tests.unit.gateway.pipeline.world import Limiter, Reservation, World


class Queueing:
    """A world whose pool has no free slot, and where places in its queue are limited."""

    def __init__(self) -> None:
        self.world = World()
        self.places = Limiter()
        self.world.snapshot.places = self.places
        self.world.route.wait = True

    @property
    def settled(self) -> list[object]:
        (place,) = self.places.reservations
        return list(place.settled)


def full() -> LimitExceeded:
    return LimitExceeded("Too many queued requests: the limit 'q' is reached.", code="concurrency_exceeded", retry_after=1.0)


def test_a_request_that_need_not_wait_takes_no_place() -> None:
    made = Queueing()
    made.world.route.wait = False
    _, client = made.world.start()
    made.world.call.answer()
    assert client.status == 200 and made.places.reservations == []


def test_a_place_is_free_again_when_the_request_is_dispatched() -> None:
    made = Queueing()
    _, client = made.world.start()
    assert made.settled == []
    made.world.route.queue[0].set(made.world.route.grant())
    assert made.settled == [None], "not only when it has been answered"
    made.world.call.answer()
    assert client.status == 200 and made.settled == [None]


def test_a_place_is_free_again_when_the_client_leaves() -> None:
    made = Queueing()
    exchange, _ = made.world.start()
    exchange.client_gone()
    assert made.settled == [None] and made.world.route.abandoned == made.world.route.queue


def test_a_place_is_free_again_when_the_deadline_comes() -> None:
    made = Queueing()
    exchange, client = made.world.start()
    exchange.expired(exchange.deadline)
    assert made.settled == [None] and client.status == 504


def test_a_place_is_free_again_when_the_queue_refuses() -> None:
    made = Queueing()
    _, client = made.world.start()
    made.world.route.queue[0].fail(Overloaded("The queue is full and others are due before you", retry_after=2.0))
    assert made.settled == [None] and client.status == 503
    made = Queueing()
    made.world.route.errors = [Overloaded("The queue is full", retry_after=2.0)]
    _, client = made.world.start()
    assert made.settled == [None] and client.status == 503


def test_who_has_all_places_is_told_when_one_is_free_and_displaces_nobody() -> None:
    made = Queueing()
    made.places.error = full()
    _, client = made.world.start()
    assert client.status == 429 and json.loads(client.body)["error"]["code"] == "concurrency_exceeded"
    assert client.headers["retry-after"] == "7", "what the pool says, not the bucket"
    assert made.world.route.queue == [], "it never was in the queue"
    assert made.world.limiter.reservations[0].settled == [None], "and it costs nothing else"


@pytest.mark.parametrize("refused", [False, True])
def test_a_place_that_is_counted_elsewhere_is_waited_for(refused: bool) -> None:
    made = Queueing()
    made.places.waiting = Signal()
    _, client = made.world.start()
    assert made.world.route.queue == []
    if refused:
        made.places.waiting.fail(full())
        assert client.status == 429 and client.headers["retry-after"] == "7"
        return
    place = Reservation()
    made.places.waiting.set(place)
    assert len(made.world.route.queue) == 1 and place.settled == []
    made.world.route.queue[0].set(made.world.route.grant())
    assert place.settled == [None]


def test_a_slot_may_be_free_once_the_place_is_there() -> None:
    made = Queueing()
    made.places.waiting = Signal()
    _, client = made.world.start()
    made.world.route.wait = False
    place = Reservation()
    made.places.waiting.set(place)
    assert place.settled == [None]
    made.world.call.answer()
    assert client.status == 200


def test_a_limit_that_is_not_enforced_is_noted() -> None:
    made = Queueing()
    made.places.waiting = Signal()
    made.world.start()
    place = Reservation()
    place.not_enforced = ("q",)
    made.places.waiting.set(place)
    made.world.route.queue[0].set(made.world.route.grant())
    made.world.call.answer()
    assert made.world.outcome.detail == {"queues_not_enforced": ["q"]}
