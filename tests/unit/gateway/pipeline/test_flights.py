"""Requests that ask the same at the same time: one engine call, each with its own settlement, pace and end."""

from __future__ import annotations

import gc
import math

import pytest

from gateway.core.errors import EngineError, Overloaded
from gateway.core.prices import LineUp, Price
from gateway.core.types import Principal, ResponseHead, Usage
from gateway.pipeline.exchange import Exchange
from tests.unit.gateway.pipeline.test_cached import ANSWER, STREAM, body, cached
from tests.unit.gateway.pipeline.test_inspect import deny
from tests.unit.gateway.pipeline.world import JSON_HEAD, SSE_HEAD, Client, World, chunk

STREAMED = body(stream=True)


def safe() -> EngineError:
    error = EngineError("The engine closed the connection.")
    error.safe = True
    return error


def closed(world: World) -> list[str]:
    """How each attempt was closed; a second close of it does nothing."""
    return [attempt.results[0] for attempt in world.route.attempts]


def test_a_hundred_identical_requests_are_one_engine_call() -> None:
    world = World()
    cached(world)
    clients = [world.start(body())[1] for _ in range(100)]
    assert len(world.engine.calls) == len(world.route.attempts) == 1
    world.call.answer(ANSWER)
    assert {client.body for client in clients} == {ANSWER}
    assert [client.headers["x-gatehouse-cache"] for client in clients] == ["miss", *["joined"] * 99]
    assert all(each.settled == [Usage(7, 3, 0)] for each in world.limiter.reservations)
    assert [outcome.outcome for outcome in world.audit.outcomes] == ["ok"] * 100
    assert closed(world) == ["success"]
    world.start(body())
    assert len(world.engine.calls) == 1


def test_streams_join_late_and_get_all_of_it() -> None:
    world = World()
    cache = cached(world)
    _, first = world.start(STREAMED)
    world.call.head(SSE_HEAD).body(STREAM[0])
    _, second = world.start(STREAMED)
    assert b"hel" in second.body
    world.call.body(STREAM[1])
    _, third = world.start(STREAMED)
    for event in STREAM[2:]:
        world.call.body(event)
    world.call.end()
    assert first.body == second.body == third.body
    assert first.complete
    assert second.complete
    assert third.complete
    assert not cache.flights


@pytest.mark.parametrize("request_body", [body(), STREAMED])
@pytest.mark.parametrize("begun", [False, True])
def test_the_leader_hangs_up_and_the_others_go_on(request_body: bytes, begun: bool) -> None:
    world = World()
    cache = cached(world)
    streamed = request_body is STREAMED
    leader, _ = world.start(request_body)
    _, follower = world.start(request_body)
    if begun:
        world.call.head(SSE_HEAD if streamed else JSON_HEAD).body(STREAM[0] if streamed else ANSWER[:50])
    leader.client_gone()
    assert not world.call.cancelled
    assert world.route.attempts[0].results == [], "the slot is in use"
    if not begun:
        world.call.head(SSE_HEAD if streamed else JSON_HEAD).body(STREAM[0] if streamed else ANSWER[:50])
    world.call.body(b"".join(STREAM[1:]) if streamed else ANSWER[50:]).end()
    assert follower.body == (b"".join(STREAM[:3]) + STREAM[4] if streamed else ANSWER)
    assert closed(world) == ["success"]
    assert sorted(outcome.outcome for outcome in world.audit.outcomes) == ["cancelled", "ok"]
    assert not cache.flights
    world.start(request_body)
    assert len(world.engine.calls) == 1, "the follower's answer was whole, so it is kept"


@pytest.mark.parametrize("request_body", [body(), STREAMED])
def test_one_pays_where_the_leader_does_not_although_joining_is_free(request_body: bytes) -> None:
    """Else an answer would cost no more than to ask twice and hang up once."""
    world = World()
    cached(world, charge=False)
    world.entry.prices = LineUp(((0.0, math.inf, Price("EUR", "v1", request=5)),))
    streamed = request_body is STREAMED
    leader, *followers = [world.start(request_body)[0] for _ in range(4)]
    world.call.head(SSE_HEAD if streamed else JSON_HEAD).body(STREAM[0] if streamed else ANSWER[:50])
    leader.client_gone()
    followers[0].client_gone()  # who was to pay leaves, too
    world.call.body(b"".join(STREAM[1:]) if streamed else ANSWER[50:]).end()
    settled = [each.settled[0] for each in world.limiter.reservations]
    assert settled[2:] == [Usage(7, 3, 0), Usage()]
    assert all(usage is not None and usage.estimated and usage.cost == 5 for usage in settled[:2]), "for what they have read"
    assert sorted(outcome.cost for outcome in world.audit.outcomes) == [0, 5, 5, 5]


