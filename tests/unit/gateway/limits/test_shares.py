"""What a worker holds, and its conversation with the control process: one message a turn, deadlines, nothing kept for nobody."""

from __future__ import annotations

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded
from gateway.core.messages import Message
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.types import Usage
from gateway.core.waiting import Driver, Signal
from gateway.limits.lease_messages import LeaseCall, LeaseRecall, LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.share import Share
from gateway.limits.shares import MAX_WAITING, WAIT, Shares
from policies.limits import LimitRules, estimate
from tests.fakes.leases import Try, Worker, World, caller, request

BOTH = LimitSpec(name="l", requests=RateSpec(rate=10, burst=20), tokens=RateSpec(rate=100, burst=1000), concurrent=10)


def served(world: World, worker: Worker, who: str = "a", tokens: int = 0, completion: int = 0) -> Try:
    one = worker.ask(who, tokens, completion)
    world.run(0.01)
    assert one.reservation is not None
    return one


def with_a_share(world: World, worker: Worker) -> None:
    """The worker is granted some requests ahead."""
    while not worker.shares.registry.all() or share_of(worker).amounts[0] < 3:
        served(world, worker).settle(Usage())


def share_of(worker: Worker) -> Share:
    ((_, share),) = worker.shares.registry.all()
    assert isinstance(share, Share)
    return share


def one_worker(*limits: LimitSpec) -> tuple[World, Worker]:
    world = World(limits or (BOTH,), 1)
    return world, next(iter(world.workers.values()))


def test_what_is_asked_in_one_turn_goes_in_one_message() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=100)))
    tries = [worker.ask(who) for who in "abcdefgh"]
    world.run(0.01)
    assert world.messages == 2 and all(one.reservation is not None for one in tries)


def test_with_a_share_in_hand_nothing_is_said() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=100, burst=1000)))
    with_a_share(world, worker)
    before = world.messages
    one = worker.ask("a")
    assert one.reservation is not None
    one.settle(Usage())
    assert world.messages == before


def test_an_unused_share_and_unused_slots_go_back() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=100, burst=1000), concurrent=40))
    held = [served(world, worker) for _ in range(20)]
    assert share_of(worker).slots >= 20
    with_a_share(world, worker)
    for one in held:
        one.settle(Usage())
    world.run(3.0)
    share = share_of(worker)
    assert (share.amounts[0], share.slots, share.listed) == (0, 0, False)
    assert world.book.view(world.limits[0], ("team", "api_key", "a")) is None or world.book.views()
    assert all(view.held == () and view.slots == 0 for view in world.book.views())


def test_tokens_that_were_not_used_come_back_and_excess_is_charged_whoever_decided() -> None:
    world, worker = one_worker(LimitSpec(name="l", tokens=RateSpec(rate=1, per=1000.0, burst=10_000)))
    used = 0
    for _ in range(60):
        for estimate_, actual in ((300, 20), (10, 35)):
            served(world, worker, "a", estimate_).settle(Usage(actual, 0))
            used += actual
    world.run(3.0)
    (view,) = world.book.views()
    assert view.left["tokens"] == pytest.approx(10_000 - used, abs=1)


def test_what_was_not_served_costs_nothing_whoever_decided() -> None:
    world, worker = one_worker(
        LimitSpec(name="l", requests=RateSpec(rate=1, per=1000.0, burst=100), tokens=RateSpec(rate=1, per=1000.0, burst=10_000))
    )
    for _ in range(60):
        served(world, worker, "a", 50).settle(None)
    world.run(3.0)
    assert all(view.left == {"requests": 100, "tokens": 10_000} for view in world.book.views())


def test_a_refusal_is_remembered_for_a_moment() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=1, per=60.0, burst=1)))
    served(world, worker)
    refused = worker.ask("a")
    world.run(0.01)
    assert refused.error is not None and refused.error.code == "rate_limit_exceeded"
    before = world.messages
    for _ in range(100):
        one = worker.ask("a")
        assert one.error is not None and one.error.retry_after == pytest.approx(60.0, abs=0.1)
        assert dict(one.error.headers)["x-ratelimit-remaining-requests"] == "0"
    world.run(0.001)
    assert world.messages == before
    world.run(0.03)
    assert worker.ask("a").pending, "others may have given something back: it asks again"


def test_what_comes_back_here_ends_the_memory_of_a_refusal() -> None:
    world, worker = one_worker(LimitSpec(name="l", concurrent=1))
    held = served(world, worker)
    refused = worker.ask("a")
    world.run(0.01)
    assert refused.error is not None
    held.settle(Usage())
    one = worker.ask("a")
    world.run(0.01)
    assert one.reservation is not None


def test_the_control_process_is_away_for_a_while() -> None:
    """As when it is replaced: requests wait for it."""
    world, worker = one_worker()
    world.control.stopped = True
    waiting = [worker.ask(who) for who in "abc"]
    world.run(2.0)
    assert all(one.pending for one in waiting)
    world.control.go_on()
    world.run(0.01)
    assert all(one.reservation is not None for one in waiting)


