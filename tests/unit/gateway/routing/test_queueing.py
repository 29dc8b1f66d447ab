"""Requests that wait for a slot: who is next, who is refused, and that no slot and no wake-up is ever lost."""

from __future__ import annotations

import gc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.errors import EngineError, Overloaded
from gateway.core.specs import EngineSpec, HealthSpec, ModelSpec, QueueSpec, RoutingSpec
from gateway.core.types import Principal
from gateway.core.waiting import Driver
from gateway.routing.router import PoolAttempt, PoolRoute, Waiting
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Fleet, chat


def test_a_freed_slot_goes_to_the_next_waiting_request_not_to_a_new_one():
    fleet = Fleet(1, engine={"slots": 1})
    running, first = fleet.attempt(), fleet.wait()
    running.close(SUCCESS)
    second = fleet.wait()
    fleet.scheduler.run()
    assert first.done and not second.done


def test_interactive_first_and_tenants_in_turns():
    fleet = Fleet(1, engine={"slots": 1})
    running = fleet.attempt()
    queue = [fleet.wait(tenant="greedy") for _ in range(3)]
    queue += [fleet.wait(tenant="modest"), fleet.wait(tenant="x", priority="batch"), fleet.wait(tenant="y", priority="interactive")]
    order = []
    while running is not None:
        running.close(SUCCESS)
        fleet.scheduler.run()
        granted = [n for n, waiting in enumerate(queue) if waiting.done and n not in order]
        order += granted
        running = queue[granted[0]].value if granted else None  # type: ignore[assignment]
    assert order == [5, 0, 3, 1, 2, 4]


def test_a_full_queue_says_when_to_come_back():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(size=10)))
    for _ in range(50):
        attempt = fleet.attempt()
        fleet.clock.advance(3.0)
        attempt.close(SUCCESS)
    fleet.attempt()
    for _ in range(10):
        fleet.wait()
    with pytest.raises(Overloaded) as caught:
        fleet.acquire()
    assert caught.value.retry_after == pytest.approx(33.0)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")


def test_a_greedy_tenants_newest_gives_way_to_another_tenant():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(size=2)))
    fleet.attempt()
    greedy = [fleet.wait(tenant="greedy") for _ in range(2)]
    modest = fleet.wait(tenant="modest")
    assert isinstance(greedy[1].error, Overloaded)
    assert not modest.done and not greedy[0].done


def test_tenants_that_wait_are_served_in_the_ratio_of_their_weights():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(weights={"paying": 3.0})))
    running = fleet.attempt()
    waiting = {tenant: [fleet.wait(tenant=tenant, tokens=100) for _ in range(60)] for tenant in ("free", "paying")}
    for _ in range(40):
        running.close(SUCCESS)
        fleet.scheduler.run()
        running = next(
            w.value for line in waiting.values() for w in line if w.value is not None and w.value.endpoint_name and w.value._open
        )
    served = {tenant: sum(w.done for w in line) for tenant, line in waiting.items()}
    assert served == {"free": 10, "paying": 30}


def test_other_weights_make_another_route_and_the_same_ones_keep_it():
    fleet = Fleet(1)
    first = fleet.route
    models = tuple(ModelSpec(name="m", pool=("a",), routing=RoutingSpec(queue=QueueSpec(weights={"t": 2.0}))) for _ in range(2))
    fleet.load(models=models[:1])
    weighted = fleet.route
    fleet.load(models=models[1:])
    assert first is not weighted and weighted is fleet.route


def test_no_request_waits_longer_than_the_queue_allows_or_past_its_deadline():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(timeout=5.0)))
    fleet.attempt()
    patient, hasty = fleet.wait(), fleet.wait(seconds=1.0)
    fleet.advance(1.1)
    assert isinstance(hasty.error, Overloaded) and not patient.done
    fleet.advance(4.0)
    assert isinstance(patient.error, Overloaded)
    assert fleet.route.queued == 0
    fleet.advance(0.2)
    assert not fleet.scheduler.timed