def test_joining_is_free_while_the_leader_reads_along() -> None:
    world = World()
    cached(world, charge=False)
    for _ in range(3):
        world.start(STREAMED)
    world.call.head(SSE_HEAD).body(b"".join(STREAM)).end()
    assert [each.settled for each in world.limiter.reservations] == [[Usage(7, 3, 0)], [Usage()], [Usage()]]


def test_one_who_joined_pays_where_the_leader_is_behind_at_the_end() -> None:
    world = World()
    cached(world, charge=False)
    leader, client = world.start(STREAMED)
    world.start(STREAMED)
    world.call.head(SSE_HEAD).body(STREAM[0])
    client.paused = True
    leader.pause()
    world.call.body(b"".join(STREAM[1:])).end()
    client.paused = False
    leader.client_gone()
    first, second = [each.settled[0] for each in world.limiter.reservations]
    assert second == Usage(7, 3, 0)
    assert first is not None and first.estimated, "what it has read"


@pytest.mark.parametrize("end", ["whole", "cut", "left", "failed", "full"])
@pytest.mark.parametrize("others", [0, 2])
def test_nothing_is_left_for_the_garbage_collector(end: str, others: int) -> None:
    """An exchange that its flight pointed back at would stay in memory, with its answer, until the collector came."""
    world, count = World(), 20
    cached(world)

    def one(number: int) -> None:
        request = body(f"question {number}")
        exchanges = [world.start(request)[0] for _ in range(1 + others)]
        if end == "full":
            world.call.answer(b"{}", FULL)
        elif end != "failed":
            world.call.head(JSON_HEAD).body(ANSWER[:20])
        if end == "whole":
            world.call.body(ANSWER[20:]).end()
        elif end == "full":
            pass
        elif end == "left":
            for exchange in exchanges:
                exchange.client_gone()
        else:
            world.call.fail(EngineError("The engine is gone."))
        for kept in (world.engine.calls, world.route.attempts, world.audit.outcomes, world.limiter.reservations):
            kept.clear()

    one(0)
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 1 + count):
            one(number)
        assert gc.collect() < count
    finally:
        gc.enable()


def test_the_last_one_to_leave_ends_the_call() -> None:
    world = World()
    cache = cached(world)
    exchanges = [world.start(STREAMED)[0] for _ in range(3)]
    world.call.head(SSE_HEAD).body(STREAM[0])
    for number, exchange in enumerate(exchanges):
        assert not world.call.cancelled, number
        exchange.client_gone()
    assert world.call.cancelled
    assert closed(world) == ["neutral"]
    assert not cache.flights


def test_a_leader_that_waits_for_a_slot_and_leaves_is_followed_by_another() -> None:
    world = World()
    cached(world)
    world.route.wait = True
    leader, _ = world.start(body())
    _, second = world.start(body())
    _, third = world.start(body())
    assert len(world.route.queue) == 1
    leader.client_gone()
    assert len(world.route.queue) == 2, "the second one asks now, the third one waits for it"
    world.route.queue[1].set(world.route.grant())
    world.call.answer(ANSWER)
    assert second.body == third.body == ANSWER
    assert second.headers["x-gatehouse-cache"] == "miss"
    assert third.headers["x-gatehouse-cache"] == "joined"


def test_what_refuses_the_leader_alone_does_not_refuse_the_others() -> None:
    world = World()
    cached(world)
    world.route.wait = True
    _, first = world.start(body())
    _, second = world.start(body())
    world.route.queue[0].fail(Overloaded("Displaced."))
    assert first.status == 503
    world.route.queue[1].set(world.route.grant())
    world.call.answer(ANSWER)
    assert second.body == ANSWER