def test_a_control_process_that_is_replaced_slowly_refuses_nothing() -> None:
    world, worker = one_worker()
    worker.shares.wait_longer(4 * WAIT)
    world.control.stopped = True
    waiting = worker.ask("a")
    world.run(3 * WAIT)
    later = worker.ask("b")
    assert waiting.pending and later.pending
    world.control.go_on()
    world.run(0.1)
    assert waiting.reservation is not None and later.reservation is not None
    world.control.stopped = True
    hung = worker.ask("c")
    world.run(2 * WAIT)
    assert isinstance(hung.error, Overloaded), "its time is over"


def test_the_control_process_hangs() -> None:
    """The first requests fail after the deadline, others at once, and all goes well again when it answers."""
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=1, per=1000.0, burst=9), concurrent=5))
    world.control.stopped = True
    first = worker.ask("a")
    world.run(WAIT + 0.1)
    assert isinstance(first.error, Overloaded) and (first.error.status, first.error.code) == (503, "limits_unavailable")
    probe = worker.ask("b")
    second = worker.ask("a")
    assert probe.pending and isinstance(second.error, Overloaded)
    world.control.go_on()
    world.run(0.1)
    assert worker.shares.waiting == 0
    held = [served(world, worker) for _ in range(5)]
    for one in held:
        one.settle(Usage())
    for _ in range(4):
        served(world, worker).settle(Usage())
    refused = worker.ask("a")
    world.run(0.01)
    assert refused.error is not None, "what was admitted too late has cost nothing, and the rest what it costs"


@pytest.mark.parametrize("first", ["worker", "control"])
def test_a_pause_of_the_whole_gateway_refuses_nothing(first: str) -> None:
    world, worker = one_worker()
    world.run(1.0)
    waiting = worker.ask("a")
    world.pause(13.0, first)
    world.run(0.1)
    assert waiting.reservation is not None
    world.control.stopped = True
    hung = worker.ask("b")
    world.run(13.0 + WAIT)
    assert isinstance(hung.error, Overloaded), "who really hangs is not waited for"


def test_the_control_process_is_gone() -> None:
    _, worker = one_worker()
    waiting = worker.ask("a")
    worker.shares.lost()
    late = worker.ask("a")
    assert isinstance(waiting.error, Overloaded) and isinstance(late.error, Overloaded)


def test_a_client_that_leaves_while_its_request_waits_holds_nothing() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=1, per=1000.0, burst=1), concurrent=1))

    async def wait() -> None:
        await worker.limiter.reserve(caller("a"), request())  # type: ignore[misc]

    ends: list[BaseException | None] = []
    driver = Driver(wait(), ends.append)
    driver.start()
    driver.cancel(ConnectionError())
    assert isinstance(ends[0], ConnectionError)
    world.run(0.05)
    served(world, worker)


def test_the_number_of_waiting_requests_is_bounded() -> None:
    world, worker = one_worker()
    world.control.stopped = True
    for _ in range(MAX_WAITING):
        assert worker.ask("a").pending
    assert isinstance(worker.ask("a").error, Overloaded)
    world.control.go_on()
    world.run(0.1)
    assert worker.shares.waiting == 0


def test_a_recall_of_what_is_not_held_is_answered() -> None:
    sent: list[Message] = []
    actions: list[object] = []
    shares = Shares(sent.append, actions.append, lambda seconds, action: None, clock=FakeClock())
    shares.recalled(LeaseRecall([(1, ("a",))]))
    actions[0]()  # type: ignore[operator]
    (call,) = sent
    assert isinstance(call, LeaseCall) and call.returned[0].recalled
    shares.heard(LeaseReply())


def test_an_answer_to_a_question_that_was_lost_is_not_waited_for_forever() -> None:
    """It blocks nothing for good."""
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=100)))
    world.workers.clear()  # so the answer goes nowhere
    lost = worker.ask("a")
    world.run(0.1)
    world.workers[worker.name] = worker
    world.run(WAIT)
    assert isinstance(lost.error, Overloaded)
    served(world, worker)
    world.run(2 * WAIT)
    assert worker.shares.waiting == 0


def test_headers_of_a_lone_worker_are_those_of_the_bucket() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=1, per=1000.0, burst=100)))
    for left in range(99, 0, -1):
        one = served(world, worker)
        assert b"x-ratelimit-remaining-requests: %d\r\n" % left in one.reservation.headers
        one.settle(Usage())


def test_the_limiter_is_a_plain_call_when_the_share_suffices() -> None:
    world, worker = one_worker(LimitSpec(name="l", requests=RateSpec(rate=100, burst=1000)))
    limiter = LeasedLimiter(LimitRules(world.limits), worker.shares, estimate=estimate)
    with_a_share(world, worker)
    assert not isinstance(limiter.reserve(world.callers["a"], request()), Signal)