def test_a_pause_of_this_process_costs_no_request_its_place():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(timeout=5.0)))
    running = fleet.attempt()
    fleet.advance(100.0)
    first, second = fleet.wait(), fleet.wait()
    fleet.advance(1.0)
    fleet.advance(13.0, step=13.0)
    fleet.advance(12.0)
    assert not first.done and not second.done
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert first.value is not None and not second.done
    fleet.advance(2.0)
    assert isinstance(second.error, Overloaded), "not for ever"


def test_a_cancelled_request_leaves_the_queue():
    fleet = Fleet(1, engine={"slots": 1})
    running, first, second = fleet.attempt(), fleet.wait(), fleet.wait()
    fleet.route.abandon(first)
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert not first.done and second.done


def test_a_slot_that_was_granted_to_a_cancelled_request_comes_back():
    fleet = Fleet(1, engine={"slots": 1})
    running, waiting = fleet.attempt(), fleet.wait()
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert fleet.in_flight() == 1
    fleet.route.abandon(waiting)
    assert fleet.in_flight() == 0
    fleet.route.abandon(waiting)
    assert fleet.in_flight() == 0


def test_closing_twice_frees_one_slot():
    fleet = Fleet(1, engine={"slots": 1})
    attempt = fleet.attempt()
    attempt.close(SUCCESS)
    attempt.close(FAILURE)
    assert fleet.in_flight() == 0
    assert fleet.route.in_flight == 0


def test_a_driver_resumes_with_the_attempt():
    fleet = Fleet(1, engine={"slots": 1})
    running = fleet.attempt()
    served: list[str] = []

    async def exchange() -> None:
        attempt = fleet.acquire()
        assert isinstance(attempt, Waiting)
        served.append((await attempt).endpoint_name)

    driver = Driver(exchange(), lambda error: served.append(repr(error)))
    driver.start()
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert served == ["a", "None"]


def test_refused_requests_are_freed_without_the_cycle_collector():
    """Refused at once, pushed out by others, too late, gone: the error of each reaches its coroutine, and then nothing holds anything."""
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(size=2, timeout=1.0)))
    running = fleet.attempt()
    ended: list[str] = []

    async def exchange(tenant: str) -> None:
        waiting = fleet.acquire(tenant=tenant)
        assert isinstance(waiting, Waiting)
        try:
            await waiting
        except Overloaded:
            fleet.route.abandon(waiting)
            raise

    def overload() -> None:
        drivers = [Driver(exchange(tenant), lambda error: ended.append(str(error))) for tenant in ("greedy", "greedy", "greedy", "modest")]
        for driver in drivers:
            driver.start()
        drivers[-1].cancel(Overloaded("The client has left."))
        fleet.advance(1.1)

    overload()
    assert [error.split(";")[0] for error in ended] == [
        "The queue is full",
        "The queue is full and others are due before you",
        "The client has left.",
        "No slot became free in time",
    ]
    gc.collect()
    gc.disable()
    try:
        for _ in range(25):
            overload()
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert len(ended) == 26 * 4
    running.close(SUCCESS)
    assert fleet.in_flight() == fleet.route.queued == 0


def test_a_chain_of_requests_that_end_at_once_does_not_grow_the_stack():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(size=5000)))
    running = fleet.attempt()
    for _ in range(3000):
        waiting = fleet.wait()
        waiting.add_callback(lambda waiting=waiting: waiting.value.close(SUCCESS))  # type: ignore[misc, union-attr]
    running.close(SUCCESS)
    fleet.scheduler.run()
    assert fleet.route.queued == fleet.in_flight() == 0


def test_two_models_share_one_engine_in_turns():
    fleet = Fleet(1, engine={"slots": 1})
    fleet.load(models=(ModelSpec(name="m", pool=("a",)), ModelSpec(name="n", pool=("a",))))
    other = fleet.router.route("n")
    assert other is not None
    running, mine = fleet.attempt(), [fleet.wait() for _ in range(3)]
    theirs = [other.acquire(chat(), Principal("k", "t", "api_key"), None, (), fleet.clock.monotonic() + 600) for _ in range(3)]
    order = ""
    while running is not None:
        running.close(SUCCESS)
        fleet.scheduler.run()
        running = None  # type: ignore[assignment]
        for letter, queue in (("m", mine), ("n", theirs)):
            if queue and isinstance(queue[0], Waiting) and queue[0].done:
                running, order = queue.pop(0).value, order + letter  # type: ignore[union-attr, assignment]
    assert sorted(order) == list("mmmnnn")
    assert order not in ("mmmnnn", "nnnmmm")