def test_the_leader_tries_again_while_the_others_wait() -> None:
    world = World()
    cached(world)
    world.route.retries = [0.0]
    clients = [world.start(body())[1] for _ in range(3)]
    world.engine.calls[0].fail(safe())
    assert len(world.engine.calls) == 2
    world.call.answer(ANSWER)
    assert [client.body for client in clients] == [ANSWER] * 3
    assert closed(world) == ["failure", "success"]


FULL = ResponseHead(503, [(b"retry-after", b"7")])


@pytest.mark.parametrize("request_body", [body(), STREAMED])
@pytest.mark.parametrize("waits", [False, True])
def test_no_room_at_one_engine_is_nothing_to_the_others_where_the_leader_goes_to_another_one(request_body: bytes, waits: bool) -> None:
    world = World()
    cache = cached(world)
    world.route.elsewhere = True
    clients = [world.start(request_body)[1] for _ in range(2)]
    call = world.call.head(FULL)
    clients.append(world.start(request_body)[1])
    world.route.wait = waits
    call.body(b'{"error":{"message":"full"}}').end()
    clients.append(world.start(request_body)[1])
    if waits:
        world.route.queue[0].set(world.route.grant())
    assert len(world.engine.calls) == 2 and not any(client.written for client in clients)
    if request_body is STREAMED:
        world.call.answer(b"".join(STREAM), SSE_HEAD)
    else:
        world.call.answer(ANSWER)
    assert [client.status for client in clients] == [200] * 4 and len({client.body for client in clients}) == 1
    assert closed(world) == ["neutral", "success"] and not cache.flights


def test_no_room_at_any_engine_is_told_to_all() -> None:
    world = World()
    cache = cached(world)
    clients = [world.start(body())[1] for _ in range(3)]
    world.call.answer(b"{}", FULL)
    assert [(client.status, client.headers["retry-after"]) for client in clients] == [(503, "7")] * 3
    assert len(world.engine.calls) == 1 and not cache.flights


@pytest.mark.parametrize("ends", ["whole", "cut"])
def test_a_leader_that_leaves_while_its_engine_says_that_it_has_no_room_is_followed_by_another(ends: str) -> None:
    world = World()
    cached(world)
    leader, _ = world.start(body())
    _, follower = world.start(body())
    call = world.call.head(FULL)
    leader.client_gone()
    if ends == "whole":
        call.end()
    else:
        call.fail(EngineError("The engine closed the connection."))
    assert len(world.engine.calls) == 2 and not follower.written
    world.call.answer(ANSWER)
    assert follower.body == ANSWER and follower.headers["x-gatehouse-cache"] == "miss"


def test_an_engine_that_fails_for_good_fails_all_at_once() -> None:
    world = World()
    cache = cached(world)
    clients = [world.start(body())[1] for _ in range(3)]
    world.call.fail(EngineError("It broke off."))
    assert [client.status for client in clients] == [502] * 3
    assert len(world.engine.calls) == 1
    assert not cache.flights
    assert [each.settled for each in world.limiter.reservations] == [[None]] * 3


def test_a_stream_that_breaks_off_ends_for_all_with_an_error() -> None:
    world = World()
    cached(world)
    clients = [world.start(STREAMED)[1] for _ in range(3)]
    world.call.head(SSE_HEAD).body(STREAM[0]).fail(EngineError("It broke off."))
    assert all(client.complete for client in clients)
    assert all(b'"error"' in client.body for client in clients)
    assert closed(world) == ["failure"]


def test_a_call_without_a_leader_that_fails_before_its_answer_is_made_again() -> None:
    world = World()
    cached(world)
    leader, _ = world.start(body())
    _, second = world.start(body())
    leader.client_gone()
    world.call.fail(safe())
    assert len(world.engine.calls) == 2
    world.call.answer(ANSWER)
    assert second.body == ANSWER
    assert closed(world) == ["failure", "success"]


def paused(world: World, exchange: Exchange, client: Client) -> None:
    client.paused = True
    exchange.pause()


