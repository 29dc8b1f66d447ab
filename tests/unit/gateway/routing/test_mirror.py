"""Endpoints over a control process and its workers: one truth, whatever one of them learns, and whoever dies or comes late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from gateway.core.errors import GatehouseError
from gateway.core.ports import AttemptResult
from gateway.core.specs import EngineSpec
from gateway.routing import mirror_messages as m
from gateway.routing.health import ProbeResult
from gateway.routing.router import PoolAttempt
from tests.unit.gateway.routing.fleet import FAILURE, NEUTRAL, REFUSED, SUCCESS, Client, sidecar
from tests.unit.gateway.routing.workers import House, Worker

OLD, NEW = "unix:/old.sock", "unix:/new.sock"


@pytest.fixture
async def house() -> House:
    """Two workers, an external engine with four slots."""
    return House()


@pytest.fixture
async def home() -> House:
    """Two workers, a sidecar with four slots that is ready."""
    made = House(2, (sidecar(model="m", slots=4),))
    made.mirror.engine_ready("a", OLD, 4)
    made.settle()
    return made


def one_of(worker: Worker) -> Client:
    client = worker.attempt().client
    assert isinstance(client, Client)
    return client


# --- what the supervisor, the probes and operators say


REPORTS: dict[str, tuple[Callable[[House], None], str]] = {
    "starting": (lambda h: h.mirror.engine_starting("a"), "starting"),
    "ready": (lambda h: h.mirror.engine_ready("a", NEW, 4), "ready"),
    "draining": (lambda h: h.mirror.engine_draining("a"), "draining"),
    "unloading": (lambda h: h.mirror.engine_unloading("a"), "draining"),
    "unloaded": (lambda h: h.mirror.engine_unloaded("a", "idle"), "unloaded"),
    "down": (lambda h: h.mirror.engine_down("a", "killed", "engine_failed"), "down"),
    "drained by an operator": (lambda h: h.mirror.drain("a"), "draining"),
    "forced": (lambda h: h.mirror.force("a", "open"), "open"),
}


@pytest.mark.parametrize(("report", "state"), REPORTS.values(), ids=REPORTS)
async def test_a_report_reaches_every_worker_and_those_that_come_later(home: House, report: Callable[[House], None], state: str) -> None:
    report(home)
    home.settle()
    assert home.states() == [state] * 3
    home.start()
    home.settle()
    assert home.states() == [state] * 4


async def test_a_worker_that_loads_its_configuration_late_comes_to_the_same_states(home: House) -> None:
    home.mirror.drain("a")
    late = home.start(load=False)
    home.settle()
    late.load()
    assert late.endpoint().state == "draining", "from its first request on"
    home.settle()
    assert home.states() == ["draining"] * 4
    home.mirror.resume("a")
    home.settle()
    assert home.states() == ["ready"] * 4
    home.serve_one(late)


async def test_an_unknown_endpoint_cannot_be_drained(home: House) -> None:
    for call in (home.mirror.drain, home.mirror.resume, lambda name: home.mirror.force(name, "open")):
        with pytest.raises(GatehouseError):
            call("nobody")
    home.settle()
    assert home.states() == ["ready"] * 3


async def test_the_probes_of_the_control_process_count_everywhere(house: House) -> None:
    for _ in range(3):
        house.probe(ProbeResult(False, "no answer"))
    assert house.states() == ["unhealthy"] * 3
    house.start()
    house.settle()
    assert house.states() == ["unhealthy"] * 4
    for _ in range(3):
        house.probe(ProbeResult(True))
    assert house.states() == ["ready"] * 4


async def test_good_probes_of_a_healthy_endpoint_are_not_sent(house: House) -> None:
    house.probe(ProbeResult(True))
    before = len(house.workers[0].down.passed)
    for _ in range(10):
        house.probe(ProbeResult(True))
    assert len(house.workers[0].down.passed) == before


async def test_that_an_engine_was_seen_to_work_reaches_workers_and_those_that_come_later(house: House, home: House) -> None:
    assert [process.registry.seen for process in (house, *house.live)] == [False] * 3
    house.mirror._probed(house.endpoint(), ProbeResult(False, "no answer within 2 s"), False)
    house.start()
    house.settle()
    assert not any(worker.registry.seen for worker in house.live), "an engine of which nothing is known"
    house.registry.seen = True  # as the prober notes it
    house.probe(ProbeResult(True))
    house.start()
    house.settle()
    assert [worker.registry.seen for worker in house.live] == [True] * 4
    assert [process.registry.seen for process in (home, *home.live)] == [True] * 3, "a sidecar says so itself"


async def test_a_failed_request_has_its_endpoint_probed(house: House) -> None:
    suspects: list[str] = []
    house.registry.suspect = lambda endpoint: suspects.append(endpoint.name)  # type: ignore[method-assign]
    house.workers[1].fail(1, FAILURE)
    house.settle()
    assert suspects == ["a"]


# --- breakers


@pytest.mark.parametrize(("count", "result"), [(5, FAILURE), (1, REFUSED)])
async def test_a_breaker_that_opens_in_one_worker_is_open_everywhere(house: House, count: int, result: AttemptResult) -> None:
    house.workers[0].fail(count, result)
    house.settle()
    assert house.states() == ["open"] * 3
    house.start()
    house.settle()
    assert house.states() == ["open"] * 4
    assert house.mirror.endpoints()[0]["breaker"]["state"] == "open"


async def test_one_probe_request_is_let_through_over_all_workers_and_its_success_closes_all(house: House) -> None:
    house.workers[0].fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    assert house.states() == ["half_open"] * 3
    probe = house.workers[0].attempt()
    waiting = [worker.wait() for worker in house.workers]
    house.advance(2.0)
    assert not any(w.done for w in waiting)
    probe.close(SUCCESS)
    house.settle()
    assert house.states() == ["ready"] * 3
    assert all(w.value is not None for w in waiting)


async def test_a_failed_probe_request_opens_all_for_longer(house: House) -> None:
    house.workers[0].fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    waiting = house.workers[1].wait()
    house.workers[0].attempt().close(FAILURE)
    house.settle()
    assert house.states() == ["open"] * 3
    assert waiting.error is not None
    house.advance(1.5)
    assert house.states() == ["open"] * 3, "two seconds, the second time"
    house.advance(0.6)
    assert house.states() == ["half_open"] * 3
    assert sum(worker.endpoint().limit > 0 for worker in house.workers) == 1


async def test_the_turn_goes_to_the_worker_that_has_requests(house: House) -> None:
    house.workers[0].fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    waiting = house.workers[1].wait()
    house.advance(0.1)
    assert waiting.value is not None
    assert not house.workers[0].endpoint().limit
    waiting.value.close(NEUTRAL)  # it proved nothing: the next one may go
    house.settle()
    house.attempt_somewhere().close(SUCCESS)
    house.settle()
    assert house.states() == ["ready"] * 3


async def test_a_turn_that_proved_nothing_goes_on_to_where_requests_wait(house: House) -> None:
    first, second = house.workers
    first.fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    probe, waiting = first.attempt(), second.wait()
    house.advance(0.5)
    assert not waiting.done, "the probe request is under way"
    probe.close(NEUTRAL)
    house.advance(0.5)
    assert waiting.value is not None


async def test_an_opening_by_probes_has_one_turn(house: House) -> None:
    house.probe(ProbeResult(False, "nobody listens", refused=True))
    assert house.states() == ["unhealthy"] * 3
    house.probe(ProbeResult(True))
    house.probe(ProbeResult(True))
    assert house.states() == ["half_open"] * 3
    assert sum(worker.endpoint().limit > 0 for worker in house.workers) == 1


async def test_each_opening_has_one_turn(house: House) -> None:
    for opener in (house.workers[0], house.workers[1], house.workers[0]):
        opener.fail(5, FAILURE)
        house.settle()
        house.advance(1.1 if opener.endpoint().breaker.openings == 1 else 4.1)
        assert [worker.endpoint().limit > 0 for worker in house.workers] == [worker is opener for worker in house.workers]
        opener.attempt().close(SUCCESS)
        house.settle()
        assert house.states() == ["ready"] * 3


async def test_news_that_a_breaker_closed_are_ignored_if_it_has_opened_since(house: House) -> None:
    first, second = house.workers
    first.fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    late = first.attempt()
    house.mirror.heard("2", m.BreakerLearnt("a", "http://a:80", 1, "closed"))
    for _ in range(5):
        house.mirror.heard("2", m.BreakerLearnt("a", "http://a:80", 2, "open"))
    late.close(SUCCESS)  # it does not know of this yet
    house.settle()
    assert house.states() == ["open"] * 3 and second.endpoint().state == "open"


@pytest.mark.parametrize("seed", range(20))
async def test_at_most_one_probe_request_is_under_way_and_all_agree_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    house = House(3, slots=2)
    under_way: list[tuple[Worker, PoolAttempt]] = []
    for _ in range(400):
        worker = chance.choice(house.live)
        if chance.random() < 0.5 and worker.endpoint().in_flight < worker.endpoint().limit:
            under_way.append((worker, worker.attempt()))
        elif under_way:
            under_way.pop(chance.randrange(len(under_way)))[1].close(chance.choice((SUCCESS, FAILURE, FAILURE, REFUSED, NEUTRAL)))
        if chance.random() < 0.02 and len(house.live) > 1:
            house.kill(worker)
            under_way = [(w, attempt) for w, attempt in under_way if w is not worker]
            house.start()
        for _ in range(chance.randrange(4)):
            house.deliver()
        if chance.random() < 0.2:
            house.settle()
            house.advance(chance.random() * 2, 0.05)
        assert sum(worker.endpoint().probing for worker in house.live) <= 1
        assert sum(worker.endpoint().half_open and worker.endpoint().turn for worker in house.live) <= 1
    for _, attempt in under_way:
        attempt.close(NEUTRAL)
    house.settle()
    house.advance(31.0, 0.1)
    if house.states()[0] == "half_open":
        house.attempt_somewhere().close(SUCCESS)
        house.settle()
    assert len(set(house.states())) == 1


async def test_the_turn_of_a_worker_that_dies_goes_on(house: House) -> None:
    house.workers[0].fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    house.workers[0].attempt()
    waiting = house.workers[1].wait()
    house.advance(0.5)
    assert not waiting.done
    house.kill(house.workers[0])
    house.settle()
    assert waiting.value is not None
    waiting.value.close(SUCCESS)
    house.settle()
    assert house.states() == ["ready"] * 2


async def test_a_good_probe_ends_an_opening_early_everywhere(house: House) -> None:
    house.workers[1].fail(1, REFUSED)
    house.settle()
    house.probe(ProbeResult(True))
    assert house.states() == ["half_open"] * 3


async def test_two_workers_that_disagree_come_to_the_same_state(house: House) -> None:
    first, second = house.workers
    first.fail(5, FAILURE)
    house.settle()
    house.advance(1.1)
    first.attempt().close(SUCCESS)
    second.endpoint().turn = True  # as if it had had the turn too
    second.endpoint().judge("")
    second.attempt().close(FAILURE)
    house.settle()
    assert house.states() == ["open"] * 3
    house.advance(2.5)
    house.attempt_somewhere().close(SUCCESS)
    house.settle()
    assert house.states() == ["ready"] * 3


async def test_what_a_worker_says_of_an_earlier_process_is_dropped(home: House) -> None:
    home.workers[0].fail(5, FAILURE)
    home.mirror.engine_ready("a", NEW, 4)
    home.settle()
    assert home.states() == ["ready"] * 3


# --- engines that are loaded on demand


@pytest.fixture
async def lazy() -> House:
    made = House(3, (sidecar(model="m", slots=4),))
    made.mirror.engine_unloaded("a", "not loaded yet")
    made.settle()
    return made


async def test_an_engine_that_several_workers_want_is_loaded_once(lazy: House) -> None:
    waiting = [worker.wait() for worker in lazy.workers for _ in range(3)]
    lazy.settle()
    assert lazy.asked == ["a"]
    assert lazy.states() == ["starting"] * 4
    lazy.mirror.engine_starting("a", awaited=True)
    late = lazy.start()
    lazy.settle()
    waiting.append(late.wait())
    lazy.mirror.engine_ready("a", OLD, 4)
    lazy.settle()
    while waiting:
        served = [w for w in waiting if w.done]
        assert served, "nobody is served"
        for w in served:
            assert w.value is not None, w.error
            w.value.close(SUCCESS)
            waiting.remove(w)
        lazy.advance(0.2)
    assert lazy.asked == ["a"]


async def test_an_engine_that_is_wanted_again_after_a_failed_load_is_asked_for_after_the_pause(lazy: House) -> None:
    waiting = lazy.workers[0].wait()
    lazy.settle()
    lazy.mirror.engine_unloaded("a", "no room", "insufficient_memory", 5.0)
    lazy.settle()
    assert waiting.error is not None
    with pytest.raises(GatehouseError):
        lazy.workers[1].acquire()
    lazy.advance(5.1)
    lazy.workers[1].wait()
    lazy.settle()
    assert lazy.asked == ["a", "a"]


async def test_a_worker_that_asks_too_early_is_told_how_it_is(lazy: House) -> None:
    lazy.workers[0].wait()
    lazy.settle()
    lazy.mirror.engine_unloaded("a", "no room", None, 5.0)
    lazy.settle()
    lazy.workers[1].endpoint().retry_at = 0.0  # its clock is ahead
    waiting = lazy.workers[1].wait()
    lazy.settle()
    assert waiting.error is not None and lazy.asked == ["a"]
    assert lazy.states() == ["unloaded"] * 4


async def test_an_engine_is_idle_when_no_worker_uses_it(home: House) -> None:
    attempt = home.workers[1].attempt()
    home.advance(1.0)
    assert home.mirror.idle_seconds("a") is None
    attempt.close(SUCCESS)
    home.advance(1.0)
    assert home.mirror.idle_seconds("a") == pytest.approx(1.0, abs=0.3)
    home.workers[0].attempt().close(SUCCESS)
    home.advance(0.3)
    assert home.mirror.idle_seconds("a") == pytest.approx(0.3, abs=0.1)
    home.workers[1].attempt()
    home.advance(0.3)
    assert home.mirror.idle_seconds("a") is None
    home.kill(home.workers[1])
    home.advance(0.3)
    assert home.mirror.idle_seconds("a") == pytest.approx(0.9, abs=0.3)
    assert home.mirror.idle_seconds("unknown") is None


# --- draining


async def test_drained_waits_for_every_worker(home: House) -> None:
    attempts = [worker.attempt() for worker in home.workers]
    home.mirror.engine_draining("a")
    drained = asyncio.create_task(home.mirror.drained("a", OLD))
    for attempt in attempts:
        await asyncio.sleep(0)
        home.settle()
        assert not drained.done()
        attempt.close(SUCCESS)
    home.settle()
    await asyncio.wait_for(drained, 60.0)


async def test_a_worker_that_dies_is_drained(home: House) -> None:
    home.workers[0].attempt()
    home.workers[1].attempt()
    home.mirror.engine_draining("a")
    drained = asyncio.create_task(home.mirror.drained("a", OLD))
    await asyncio.sleep(0)
    for worker in list(home.workers):
        home.settle()
        assert not drained.done()
        home.kill(worker)
    await asyncio.wait_for(drained, 60.0)
    await asyncio.wait_for(home.mirror.drained("a", OLD), 60.0)


async def test_an_engine_that_was_removed_drains_once_no_worker_has_routes_to_it(home: House) -> None:
    behind = asyncio.Event()
    home.mirror.caught_up = behind.wait
    other = EngineSpec(name="b", runtime="external", url="http://b:80", slots=4)
    home.load((other,))
    home.mirror.engine_draining("a")
    drained = asyncio.create_task(home.mirror.drained("a", OLD))
    await asyncio.sleep(0)
    home.settle()
    last = home.workers[0].attempt()  # it does not know of the new configuration yet
    for worker in home.workers:
        worker.load((other,))
    home.settle()
    behind.set()
    await asyncio.sleep(0)
    home.settle()
    assert not drained.done()
    last.close(SUCCESS)
    home.settle()
    await asyncio.wait_for(drained, 60.0)


async def test_whoever_no_longer_waits_is_forgotten(home: House) -> None:
    attempt = home.workers[0].attempt()
    drained = asyncio.create_task(home.mirror.drained("a", OLD))
    await asyncio.sleep(0)
    home.settle()
    drained.cancel()
    await asyncio.wait([drained])
    attempt.close(SUCCESS)
    home.settle()
    assert not home.mirror._drains


# --- replacing an engine's process


async def test_a_shift_moves_its_share_in_every_worker_and_adds_up_what_happens_there(home: House) -> None:
    shift = home.mirror.shift("a", NEW, 4, 2)
    shift.move(1.0)
    home.settle()
    home.workers[0].attempt().close(FAILURE)
    home.workers[1].attempt().close(FAILURE)
    home.settle()
    assert (shift.requests, shift.failures, shift.over.done) == (2, 2, False)
    home.kill(home.workers[1])
    late = home.start()
    home.settle()
    assert one_of(late).address == NEW
    home.workers[0].attempt().close(FAILURE)
    home.settle()
    assert (shift.failures, shift.over.done) == (3, True)
    shift.end()
    home.settle()
    assert {one_of(worker).address for worker in home.live} == {OLD}
    assert home.endpoint().shift is None


async def test_a_process_that_is_promoted_serves_everywhere_and_the_old_one_finishes(home: House) -> None:
    shift = home.mirror.shift("a", NEW, 4, 0)
    shift.move(0.5)
    home.settle()
    old = home.workers[0].attempt()
    assert isinstance(old.client, Client) and old.client.address == OLD
    home.mirror.engine_ready("a", NEW, 4)
    shift.end()
    drained = asyncio.create_task(home.mirror.drained("a", OLD))
    await asyncio.sleep(0)
    home.settle()
    assert {one_of(worker).address for worker in home.workers} == {NEW}
    assert not drained.done()
    old.close(SUCCESS)
    home.settle()
    await asyncio.wait_for(drained, 60.0)
    assert home.states() == ["ready"] * 3
    assert len([c for c in home.workers[0].clients if c.address == NEW]) == 1


async def test_no_request_fails_while_processes_are_replaced_and_workers_die(home: House) -> None:
    for round in range(10):
        address = f"unix:/{round}.sock"
        shift = home.mirror.shift("a", address, 4, 0)
        for share in (0.1, 0.5, 1.0):
            shift.move(share)
            if share == 0.5 and round % 2:
                home.kill(home.live[0])
                home.start()
            for worker in home.live:
                home.serve_one(worker)
        home.mirror.engine_ready("a", address, 4)
        shift.end()
        for worker in home.live:
            home.serve_one(worker)
    assert sum(home.slots()) == 4
    assert not home.mirror._shifts


async def test_a_worker_that_missed_something_is_set_right_by_the_whole_state(home: House) -> None:
    worker = home.workers[0]
    shift = home.mirror.shift("a", NEW, 4, 0)
    shift.move(1.0)
    home.settle()
    home.mirror.drain("a")
    home.workers[1].fail(0, FAILURE)
    worker.down.waiting.clear()
    shift.end()
    home.mirror.engine_ready("a", "unix:/third.sock", 4)
    home.mirror.force("a", "closed")
    worker.down.waiting.clear()  # lost
    home.mirror.resume("a")
    worker.down.waiting.clear()
    home.mirror.heard(worker.name, m.RouterActivated())
    home.settle()
    assert home.states() == ["ready"] * 3
    assert worker.endpoint().breaker.forced == "closed" and worker.endpoint().shift is None
    assert one_of(worker).address == "unix:/third.sock"


# --- views


async def test_views_add_up_what_the_workers_have(house: House) -> None:
    for worker in house.workers:
        worker.attempt()
        worker.attempt()
    house.workers[0].wait()
    house.workers[1].wait()
    house.advance(0.3)
    seen = house.mirror.endpoints()[0]
    assert (seen["in_flight"], seen["slots"], seen["limit"]) == (4, 4, 4)
    assert house.mirror.queued("m") == 2
    house.workers[1].registry.shedding = 2
    house.advance(0.3)
    assert house.mirror.shedding == 2
    house.kill(house.workers[1])
    house.advance(0.3)
    assert (house.mirror.endpoints()[0]["in_flight"], house.mirror.shedding, house.mirror.queued("m")) == (3, 0, 0)


async def test_what_is_under_way_at_a_drained_endpoint_is_known_at_once(house: House) -> None:
    attempt = house.workers[0].attempt()
    house.mirror.drain("a")
    house.settle()
    assert house.mirror.endpoints()[0]["in_flight"] == 1
    attempt.close(SUCCESS)
    house.advance(0.3)
    assert house.mirror.endpoints()[0]["in_flight"] == 0


async def test_a_changed_configuration_reaches_all_with_its_slots(house: House) -> None:
    more = (*house.engines, EngineSpec(name="b", runtime="external", url="http://b:80", slots=6))
    house.reload(more)
    assert sum(house.slots("b")) == 6
    house.reload((EngineSpec(name="b", runtime="external", url="http://b:80", slots=2),))
    assert sum(house.slots("b")) == 2
    assert house.mirror._slots.engines == {"b"}
    assert [view["name"] for view in house.mirror.endpoints()] == ["b"]


async def test_what_a_worker_is_told_of_everything_is_answered_at_once_and_touches_only_what_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(1, 6)
    (worker,) = house.workers
    house.registry.force("b", "open")
    worker.registry.find("c").breaker.failures = 2  # type: ignore[union-attr]
    judged: list[str] = []
    monkeypatch.setattr("gateway.routing.follower.adopt", lambda endpoint, *_, **__: judged.append(endpoint.name) or True)
    house.mirror._send_state(worker.name)
    worker.up.waiting.clear()
    while worker.down.waiting:
        worker.follower.apply(worker.down.take())
    assert judged == ["c"] and worker.registry.find("b").breaker.forced == "open"  # type: ignore[union-attr]
    uses = [message for message in [worker.up.take() for _ in range(len(worker.up.waiting))] if isinstance(message, m.SlotsUsed)]
    assert [sorted(use.engine for use in message.uses) for message in uses] == [["a", "b", "c", "d", "e", "f"]]