def usable(route: PoolRoute, waiting: Waiting) -> set[str]:
    """The free slots that a request which waits may use: not where it failed, while another endpoint is open."""
    endpoints = [member.endpoint for member in route.members]
    free = {one.name for one in endpoints if one.in_flight < (max(one.limit, one.reserve) if route._panic else one.limit)}
    avoided = set(waiting.entry.avoids)
    return free - avoided if {one.name for one in endpoints if one.state in ("ready", "half_open")} - avoided else free


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=150))
@example(1, 1, [(0, 1), (4, 3), (7, 50), (0, 1), (8, 1), (5, 0)])  # the breaker's probe ends while its endpoint is drained
@example(2, 1, [(0, 0), (0, 1), (3, 0), (0, 3), (5, 2)])  # the slot that becomes free is the one which the first in line avoids
def test_no_slot_leaks_and_no_wake_up_is_lost(count: int, slots: int, steps: list[tuple[int, int]]):
    """Random arrivals, ends, cancellations, failures, drains, reloads, time: counts are true, nobody waits beside a free slot, and every
    endpoint comes back."""
    routing = RoutingSpec(queue=QueueSpec(size=6, timeout=3.0))
    fleet = Fleet(count, engine={"slots": slots, "health": HealthSpec(slow_start=1.0)}, routing=routing)
    routes: dict[Waiting, PoolRoute] = {}
    held: list[PoolAttempt] = []
    waiting: list[Waiting] = []
    for kind, number in steps:
        name = "abc"[number % count]
        match kind:
            case 0 | 1 | 2 | 3:
                try:
                    got = fleet.acquire(f"k{number}", tenant=f"t{number % 3}", tried=(name,) if kind == 3 else ())
                except (Overloaded, EngineError):
                    continue
                if isinstance(got, PoolAttempt):
                    held.append(got)
                else:
                    waiting.append(got)
                    routes[got] = fleet.route
            case 4 | 5 if held:
                held.pop(number % len(held)).close((SUCCESS, FAILURE, NEUTRAL, REFUSED)[number % 4] if kind == 4 else SUCCESS)
            case 6 if waiting:
                abandoned = waiting.pop(number % len(waiting))
                routes[abandoned].abandon(abandoned)
            case 7:
                fleet.advance(number / 25)
            case 8:
                if number % 2:
                    fleet.registry.drain(name)
                else:
                    fleet.registry.resume(name)
            case 9 if number % 5 == 0:
                fleet.load(models=(ModelSpec(name="m", pool=fleet.models[0].pool, max_tokens=number + 1, routing=routing),))
        if number % 3:
            fleet.scheduler.run()
            for done in [item for item in waiting if item.done]:
                waiting.remove(done)
                if done.value is not None:
                    held.append(done.value)
            assert fleet.in_flight() == len(held)
            for item in waiting:
                assert not usable(routes[item], item)
    for attempt in held:
        attempt.close(SUCCESS)
    for item in waiting:
        routes[item].abandon(item)
    assert fleet.in_flight() == 0
    for name in "abc"[:count]:
        fleet.registry.resume(name)
    fleet.advance(31, step=1.0)  # longer than a breaker stays open
    assert all(view["limit"] > 0 for view in fleet.registry.endpoints())


