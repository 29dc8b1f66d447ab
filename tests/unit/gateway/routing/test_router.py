"""Routes when endpoints fail: ejection, half-open, panic, retries, and what is said when nothing serves."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.core.errors import EngineError
from gateway.core.specs import BreakerSpec, EngineSpec, RoutingSpec
from gateway.routing.health import ProbeResult
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Fleet, names


def test_five_failures_in_a_row_take_an_endpoint_out():
    fleet = Fleet(3)
    fleet.fail("a", 4)
    assert fleet.state("a") == "ready"
    fleet.fail("a", 1)
    assert fleet.state("a") == "open"
    assert fleet.events[0] == ("a", "starting", "ready", "taken as ready until its first probe")
    assert fleet.events[-1] == ("a", "ready", "open", "5 consecutive failures")
    assert {fleet.attempt(str(n)).endpoint_name for n in range(4)} == {"b", "c"}


def test_client_errors_and_cancellations_do_not_count():
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


def test_half_open_lets_one_request_through_and_its_result_decides():
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


def test_a_probe_request_whose_stream_begins_closes_the_breaker_and_wakes_waiting_requests():
    fleet = Fleet(1)
    fleet.fail("a", 1, REFUSED)
    fleet.advance(1.1)
    probe, waiting = fleet.attempt(), fleet.wait()
    probe.answering()
    assert fleet.state("a") == "ready"
    fleet.scheduler.run()
    assert waiting.value is not None and fleet.in_flight() == 2
    waiting.value.close(FAILURE)
    fleet.fail("a", 3)
    assert fleet.state("a") == "ready"
    probe.close(FAILURE)  # its stream broke: that is the fifth failure in a row
    assert fleet.state("a") == "open"


def test_an_answer_that_begins_late_says_nothing_about_the_probe():
    fleet = Fleet(1)
    late = fleet.attempt()
    fleet.fail("a", 5)
    late.answering()
    assert fleet.state("a") == "open"
    fleet.advance(1.1)
    probe = fleet.attempt()
    late.answering()
    assert fleet.state("a") == "half_open"
    late.close(FAILURE)
    assert fleet.state("a") == "half_open"
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


def test_without_a_healthy_endpoint_requests_are_refused_at_once_and_told_when_to_retry():
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


def test_panic_notices_an_ejected_endpoint_that_an_operator_held_open():
    fleet = Fleet(2, routing=RoutingSpec(breaker=BreakerSpec(max_ejected=0.5, open_for=60)))
    for name in names(2):
        fleet.fail(name, 5)
        fleet.registry.force(name, "open")
    with pytest.raises(EngineError):
        fleet.acquire()
    for name in names(2):
        fleet.registry.force(name, None)
    assert [fleet.state(name) for name in names(2)] == ["open", "open"], "as it was: only who holds it has changed"
    assert fleet.attempt().endpoint_name in names(2)


def test_panic_notices_that_an_ejected_endpoint_begins_or_ceases_to_refuse():
    fleet = Fleet(2, routing=RoutingSpec(breaker=BreakerSpec(max_ejected=0.5, open_for=60)))
    for name in names(2):
        fleet.fail(name, 5)
    endpoints = [member.endpoint for member in fleet.route.members]
    for endpoint in endpoints:
        for _ in range(3):
            endpoint.probed(ProbeResult(False, "connection refused", refused=True))
    with pytest.raises(EngineError):
        fleet.acquire()
    for endpoint in endpoints:
        endpoint.probed(ProbeResult(False, "no answer within 2 s"), decisive=True)
    assert fleet.attempt().endpoint_name in names(2)


def test_panic_never_uses_an_endpoint_that_refuses():
    fleet = Fleet(3, engine={"slots": 2})
    for name in "abc":
        fleet.fail(name, 1, REFUSED)
    with pytest.raises(EngineError, match="healthy"):
        fleet.acquire()


def test_waiting_requests_are_refused_when_every_endpoint_has_failed():
    fleet = Fleet(1, engine={"slots": 1}, routing=RoutingSpec(breaker=BreakerSpec(failures=1)))
    running, waiting = fleet.attempt(), fleet.wait()
    running.close(FAILURE)
    fleet.scheduler.run()
    assert isinstance(waiting.error, EngineError)


async def test_a_model_that_fits_nowhere_is_reported_as_such():
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


async def test_requests_go_on_waiting_while_a_sidecar_restarts():
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


def test_a_waiting_retry_goes_back_to_the_endpoint_it_tried_when_the_other_dies():
    fleet = Fleet(2, engine={"slots": 1})
    fleet.attempt(tried=("a",))
    retry = fleet.wait(tried=("a",))
    fleet.registry.force("b", "open")
    fleet.scheduler.run()
    assert retry.value is not None
    assert retry.value.endpoint_name == "a"


def test_prompts_are_counted_by_the_least_busy_endpoint_that_works() -> None:
    assert not Fleet(2).route.counts_prompts and Fleet(2).route.counter(frozenset()) is None, "engines elsewhere are not asked by default"
    fleet = Fleet(2, count_prompts=True)
    first = fleet.attempt()
    found = fleet.route.counter(frozenset())
    assert found is not None and found.endpoint.name != first.endpoint_name and found.counting == "tokenize"
    assert fleet.in_flight() == 1, "it takes no slot"
    first.close(REFUSED)
    again = fleet.route.counter(frozenset())
    assert again is not None and again.endpoint.name == found.endpoint.name
    fleet.route.uncounted()
    assert fleet.route.counter(frozenset()) is None
    fleet.advance(30.1)
    assert fleet.route.counter(frozenset()) is not None
