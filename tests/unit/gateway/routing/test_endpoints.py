"""Endpoints across restarts, drains and slow starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.errors import EngineError, GatehouseError
from gateway.core.ports import AttemptResult
from gateway.core.specs import EXTERNAL_SLOTS, EngineSpec, HealthSpec, ModelSpec
from gateway.routing.health import ProbeResult
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Fleet, settled, sidecar

# -- the supervisor


async def test_a_sidecar_is_loading_until_its_supervisor_reports():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    with pytest.raises(EngineError) as caught:
        fleet.acquire()
    assert (caught.value.code, caught.value.status) == ("model_loading", 503)
    fleet.registry.engine_ready("a", "unix:/run/a.sock", 3)
    assert fleet.attempt().client.address == "unix:/run/a.sock"  # type: ignore[attr-defined]
    assert fleet.registry.endpoints()[0]["slots"] == 3


async def test_a_sidecar_that_starts_again_is_loading():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    fleet.registry.engine_ready("a", "unix:/a1.sock", 2)
    codes = []
    for report in (lambda: fleet.registry.engine_down("a", "killed by signal 9"), lambda: fleet.registry.engine_starting("a")):
        report()
        with pytest.raises(EngineError) as caught:
            fleet.acquire()
        codes.append((fleet.state("a"), caught.value.code))
    assert codes == [("down", "no_healthy_endpoint"), ("starting", "model_loading")]
    fleet.registry.engine_ready("a", "unix:/a2.sock", 2)
    assert fleet.attempt().client.address == "unix:/a2.sock"  # type: ignore[attr-defined]


async def test_an_external_engine_serves_until_the_sidecar_of_its_name_takes_over():
    fleet = Fleet(1)
    fleet.registry.engine_starting("a")
    assert fleet.attempt().client is fleet.clients[0]
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    assert fleet.attempt().client is fleet.clients[0]
    fleet.load(engines=(sidecar(),))
    assert fleet.attempt().client.address == "unix:/a.sock"  # type: ignore[attr-defined]


async def test_a_report_may_come_before_the_configuration():
    fleet = Fleet(1)
    fleet.registry.engine_ready("s", "unix:/run/s.sock", 3)
    fleet.registry.engine_down("gone", "killed")
    fleet.load(engines=(sidecar("s"), sidecar("gone")), models=(ModelSpec(name="m", pool=("s", "gone")),))
    assert fleet.attempt().endpoint_name == "s"
    assert fleet.state("gone") == "down"


async def test_a_restarted_process_starts_clean():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    fleet.registry.engine_ready("a", "unix:/a1.sock", 2)
    fleet.attempt()
    fleet.fail("a", 1, REFUSED)
    fleet.registry.engine_down("a", "killed by signal 9")
    assert fleet.state("a") == "down"
    fleet.registry.engine_ready("a", "unix:/a2.sock", 2)
    assert fleet.state("a") == "ready"
    assert fleet.in_flight() == 0
    attempts = [fleet.attempt(), fleet.attempt()]
    assert {attempt.client for attempt in attempts} == {fleet.clients[-1]}
    assert fleet.in_flight() == 2


async def test_the_old_processs_requests_end_on_its_own_connections():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    fleet.registry.engine_ready("a", "unix:/a1.sock", 2)
    old = fleet.attempt()
    fleet.registry.engine_ready("a", "unix:/a2.sock", 2)
    await settled()
    assert not fleet.clients[-2].closed
    old.close(SUCCESS)
    await settled()
    assert fleet.clients[-2].closed
    assert fleet.in_flight() == 0


async def test_the_same_report_again_changes_nothing():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    attempt = fleet.attempt()
    fleet.fail("a", 3)
    fleet.registry.engine_ready("a", "unix:/a.sock", 2)
    assert (fleet.in_flight(), len(fleet.clients)) == (1, 2)
    assert fleet.registry.endpoints()[0]["breaker"]["failures"] == 3
    attempt.close(FAILURE)


async def test_a_draining_engine_gets_nothing_new():
    fleet = Fleet(1)
    fleet.load(engines=(sidecar("a"), sidecar("b")), models=(ModelSpec(name="m", pool=("a", "b")),))
    for name in "ab":
        fleet.registry.engine_ready(name, f"unix:/{name}.sock", 8)
    fleet.registry.engine_draining("a")
    assert {fleet.attempt(str(n)).endpoint_name for n in range(8)} == {"b"}


# -- operators


def test_drain_waits_for_what_is_under_way_and_resume_brings_it_back():
    fleet = Fleet(2)
    running = fleet.attempt(tried=("b",))
    drained = fleet.registry.drain("a")
    assert fleet.state("a") == "draining"
    assert {fleet.attempt(str(n)).endpoint_name for n in range(2)} == {"b"}
    assert not drained.done
    running.close(SUCCESS)
    assert drained.done
    waiting = fleet.wait()
    fleet.registry.resume("a")
    fleet.scheduler.run()
    assert waiting.value is not None and waiting.value.endpoint_name == "a"


def test_an_idle_endpoint_is_drained_at_once():
    assert Fleet(1).registry.drain("a").done


def test_forcing():
    fleet = Fleet(2)
    fleet.registry.force("a", "open")
    assert fleet.state("a") == "open"
    fleet.advance(60)
    assert fleet.state("a") == "open"
    fleet.registry.force("a", None)
    assert fleet.state("a") == "ready"
    fleet.registry.force("a", "closed")
    fleet.fail("a", 20)
    assert fleet.state("a") == "ready"
    assert fleet.registry.endpoints()[0]["breaker"]["forced"] == "closed"


@pytest.mark.parametrize("action", ["drain", "resume"])
def test_an_unknown_endpoint_is_an_error(action: str):
    with pytest.raises(GatehouseError, match="nobody"):
        getattr(Fleet(1).registry, action)("nobody")


# -- probes


def probed(fleet: Fleet, name: str, result: ProbeResult) -> None:
    fleet.registry._endpoints[name].probed(result)


def test_failed_probes_take_it_out_and_good_ones_bring_it_back():
    fleet = Fleet(2)
    for _ in range(3):
        probed(fleet, "a", ProbeResult(False, "500"))
    assert fleet.state("a") == "unhealthy"
    assert fleet.events[-1] == ("a", "ready", "unhealthy", "500")
    assert {fleet.attempt(str(n)).endpoint_name for n in range(2)} == {"b"}
    probed(fleet, "a", ProbeResult(True))
    assert fleet.state("a") == "ready"


def test_an_external_engine_is_only_taken_as_ready_until_a_probe_succeeds():
    fleet = Fleet(1)
    endpoint = fleet.registry._endpoints["a"]
    assert (endpoint.state, endpoint.reason) == ("ready", "taken as ready until its first probe")
    probed(fleet, "a", ProbeResult(False, "500"))
    assert endpoint.reason == "taken as ready until its first probe"
    probed(fleet, "a", ProbeResult(True))
    assert (endpoint.state, endpoint.reason) == ("ready", "the probes succeed")


def test_while_probes_find_it_dead_its_requests_are_offered_to_the_others():
    fleet = Fleet(2)
    taken = [fleet.attempt(str(number)) for number in range(4)]
    route, client = fleet.route, next(attempt.client for attempt in taken if attempt.endpoint_name == "a")
    for _ in range(2):
        probed(fleet, "a", ProbeResult(False, "no answer"))
        fleet.registry.forsake("a")
    fleet.scheduler.run()
    assert client.forsaken == 0, "not unhealthy yet"
    for count in (1, 2):
        probed(fleet, "a", ProbeResult(False, "no answer"))
        fleet.registry.forsake("a")
        fleet.scheduler.run()
        assert client.forsaken == count, "again with each probe: more retries may be allowed by then"
    assert route.may_leave("a", 1, frozenset())
    assert not route.may_leave("b", 1, frozenset()), "there is no other"
    assert not route.may_leave("a", 3, frozenset()), "it has had its attempts"
    route.budget.running = 10
    assert not route.may_leave("a", 1, frozenset()), "the budget is spent"


def test_an_endpoint_that_loads_its_model_keeps_its_requests():
    fleet = Fleet(2)
    client = next(attempt.client for attempt in [fleet.attempt(str(number)) for number in range(4)] if attempt.endpoint_name == "a")
    probed(fleet, "a", ProbeResult(False, "loading", loading=True))
    fleet.registry.forsake("a")
    fleet.scheduler.run()
    assert client.forsaken == 0


def test_a_refused_probe_opens_the_breaker_and_one_request_closes_it():
    fleet = Fleet(2)
    probed(fleet, "a", ProbeResult(False, "refused", refused=True))
    assert fleet.state("a") == "unhealthy"
    assert fleet.registry.endpoints()[0]["breaker"]["state"] == "open"
    fleet.advance(10)
    assert fleet.state("a") == "unhealthy"
    probed(fleet, "a", ProbeResult(True))
    assert fleet.state("a") == "half_open"
    fleet.attempt(tried=("b",)).close(SUCCESS)
    assert fleet.state("a") == "ready"


def test_a_failed_request_and_then_a_failed_probe_mean_that_it_hangs():
    fleet = Fleet(2)
    fleet.fail("a", 1)
    assert fleet.state("a") == "ready"
    fleet.registry._endpoints["a"].probed(ProbeResult(False, "no answer"), decisive=True)
    assert (fleet.state("a"), fleet.registry.endpoints()[0]["breaker"]["state"]) == ("unhealthy", "open")
    probed(fleet, "a", ProbeResult(True))
    assert fleet.state("a") == "half_open"


def slots(fleet: Fleet) -> int:
    return int(fleet.registry.endpoints()[0]["slots"])


def test_without_a_setting_the_engine_says_how_many_slots_it_has():
    fleet = Fleet(1, engine={"weight": 1.0})
    assert slots(fleet) == EXTERNAL_SLOTS == 256
    for _ in range(EXTERNAL_SLOTS):
        fleet.attempt()
    waiting = fleet.wait()
    probed(fleet, "a", ProbeResult(True, slots=300, details={"slots": 300, "kv_used": 0.5}))
    fleet.scheduler.run()
    assert waiting.done
    assert slots(fleet) == 300
    assert fleet.registry.endpoints()[0]["health"]["kv_used"] == 0.5


def test_the_configured_slots_of_an_external_engine_count_whatever_it_says():
    fleet = Fleet(1, engine={"slots": 1})
    fleet.attempt()
    waiting = fleet.wait()
    probed(fleet, "a", ProbeResult(True, slots=4, details={"slots": 4}))
    fleet.scheduler.run()
    assert not waiting.done
    assert slots(fleet) == 1
    assert fleet.registry.endpoints()[0]["health"]["slots"] == 4


def test_a_reload_changes_the_slots_at_once_and_knows_what_the_engine_had_said():
    fleet = Fleet(1, engine={"slots": 2})
    probed(fleet, "a", ProbeResult(True, slots=4))
    for configured, expected in ((3, 3), (None, 4), (1, 1)):
        fleet.load(engines=(EngineSpec(name="a", runtime="external", url="http://a:80", slots=configured),))
        assert (slots(fleet), fleet.registry.endpoints()[0]["limit"]) == (expected, expected)


async def test_the_slots_that_a_sidecar_reports_count():
    fleet = Fleet(1, engine={"slots": 2})
    fleet.load(engines=(sidecar("a", slots=6),))
    fleet.registry.engine_ready("a", "unix:/a.sock", 5)
    assert slots(fleet) == 5
    probed(fleet, "a", ProbeResult(True, slots=4))
    assert slots(fleet) == 4


LOADING = ProbeResult(False, "state is loading", loading=True)


@pytest.mark.parametrize("other", ["starting", "draining", "open"])
def test_an_engine_that_says_it_is_loading_counts_as_loading_whatever_the_others_do(other: str):
    fleet = Fleet(2)
    probed(fleet, "a", LOADING)
    assert (fleet.state("a"), fleet.events[-1]) == ("starting", ("a", "ready", "starting", "state is loading"))
    assert fleet.attempt().endpoint_name == "b"
    if other == "starting":
        probed(fleet, "b", LOADING)
    elif other == "draining":
        fleet.registry.drain("b")
    else:
        fleet.fail("b", 1, REFUSED)
    with pytest.raises(EngineError) as caught:
        fleet.acquire()
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("model_loading", 503, 2.0)
    probed(fleet, "a", ProbeResult(True))
    assert fleet.attempt().endpoint_name == "a"


@pytest.mark.parametrize("state", ["unhealthy", "open", "draining"])
def test_a_pool_without_an_engine_that_loads_has_no_healthy_endpoint(state: str):
    fleet = Fleet(1)
    if state == "unhealthy":
        probed(fleet, "a", LOADING)
        probed(fleet, "a", ProbeResult(False, "500"))
    elif state == "open":
        fleet.fail("a", 1, REFUSED)
    else:
        fleet.registry.drain("a")
    assert fleet.state("a") == state
    with pytest.raises(EngineError) as caught:
        fleet.acquire()
    assert (caught.value.code, caught.value.status) == ("no_healthy_endpoint", 503)
    assert caught.value.retry_after is not None and caught.value.retry_after >= 1.0


def test_a_suspect_that_is_loading_has_not_failed_and_requests_go_on_waiting_for_it():
    fleet = Fleet(1, engine={"slots": 1})
    running, waiting = fleet.attempt(), fleet.wait()
    fleet.registry._endpoints["a"].probed(LOADING, decisive=True)
    running.close(NEUTRAL)
    fleet.scheduler.run()
    assert not waiting.done
    assert fleet.registry.endpoints()[0]["breaker"]["state"] == "closed"
    probed(fleet, "a", ProbeResult(True))
    fleet.scheduler.run()
    assert waiting.done and waiting.error is None


def test_what_failed_late_does_not_keep_out_an_engine_that_answers_again():
    """Requests that a stalled machine had when its lease ran out fail afterwards: the breaker's long opening is over with a good probe all
    the same."""
    fleet = Fleet(2)
    under_way = fleet.attempt(tried=("b",))
    for _ in range(4):  # each opening lasts longer
        probed(fleet, "a", ProbeResult(False, "the machine's lease is over", refused=True))
        under_way.close(FAILURE)
        probed(fleet, "a", ProbeResult(True))
        assert fleet.state("a") == "half_open"
        fleet.attempt(tried=("b",)).close(SUCCESS)
        assert fleet.state("a") == "ready"
        under_way = fleet.attempt(tried=("b",))
    under_way.close(SUCCESS)


def test_an_engine_that_accepts_connections_again_is_tried_at_once():
    fleet = Fleet(2)
    fleet.fail("a", 1, REFUSED)
    probed(fleet, "a", ProbeResult(True))
    assert fleet.state("a") == "half_open"


def drain_and_resume(fleet: Fleet, back: bool) -> None:
    if back:
        fleet.registry.resume("a")
    else:
        fleet.registry.drain("a")


def fail_probes_then_pass(fleet: Fleet, back: bool) -> None:
    for _ in range(3):
        probed(fleet, "a", ProbeResult(back, "" if back else "/health answered 500"))


def force_and_lift(fleet: Fleet, back: bool) -> None:
    fleet.registry.force("a", None if back else "closed")


@pytest.mark.parametrize("change", [drain_and_resume, fail_probes_then_pass, force_and_lift])
@pytest.mark.parametrize("result", [SUCCESS, NEUTRAL, FAILURE])
def test_the_breakers_probe_counts_though_the_endpoint_changed_meanwhile(change: Callable[[Fleet, bool], None], result: AttemptResult):
    """Else the breaker would wait for its result for ever, and the endpoint would get no request again."""
    fleet = Fleet(1)
    fleet.fail("a", 1, REFUSED)
    probed(fleet, "a", ProbeResult(True))
    probe = fleet.attempt()
    change(fleet, False)
    probe.close(result)
    change(fleet, True)
    assert fleet.state("a") == {SUCCESS: "ready", NEUTRAL: "half_open", FAILURE: "open"}[result]
    fleet.advance(61)
    fleet.attempt().close(SUCCESS)
    assert fleet.state("a") == "ready"


# -- slow start


def test_a_returning_endpoint_starts_slowly():
    fleet = Fleet(2, engine={"slots": 10, "health": HealthSpec(slow_start=10.0)})
    fleet.advance(11)
    fleet.registry.drain("a")
    fleet.registry.resume("a")
    limits = [1]
    for _ in range(5):
        fleet.advance(2.0)
        limits.append(int(fleet.registry.endpoints()[0]["limit"]))
    assert fleet.registry.endpoints()[1]["limit"] == 10
    assert limits == [1, 2, 4, 6, 8, 10]
    fleet.advance(0.2)
    assert not fleet.scheduler.timed


def test_without_slow_start_all_slots_are_there_at_once():
    fleet = Fleet(1, engine={"slots": 10})
    fleet.registry.drain("a")
    fleet.registry.resume("a")
    assert fleet.registry.endpoints()[0]["limit"] == 10


class Answers:
    """A probe that is told what to say."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[ProbeResult] = asyncio.Queue()

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult:
        return await self.results.get()

    async def forget(self, engine: str) -> None: ...

    async def aclose(self) -> None: ...