def test_one_that_reads_slowly_holds_up_nobody_and_catches_up() -> None:
    world = World()
    cached(world)
    _, fast = world.start(STREAMED)
    exchange, slow = world.start(STREAMED)
    world.call.head(SSE_HEAD).body(STREAM[0])
    paused(world, exchange, slow)
    assert not world.call.paused
    before = len(slow.body)
    world.call.body(b"".join(STREAM[1:])).end()
    assert fast.complete
    assert len(slow.body) == before
    slow.paused = False
    exchange.resume()
    assert slow.body == fast.body
    assert slow.complete


def test_the_engine_waits_while_nobody_reads() -> None:
    world = World()
    cached(world)
    pairs = [world.start(STREAMED) for _ in range(2)]
    world.call.head(SSE_HEAD).body(STREAM[0])
    for exchange, client in pairs:
        assert not world.call.paused
        paused(world, exchange, client)
    assert world.call.paused
    pairs[1][1].paused = False
    pairs[1][0].resume()
    assert not world.call.paused


def test_one_that_falls_too_far_behind_is_cut_off_and_the_others_go_on() -> None:
    world = World()
    cache = cached(world, max_answer_bytes=4096)
    _, fast = world.start(STREAMED)
    exchange, slow = world.start(STREAMED)
    world.call.head(SSE_HEAD).body(STREAM[0])
    flight = next(iter(cache.flights.values()))
    paused(world, exchange, slow)
    for _ in range(10):
        world.call.body(chunk("x" * 1000))
    assert slow.ends
    assert b"client_stalled" in slow.body
    assert sum(map(len, flight.pieces)) == 0, "what all have read is let go"
    assert not cache.flights, "who comes now would miss the beginning"
    world.call.body(b"".join(STREAM[2:])).end()
    assert fast.complete
    assert fast.body.count(b"x" * 1000) == 10


def test_another_priority_waits_for_nobody() -> None:
    world = World()
    cached(world)
    world.start(body())
    world.identity.caller = Principal("k", "acme", "api_key", ("*",), priority="interactive")
    world.start(body())
    assert len(world.engine.calls) == 2


def test_each_has_its_own_deadline() -> None:
    world = World()
    cached(world)
    leader, _ = world.start(body())
    late, client = world.start(body())
    late.deadline = 1010.0
    late.expired(1010.0)
    assert client.status == 504
    assert not world.call.cancelled
    world.call.answer(ANSWER)
    assert leader.settled
    assert len(world.engine.calls) == 1


@pytest.mark.parametrize("leaves", ["gone", "late"])
@pytest.mark.parametrize("joins", ["before", "after"])
def test_the_time_of_an_engine_is_that_of_all_who_wait(leaves: str, joins: str) -> None:
    """Else a call at which an engine hangs, and its slot, would last as long as the longest deadline of a request."""
    world = World()
    cache = cached(world)
    leader, _ = world.start(body())
    others = [world.start(body())]
    if leaves == "gone":
        leader.client_gone()
        if joins == "after":
            others.append(world.start(body()))
    world.plane.now = 1100.0
    if leaves == "late":
        leader.expired(1100.0)
        if joins == "after":
            others.append(world.start(body()))
    assert not world.call.cancelled and world.route.attempts[0].results == []
    for exchange, client in others:
        assert exchange.wake_at <= 1100.0
        exchange.expired(1100.0)
        assert client.status == 504 and exchange.settled
    assert world.call.cancelled and not cache.flights
    assert closed(world) == ["failure" if leaves == "late" else "neutral"], "one call, and the engine is told once"
    assert len(world.engine.calls) == 1


def test_deduplication_can_be_switched_off() -> None:
    world = World()
    cached(world, deduplicate=False)
    world.start(body())
    world.start(body())
    assert len(world.engine.calls) == 2


def test_a_client_that_asks_for_a_new_answer_shares_none_that_is_under_way() -> None:
    world = World()
    cached(world)
    world.start(body())
    world.start(body(), headers={b"cache-control": b"no-cache"})
    assert len(world.engine.calls) == 2


def test_an_answer_that_a_guardrail_refuses_is_not_stored() -> None:
    world = World(response=[deny(mask=False, phrase="hello")])
    cached(world)
    clients = [world.start(body())[1] for _ in range(2)]
    world.call.answer(ANSWER)
    assert [client.status for client in clients] == [400] * 2
    world.start(body())
    assert len(world.engine.calls) == 2