@settings(deadline=None, max_examples=150)
@given(st.integers(2, 3), st.lists(st.tuples(st.sampled_from("prrcc"), st.integers(0, 1000)), max_size=120))
def test_retries_and_others_wait_without_idle_slots_and_in_order(count: int, steps: list[tuple[str, int]]):
    """p: a request comes, r: a retry, c: an attempt ends. Nobody overtakes one of the same tenant whom the same slot would have served."""
    fleet = Fleet(count, engine={"slots": 1}, routing=RoutingSpec(queue=QueueSpec(size=40)))
    held = [fleet.attempt(f"k{number}") for number in range(count)]
    waiting: list[tuple[Waiting, str]] = []
    for kind, number in steps:
        tenant, failed = f"t{number % 2}", ["abc"[(number // 2 + n) % count] for n in range(1 + number // 6 % (count - 1))]
        if kind == "c" and held:
            held.pop(number % len(held)).close(SUCCESS)
        elif kind != "c":
            got = fleet.acquire(f"k{number}", tenant=tenant, tokens=1 + number, tried=tuple(failed) if kind == "r" else ())
            if isinstance(got, PoolAttempt):
                held.append(got)
            else:
                waiting.append((got, tenant))
        if number % 3 == 0:
            continue
        fleet.scheduler.run()
        for at, (granted, tenant) in enumerate(waiting):
            if granted.value is not None:
                held.append(granted.value)
                older = [one for one, whose in waiting[:at] if whose == tenant and not one.done]
                assert all(granted.value.endpoint_name in one.entry.avoids for one in older)
        waiting = [(one, whose) for one, whose in waiting if not one.done]
        assert not any(usable(fleet.route, one) for one, _ in waiting)
    assert fleet.in_flight() <= count


def test_a_retry_that_waits_for_another_endpoint_does_not_block_others():
    fleet = Fleet(2, engine={"slots": 1})
    at = {attempt.endpoint_name: attempt for attempt in (fleet.attempt("x"), fleet.attempt("y"))}
    retry, first, second = fleet.wait(tried=("a",)), fleet.wait(), fleet.wait()
    at["a"].close(SUCCESS)
    fleet.scheduler.run()
    assert first.value is not None and first.value.endpoint_name == "a"
    assert not retry.done and not second.done
    at["b"].close(SUCCESS)
    fleet.scheduler.run()
    assert retry.value is not None and retry.value.endpoint_name == "b"
    assert not second.done


def test_a_retry_goes_where_it_failed_once_nothing_else_is_up():
    fleet = Fleet(2, engine={"slots": 1})
    at = {attempt.endpoint_name: attempt for attempt in (fleet.attempt("x"), fleet.attempt("y"))}
    retry = fleet.wait(tried=("a",))
    at["a"].close(SUCCESS)
    fleet.scheduler.run()
    assert not retry.done
    fleet.registry.drain("b")
    fleet.scheduler.run()
    assert retry.value is not None and retry.value.endpoint_name == "a"


def test_a_new_request_does_not_take_the_slot_that_a_waiting_retry_is_about_to_get():
    fleet = Fleet(2, engine={"slots": 1})
    at = {attempt.endpoint_name: attempt for attempt in (fleet.attempt("x"), fleet.attempt("y"))}
    retry = fleet.wait(tried=("a",))
    at["a"].close(SUCCESS)
    assert fleet.attempt().endpoint_name == "a"  # the retry would not have it
    at["b"].close(SUCCESS)
    newcomer = fleet.wait()
    fleet.scheduler.run()
    assert retry.value is not None and retry.value.endpoint_name == "b"
    assert not newcomer.done


async def test_a_new_process_with_free_slots_serves_waiting_requests():
    fleet = Fleet(1, engine={"slots": 1})
    fleet.load(engines=(EngineSpec(name="a", runtime="llama.cpp", model="x.gguf"),))
    fleet.registry.engine_ready("a", "http://one", 1)
    running, waiting = fleet.attempt(), fleet.wait()
    fleet.registry.engine_ready("a", "http://two", 1)
    fleet.scheduler.run()
    assert waiting.value is not None and waiting.value.client is not running.client
    running.close(SUCCESS)
    waiting.value.close(SUCCESS)
    assert fleet.in_flight() == 0
    await fleet.registry.aclose()


def test_shedding_refuses_the_least_important_first():
    fleet = Fleet(1, engine={"slots": 100})
    for level, refused in ((0, set()), (1, {"batch"}), (2, {"batch", "standard"}), (3, {"batch", "standard", "interactive"})):
        fleet.registry.shedding = level
        seen = set()
        for priority in ("batch", "standard", "interactive"):
            try:
                fleet.attempt(priority=priority)
            except Overloaded as error:
                assert error.retry_after is not None and error.retry_after >= 1.0
                seen.add(priority)
        assert seen == refused