async def test_an_external_engine_counts_as_seen_once_a_probe_has_succeeded():
    fleet = Fleet(1, engine={"slots": 2, "health": HealthSpec(interval=0.05)})
    answers, heard = Answers(), asyncio.Queue[bool]()
    fleet.registry.start_probing(answers, lambda endpoint, result, decisive: heard.put_nowait(fleet.registry.seen))
    try:
        async with asyncio.timeout(60):
            assert fleet.state("a") == "ready" and not fleet.registry.seen, "requests are tried, and nobody is told yet"
            for result in (ProbeResult(False, "500"), ProbeResult(True), ProbeResult(False, "500")):
                answers.results.put_nowait(result)
            assert [await heard.get() for _ in range(3)] == [False, True, True]
    finally:
        await fleet.registry.aclose()


@pytest.mark.parametrize("report", ["ready", "unloaded", "starting"])
async def test_a_sidecar_counts_as_seen_once_it_is_ready_or_would_be_loaded(report: str):
    fleet = Fleet(1)
    fleet.load(engines=(sidecar(),))
    match report:
        case "ready":
            fleet.registry.engine_ready("a", "unix:/a.sock", 1)
        case "unloaded":
            fleet.registry.engine_unloaded("a", "idle")
        case _:
            fleet.registry.engine_starting("a")
    assert fleet.registry.seen is (report != "starting")
