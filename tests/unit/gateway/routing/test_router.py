"""Admission and selection together, under a fake clock: who gets which slot, who waits, and that no slot is ever lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import ConfigError, EngineError, Overloaded
from gateway.core.specs import BreakerSpec, EngineSpec, HealthSpec, ModelSpec, PoolMemberSpec, QueueSpec, RoutingSpec
from gateway.core.types import Principal
from gateway.core.waiting import Driver
from gateway.routing.router import PoolAttempt, PoolRoute, Waiting
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Fleet, chat

# -- selection


def test_an_attempt_carries_what_the_pipeline_needs():
    fleet = Fleet(1)
    attempt = fleet.attempt()
    assert attempt.endpoint_name == "a"
    assert attempt.endpoint_header == b"x-gatehouse-endpoint: a\r\n"
    assert attempt.client is fleet.clients[0]
    assert (attempt.upstream_model, attempt.request_headers) == (None, b"")
    assert (attempt.first_byte_timeout, attempt.idle_timeout) == (120.0, 60.0)


def test_a_conversation_stays_where_it_is_and_conversations_spread():
    fleet = Fleet(3)
    homes = set()
    for talk in range(40):
        seen = set()
        for _ in range(5):
            attempt = fleet.attempt(f"conversation {talk}")
            seen.add(attempt.endpoint_name)
            attempt.close(SUCCESS)
        assert len(seen) == 1
        homes |= seen
    assert homes == {"a", "b", "c"}


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.sampled_from([1.0, 1.25, 2.0]), st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=80))
def test_no_endpoint_exceeds_the_bound(count: int, bound: float, steps: list[tuple[bool, int]]):
    fleet = Fleet(count, engine={"slots": 1000}, routing=RoutingSpec(bound=bound))
    held: list[PoolAttempt] = []
    for arrives, which in steps:
        if arrives or not held:
            attempt = fleet.attempt(f"hot {which}")
            held.append(attempt)
            loads = Counter(other.endpoint_name for other in held)
            assert loads[attempt.endpoint_name] <= -(-bound * len(held) // count)
        else:
            held.pop(which % len(held)).close(SUCCESS)


def test_one_hot_key_spills_to_the_next_on_the_ring_and_always_the_same():
    fleet = Fleet(3, engine={"slots": 100})
    first, second = fleet.attempt("hot"), fleet.attempt("hot")
    spilled = second.endpoint_name
    assert spilled != first.endpoint_name
    second.close(SUCCESS)
    again = fleet.attempt("hot")
    assert again.endpoint_name == spilled


def test_the_bound_gives_way_to_free_slots():
    fleet = Fleet(2)
    fleet.load(engines=(fleet.engines[0], EngineSpec(name="b", runtime="external", url="http://b:80", slots=10)))
    assert Counter(fleet.attempt(str(n)).endpoint_name for n in range(12)) == {"a": 2, "b": 10}


def routed(policy: str, count: int, requests: int, **options: object) -> Counter[str]:
    fleet = Fleet(count, engine={"slots": 1000}, entropy=random_entropy(), routing=RoutingSpec(policy=policy), **options)  # type: ignore[arg-type]
    return Counter(fleet.attempt(str(n)).endpoint_name for n in range(requests))


def random_entropy() -> object:
    generator = random.Random(3)

    class Entropy:
        def bytes(self, n: int) -> bytes:
            return generator.randbytes(n)

        def uniform(self) -> float:
            return generator.random()

    return Entropy()


def test_least_outstanding_fills_evenly():
    assert routed("least_outstanding", 3, 30) == {"a": 10, "b": 10, "c": 10}


def test_least_outstanding_stays_even_in_a_large_pool():
    engines = tuple(EngineSpec(name=f"e{n}", runtime="external", url=f"http://e{n}") for n in range(150))
    fleet = Fleet(1)
    model = ModelSpec(name="m", pool=tuple(e.name for e in engines), routing=RoutingSpec(policy="least_outstanding"))
    fleet.load(engines=(*fleet.engines, *engines), models=(model, ModelSpec(name="keep", pool=("a",))))
    loads = Counter(fleet.attempt().endpoint_name for _ in range(600))
    assert set(loads.values()) <= {3, 4, 5}


def test_least_outstanding_follows_weights():
    pool = (PoolMemberSpec(engine="a", weight=2), PoolMemberSpec(engine="b", weight=1))
    fleet = Fleet(2, engine={"slots": 1000}, routing=RoutingSpec(policy="least_outstanding"))
    fleet.load(models=(ModelSpec(name="m", pool=pool, routing=RoutingSpec(policy="least_outstanding")),))
    assert Counter(fleet.attempt().endpoint_name for _ in range(30)) == {"a": 20, "b": 10}


def test_least_outstanding_takes_turns_when_idle():
    fleet = Fleet(3, routing=RoutingSpec(policy="least_outstanding"))
    seen = []
    for _ in range(6):
        attempt = fleet.attempt()
        seen.append(attempt.endpoint_name)
        attempt.close(SUCCESS)
    assert Counter(seen) == {"a": 2, "b": 2, "c": 2}


def test_round_robin():
    assert routed("round_robin", 3, 9) == {"a": 3, "b": 3, "c": 3}


def test_round_robin_follows_weights():
    pool = (PoolMemberSpec(engine="a", weight=3), PoolMemberSpec(engine="b", weight=1))
    routing = RoutingSpec(policy="round_robin")
    fleet = Fleet(2, engine={"slots": 1000})
    fleet.load(models=(ModelSpec(name="m", pool=pool, routing=routing),))
    assert [fleet.attempt().endpoint_name for _ in range(8)] == list("aabaaaba")


def test_power_of_two_stays_close_to_even():
    loads = routed("power_of_two", 8, 800)
    assert max(loads.values()) - min(loads.values()) <= 12


def test_a_canary_gets_its_share_and_keeps_its_keys():
    def choices(canary: float) -> list[str]:
        pool = (PoolMemberSpec(engine="a", weight=1 - canary), PoolMemberSpec(engine="b", weight=canary))
        fleet = Fleet(2, engine={"slots": 1024})
        fleet.load(models=(ModelSpec(name="m", pool=pool, routing=RoutingSpec(policy="weighted", queue=QueueSpec(size=0))),))
        seen = []
        for n in range(2000):
            attempt = fleet.attempt(f"user {n}")
            seen.append(attempt.endpoint_name)
            attempt.close(SUCCESS)
        return seen

    five, ten = choices(0.05), choices(0.1)
    assert five.count("b") / 2000 == pytest.approx(0.05, abs=0.015)
    assert ten.count("b") / 2000 == pytest.approx(0.1, abs=0.02)
    assert all(after == "b" for before, after in zip(five, ten, strict=True) if before == "b")


def test_a_member_of_weight_zero_gets_nothing():
    fleet = Fleet(2, engine={"slots": 4})
    fleet.load(models=(ModelSpec(name="m", pool=("a", PoolMemberSpec(engine="b", weight=0))),))
    assert {fleet.attempt(str(n)).endpoint_name for n in range(4)} == {"a"}


@pytest.mark.parametrize("policy", ["consistent_hash", "least_outstanding", "power_of_two", "round_robin", "weighted"])
def test_every_policy_uses_every_slot_and_avoids_what_was_tried(policy: str):
    fleet = Fleet(3, engine={"slots": 2}, routing=RoutingSpec(policy=policy))  # type: ignore[arg-type]
    assert fleet.attempt(tried=("a", "b")).endpoint_name == "c"
    assert Counter(fleet.attempt("same").endpoint_name for _ in range(5)) == {"a": 2, "b": 2, "c": 1}
    fleet.wait()


# -- failures


def test_five_failures_in_a_row_take_an_endpoint_out():
    fleet = Fleet(3)
    fleet.fail("a", 4)
    assert fleet.state("a") == "ready"
    fleet.fail("a", 1)
    assert fleet.state("a") == "open"
    assert fleet.events[0] == ("a", "starting", "ready", "the engine is ready")
    assert fleet.events[-1] == ("a", "ready", "open", "5 consecutive failures")
    assert {fleet.attempt(str(n)).endpoint_name for n in range(4)} == {"b", "c"}


def test_client_errors_and_cancellations_count_for_nothing():
    fleet = Fleet(2)
    for _ in range(10):
        fleet.fail("a", 4)
        fleet.fail("a", 10, NEUTRAL)
        fleet.fail("a", 1, SUCCESS)
    assert fleet.state("a") == "ready"


def test_a_refused_connection_takes_it_out_at_once():
    fleet = Fleet(2)
    fleet.fail("a", 1, REFUSED)
    assert fleet.state("a") == "open"


def test_half_open_lets_one_request_through_and_its_fate_decides():
    fleet = Fleet(2)
    fleet.fail("a", 1, REFUSED)
    fleet.advance(0.95)
    assert fleet.state("a") == "open"
    fleet.advance(0.1)
    assert fleet.state("a") == "half_open"
    probe = fleet.attempt(tried=("b",))
    assert probe.endpoint_name == "a"
    assert {fleet.attempt(str(n)).endpoint_name for n in range(2)} == {"b"}
    fleet.wait()
    probe.close(SUCCESS)
    assert fleet.state("a") == "ready"


def test_a_neutral_probe_lets_another_one_go():
    fleet = Fleet(2)
    fleet.fail("a", 1, REFUSED)
    fleet.advance(1.1)
    for _ in range(3):
        fleet.attempt(tried=("b",)).close(NEUTRAL)
        assert fleet.state("a") == "half_open"


def test_the_probe_respects_the_slots_that_are_still_taken():
    fleet = Fleet(1, engine={"slots": 2}, routing=RoutingSpec(breaker=BreakerSpec(failures=1)))
    hung = [fleet.attempt(), fleet.attempt()]
    fleet.registry._endpoints["a"].ended("failure", hung[0]._epoch, hung[0].client)
    fleet.advance(1.1)
    assert fleet.state("a") == "half_open"
    waiting = fleet.wait()
    hung[0].close(NEUTRAL)
    fleet.scheduler.run()
    assert waiting.value is not None
    assert fleet.in_flight() == 2


def test_an_ejection_lasts_longer_each_time():
    fleet = Fleet(2)
    lasted = []
    fleet.fail("a", 1, REFUSED)
    for _ in range(3):
        start = fleet.clock.monotonic()
        while fleet.state("a") != "half_open":
            fleet.advance(0.05)
        lasted.append(fleet.clock.monotonic() - start)
        fleet.attempt(tried=("b",)).close(FAILURE)
    assert lasted == [pytest.approx(1, abs=0.06), pytest.approx(2, abs=0.06), pytest.approx(4, abs=0.06)]


def test_no_healthy_endpoint_is_said_at_once_and_when_to_come_back():
    fleet = Fleet(1)
    fleet.fail("a", 5)
    with pytest.raises(EngineError) as caught:
        fleet.acquire()
    assert (caught.value.code, caught.value.status) == ("no_healthy_endpoint", 503)
    assert caught.value.retry_after == pytest.approx(1.0)
    assert not fleet.route.ready


def test_panic_uses_ejected_endpoints_after_the_healthy_ones():
    fleet = Fleet(3, engine={"slots": 2})
    fleet.fail("a", 5)
    assert Counter(fleet.attempt(str(n)).endpoint_name for n in range(4)) == {"b": 2, "c": 2}
    fleet.wait()
    fleet = Fleet(3, engine={"slots": 2})
    fleet.fail("a", 5)
    fleet.fail("b", 5)
    assert [fleet.attempt(str(n)).endpoint_name for n in range(2)] == ["c", "c"]
    assert Counter(fleet.attempt(str(n)).endpoint_name for n in range(4)) == {"a": 2, "b": 2}


def test_panic_never_uses_an_endpoint_that_refuses():
    fleet = Fleet(3, engine={"slots": 2})
    for name in "abc":
        fleet.fail(name, 1, REFUSED)
    with pytest.raises(EngineError, match="healthy"):
        fleet.acquire()


def test_those_that_wait_learn_that_everything_failed():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(breaker=BreakerSpec(failures=1)))
    running, waiting = fleet.attempt(), fleet.wait()
    running.close(FAILURE)
    fleet.scheduler.run()
    assert isinstance(waiting.error, EngineError)


async def test_a_model_that_fits_nowhere_is_said_to_be_so():
    fleet = Fleet(2)
    fleet.load(engines=tuple(EngineSpec(name=name, runtime="llama.cpp", slots=1) for name in ("a", "b")))

    def refusal():
        with pytest.raises(EngineError) as caught:
            fleet.acquire()
        return caught.value.code, caught.value.status

    fleet.registry.engine_down("a", "the model does not fit", "insufficient_memory")
    fleet.registry.engine_down("b", "killed by signal 9")
    assert refusal() == ("no_healthy_endpoint", 503)
    fleet.registry.engine_down("b", "the model does not fit", "insufficient_memory")
    assert refusal() == ("insufficient_memory", 507)
    fleet.registry.engine_starting("b")
    assert refusal() == ("model_loading", 503)
    fleet.registry.engine_ready("b", "unix:/b.sock", 1)
    assert fleet.attempt().endpoint_name == "b"
    fleet.registry.engine_down("b", "killed by signal 9")
    assert refusal() == ("no_healthy_endpoint", 503)


async def test_those_that_wait_go_on_waiting_while_a_sidecar_restarts():
    fleet = Fleet(1)
    fleet.load(engines=(EngineSpec(name="a", runtime="llama.cpp", slots=1),))
    fleet.registry.engine_ready("a", "unix:/a1.sock", 1)
    running, waiting = fleet.attempt(), fleet.wait()
    fleet.registry.engine_down("a", "killed by signal 9")
    running.close(FAILURE)
    fleet.scheduler.run()
    assert not waiting.done
    fleet.registry.engine_ready("a", "unix:/a2.sock", 1)
    fleet.scheduler.run()
    assert waiting.value is not None
    assert waiting.value.client is fleet.clients[-1]


def test_may_retry_uses_the_budget_of_the_route():
    fleet = Fleet(2)
    error = EngineError("reset")
    assert fleet.route.may_retry(error, 1) is None
    error.safe = True
    assert fleet.route.may_retry(error, 1) == pytest.approx(0.025)
    retry = fleet.attempt(tried=("a",))
    assert fleet.route.budget.running == 1
    retry.close(SUCCESS)
    assert fleet.route.budget.running == 0


def test_a_retry_at_the_only_endpoint_counts_against_the_budget_too():
    fleet = Fleet(1)
    retry = fleet.attempt(tried=("a",))
    assert (retry.endpoint_name, fleet.route.budget.running) == ("a", 1)
    retry.close(SUCCESS)
    assert fleet.route.budget.running == 0


def test_a_retry_goes_elsewhere_and_only_to_the_same_when_nothing_else_could_serve():
    fleet = Fleet(2)
    assert fleet.attempt(tried=("a",)).endpoint_name == "b"
    fleet.fail("b", 1, REFUSED)
    assert fleet.attempt(tried=("a",)).endpoint_name == "a"


def test_a_retry_waits_for_another_endpoint_though_its_own_has_room():
    fleet = Fleet(2, engine={"slots": 1})
    elsewhere = fleet.attempt(tried=("a",))
    retry = fleet.wait(tried=("a",))
    newcomer = fleet.attempt("newcomer")
    assert newcomer.endpoint_name == "a"
    newcomer.close(SUCCESS)
    fleet.scheduler.run()
    assert not retry.done
    elsewhere.close(SUCCESS)
    fleet.scheduler.run()
    assert retry.value is not None
    assert retry.value.endpoint_name == "b"


def test_a_waiting_retry_takes_what_it_tried_when_the_other_dies():
    fleet = Fleet(2, engine={"slots": 1})
    fleet.attempt(tried=("a",))
    retry = fleet.wait(tried=("a",))
    fleet.registry.force("b", "open")
    fleet.scheduler.run()
    assert retry.value is not None
    assert retry.value.endpoint_name == "a"


# -- waiting


def test_a_freed_slot_goes_to_whoever_is_next_not_to_a_newcomer():
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


def test_nobody_waits_longer_than_the_queue_allows_nor_than_their_deadline():
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


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=150))
def test_no_slot_leaks_and_no_wake_up_is_lost(count: int, slots: int, steps: list[tuple[int, int]]):
    """Random arrivals, ends, cancellations, failures, drains, reloads, time: counts are true, and nobody waits beside a free slot."""
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
            room = any(view["in_flight"] < view["limit"] for view in fleet.registry.endpoints())
            assert not (room and any(not item.avoids for item in waiting))
    for attempt in held:
        attempt.close(SUCCESS)
    for item in waiting:
        routes[item].abandon(item)
    assert fleet.in_flight() == 0


# -- shedding


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


# -- names and mistakes


def test_aliases_and_fallbacks():
    fleet = Fleet(2)
    models = (ModelSpec(name="m", pool=("a",), aliases=("gpt-4o",), fallbacks=("small",)), ModelSpec(name="small", pool=("b",)))
    router = fleet.load(models=models)
    assert router.route("gpt-4o") is router.route("m") is fleet.route
    assert fleet.route.fallbacks == ("small",)
    assert fleet.route.model == "m"
    assert router.route("unknown") is None


@pytest.mark.parametrize(
    ("models", "path"),
    [
        ((ModelSpec(name="m", pool=("a", "nope")),), "models[0].pool[1]"),
        ((ModelSpec(name="m", pool=()),), "models[0].pool"),
        ((ModelSpec(name="m", pool=("a", "a")),), "models[0].pool[1]"),
        ((ModelSpec(name="m", pool=("a",)), ModelSpec(name="m", pool=("b",))), "models[1].name"),
        ((ModelSpec(name="m", pool=("a",)), ModelSpec(name="n", pool=("b",), aliases=("x", "m"))), "models[1].aliases[1]"),
        ((ModelSpec(name="m", pool=("a",), fallbacks=("n",)),), "models[0].fallbacks[0]"),
        ((ModelSpec(name="m", pool=("a",), fallbacks=("m",)),), "models[0].fallbacks[0]"),
    ],
)
def test_a_wrong_pool_names_its_place_and_changes_nothing(models: tuple[ModelSpec, ...], path: str):
    fleet = Fleet(2)
    route = fleet.route
    with pytest.raises(ConfigError) as caught:
        fleet.load(models=models)
    assert caught.value.path == path
    assert fleet.route is route
    fleet.attempt()


@pytest.mark.parametrize(
    ("engines", "path"),
    [
        ((EngineSpec(name="a", runtime="external"),), "engines[0].url"),
        ((EngineSpec(name="a", runtime="external", url="http://a"), EngineSpec(name="a", runtime="onnx")), "engines[1].name"),
        ((EngineSpec(name="a", runtime="external", url="http://a", headers={"x": "1\r\ny: 2"}),), "models[0].pool[0]"),
        ((EngineSpec(name="a", runtime="external", url="http://a", headers={"x y": "1"}),), "models[0].pool[0]"),
    ],
)
def test_a_wrong_engine_names_its_place(engines: tuple[EngineSpec, ...], path: str):
    with pytest.raises(ConfigError) as caught:
        Fleet(1).load(engines=engines)
    assert caught.value.path == path
