"""The control process's side of limits over several workers, in a simulated gateway."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.clock import FakeClock
from gateway.core.specs import LimitSpec, RateSpec
from gateway.core.types import Usage
from gateway.limits.bucket import SECOND
from gateway.limits.lease_book import RECALL, LeaseBook
from gateway.limits.lease_messages import LeaseCall, Returned
from gateway.limits.share import Share
from tests.fakes.leases import Try, Worker, World

ONE = LimitSpec(name="l", per="global", requests=RateSpec(rate=1, per=3600.0, burst=40))


def hammer(world: World, seconds: float, every: float = 0.001, workers: int | None = None) -> list[Try]:
    """Each worker has a request in every step, for so long."""
    tries: list[Try] = []
    end = world.clock.monotonic() + seconds
    while world.clock.monotonic() < end:
        tries += [worker.ask("a") for worker in list(world.workers.values())[:workers]]
        world.run(every)
    world.run(0.1)
    return tries


def admitted(tries: list[Try]) -> int:
    return sum(one.reservation is not None for one in tries)


@pytest.mark.parametrize(("rate", "burst"), [(100, 50), (500, 10), (400, 400), (20, 40), (10, 1)])
@pytest.mark.parametrize("workers", [1, 4])
def test_nearly_all_of_a_limit_is_used_and_every_worker_gets_its_part(rate: float, burst: float, workers: int) -> None:
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=rate, burst=burst))], workers)
    tries = hammer(world, 2.5, 0.001)
    assert 0.98 * (burst + 2.5 * rate) - 1 <= admitted(tries) <= burst + 2.6 * rate
    for worker in world.workers.values():
        assert admitted([one for one in tries if one.worker is worker]) >= 0.6 * admitted(tries) / workers - 4


def test_a_burst_after_idleness_is_the_burst_and_not_one_for_each_worker() -> None:
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=100, burst=50))], 4)
    for _ in range(3):
        tries = [worker.ask("a") for _ in range(30) for worker in world.workers.values()]
        world.run(0.05)
        assert admitted(tries) == 50
        world.run(10.0)


@pytest.mark.parametrize("limits", [{"requests": RateSpec(rate=200, burst=20)}, {"concurrent": 8}])
def test_a_busy_worker_does_not_starve_another(limits: dict[str, Any]) -> None:
    world = World([LimitSpec(name="l", per="global", **limits)], 2)
    busy, calm = world.workers.values()
    tries = []
    for step in range(1000):
        tries += [busy.ask("a") for _ in range(10)] + [calm.ask("a")]
        world.run(0.001)
        for one in world.admitted if step % 10 == 9 else ():
            if not one.settled:
                one.settle(Usage())
    of_busy, of_calm = ([one for one in tries if one.worker is worker] for worker in (busy, calm))
    assert admitted(of_calm) / len(of_calm) >= 0.2 * admitted(of_busy) / len(of_busy) > 0


def test_a_worker_that_is_alone_busy_gets_the_whole_limit_and_seldom_asks() -> None:
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=1000, burst=1000), concurrent=900)], 4)
    tries = hammer(world, 2.0, 0.001, workers=1)
    assert admitted(tries) == 900 and {one.error.code for one in tries if one.error} == {"concurrency_exceeded"}
    for one in tries:
        if one.reservation is not None:
            one.settle(Usage())
    world.run(2.0)
    before = world.messages
    tries = []
    for _ in range(1000):
        tries.append(next(iter(world.workers.values())).ask("a"))
        world.run(0.001)
        if tries[-1].reservation is not None:
            tries[-1].settle(Usage())
    assert admitted(tries) >= 999 and world.messages - before < 100


def test_nobody_is_refused_while_another_worker_holds_what_is_missing() -> None:
    world = World([ONE], 4)
    tries = hammer(world, 0.05, 0.01, workers=1)
    first, second, *_ = world.workers.values()
    for _ in range(40 - admitted(tries) - 1):
        tries.append(second.ask("a"))
        world.run(0.01)
    assert admitted(tries) == 39 and all(one.reservation is not None for one in tries)
    last = first.ask("a")
    world.run(0.05)
    assert last.reservation is not None
    refused = second.ask("a")
    world.run(0.05)
    assert refused.error is not None and refused.error.retry_after is not None and refused.error.retry_after > 3500


def test_slots_move_to_the_worker_that_needs_them() -> None:
    world = World([LimitSpec(name="l", per="global", concurrent=4)], 4)
    for _ in range(3):
        for worker in world.workers.values():
            held = [worker.ask("a") for _ in range(4)]
            world.run(0.1)
            assert admitted(held) == 4
            other = next(one for one in world.workers.values() if one is not worker).ask("a")
            world.run(0.1)
            assert other.error is not None and other.error.code == "concurrency_exceeded"
            for one in held:
                one.settle(Usage())
            world.run(0.01)


def test_two_requests_that_hold_what_the_other_needs_do_not_refuse_each_other() -> None:
    """Each worker has what the other's request is short of, and its own request with it."""
    limits = [
        LimitSpec(name="a", per="global", requests=RateSpec(rate=1, per=3600.0, burst=1)),
        LimitSpec(name="b", per="model", requests=RateSpec(rate=1, per=3600.0, burst=100)),
    ]
    world = World(limits, 2)
    tries = [worker.ask("x") for worker in world.workers.values()]
    world.run(0.2)
    assert admitted(tries) == 1


def test_a_worker_that_does_not_answer_costs_others_one_short_wait() -> None:
    world = World([LimitSpec(name="l", per="global", concurrent=2)], 2)
    stuck, other = world.workers.values()
    held = [stuck.ask("a"), stuck.ask("a")]
    world.run(0.1)
    for one in held:
        one.settle(Usage())
    stuck.stopped = True
    first = other.ask("a")
    world.run(RECALL / SECOND / 2)
    assert first.pending
    world.run(RECALL / SECOND)
    assert first.error is not None
    world.run(0.01)
    second = other.ask("a")
    world.run(0.01)
    assert second.error is not None, "it is not waited for again"
    stuck.go_on()
    world.run(0.1)
    third = other.ask("a")
    world.run(0.05)
    assert third.reservation is not None


@pytest.mark.parametrize("first", ["worker", "control"])
def test_a_pause_of_the_whole_gateway_refuses_nothing_that_others_hold_unused(first: str) -> None:
    """Wherever the pause finds the recall on its way."""
    recalling = 0
    for seed in range(30):
        world = World([LimitSpec(name="l", per="global", concurrent=2)], 2, seed=seed)
        holder, other = world.workers.values()
        held = [holder.ask("a"), holder.ask("a")]
        world.run(0.1)
        for one in held:
            one.settle(Usage())
        waiting = other.ask("a")
        world.run(0.001)
        recalling += world.book.waiting
        world.pause(13.0, first)
        world.run(0.1)
        assert waiting.reservation is not None
    assert recalling >= 5


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("first", ["worker", "control"])
def test_no_pause_hands_anything_out_twice(first: str, alone: bool) -> None:
    """What a worker held when it, or the control process, stood still: all that is admitted fits the rate."""
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=10, per=1.0, burst=20))], 2)
    began = world.clock.monotonic()
    tries = hammer(world, 0.5, 0.005)
    world.pause(13.0, first, alone)
    tries += hammer(world, 2.0, 0.005)
    after = [one for one in tries if one.reservation is not None and one.at > (began + 13.0) * SECOND]
    assert 0 < len(after) <= 20 + 10 * 2.7
    assert admitted(tries) <= 20 + 10 * (world.clock.monotonic() - began)


def test_a_dead_worker_leaves_its_slots_and_no_rate() -> None:
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=1, per=3600.0, burst=40), concurrent=3)], 2)
    first, second = world.workers.values()
    held = [first.ask("a") for _ in range(3)]
    world.run(0.1)
    assert admitted(held) == 3
    refused = second.ask("a")
    world.run(0.1)
    assert refused.error is not None
    world.kill(first)
    world.run(0.1)
    tries = hammer(world, 0.5, 0.01)
    assert admitted(tries) == 3
    (view,) = world.book.views()
    assert view.left["requests"] <= 34 and view.slots == 3


def test_what_is_seen_of_a_bucket() -> None:
    world = World([ONE], 2)
    tries = hammer(world, 0.1, 0.01, workers=1)
    name = next(iter(world.workers))
    view = world.book.view(ONE, ())
    assert view is not None
    (held,) = view.held
    assert held.worker == name and held.amounts["requests"] >= 1
    most = 40 - admitted(tries) + held.amounts["requests"]
    assert 40 - admitted(tries) <= view.left["requests"] <= most, "what is spent there is not known yet"
    assert "tokens" not in view.left and view.limit.name == "l" and view.key == ()
    assert world.book.view(ONE, ("other",)) is None
    world.run(3 * 3600.0 * 40)
    assert not list(world.book.views()) or next(world.book.views()).held == ()


def test_a_new_image_of_the_control_process_goes_on_where_the_old_one_ended() -> None:
    world = World([LimitSpec(name="l", per="global", requests=RateSpec(rate=1, per=3600.0, burst=40), concurrent=5)], 2)
    tries = []
    for _ in range(19):
        tries.append(next(iter(world.workers.values())).ask("a"))
        world.run(0.01)
        tries[-1].settle(Usage())
    held = [worker.ask("a") for worker in world.workers.values()]
    before = world.book.view(world.limits[0], ())
    world.replace_control()
    assert world.book.view(world.limits[0], ()) == before
    world.run(0.1)
    assert admitted(held) == 2
    more = []
    for _ in range(40):
        for worker in world.workers.values():
            one = worker.ask("a")
            world.run(0.1)
            more.append(one)
            if one.reservation is not None:
                one.settle(Usage())
    assert admitted(more) == 40 - 19 - 2


def test_a_reload_keeps_what_did_not_change() -> None:
    same, other = ONE, LimitSpec(name="m", per="global", requests=RateSpec(rate=1, per=3600.0, burst=5))
    world = World([same, other], 2)
    assert admitted(hammer(world, 0.1, 0.01)) == 5
    world.reload([same, LimitSpec(name="m", per="global", requests=RateSpec(rate=1, per=3600.0, burst=50))])
    assert admitted(hammer(world, 1.0, 0.01)) == 35


def test_many_keys_are_forgotten_on_both_sides() -> None:
    limit = LimitSpec(name="l", requests=RateSpec(rate=100, burst=10), concurrent=4)
    world = World([limit], 2, capacity=200)
    for number in range(4000):
        for worker in world.workers.values():
            worker.ask(f"k{number}")
        world.run(0.01)
        for one in world.admitted:
            one.settle(Usage())
        world.admitted.clear()
        world.callers.clear()
        assert len(world.book) <= 600
        for worker in world.workers.values():
            assert len(worker.shares.registry) <= 600
    world.run(5.0)
    assert not world.book._listed and world.book.waiting == 0
    for known in world.book._workers.values():
        assert not known.accounts and len(known.limits) == 1


def test_limits_that_come_and_go_leave_nothing() -> None:
    world = World([ONE], 1, capacity=50)
    (worker,) = world.workers.values()
    for number in range(300):
        world.reload([LimitSpec(name=f"l{number}", requests=RateSpec(rate=100 + number, burst=10))])
        for who in "abcdef":
            worker.ask(who)
        world.run(0.05)
        for one in world.admitted:
            one.settle(Usage())
        world.admitted.clear()
    assert len(worker.shares._numbers) <= 100
    assert all(len(known.limits) <= 100 for known in world.book._workers.values())
    assert len(world.book.registry._shapes) <= 150


def test_words_of_a_worker_that_is_gone_count_for_nothing() -> None:
    sent: list[object] = []
    book = LeaseBook(lambda worker, message: sent.append(message), clock=FakeClock())
    book.heard("nobody", LeaseCall(limits=[(1, ONE)], returned=[Returned(1, (), slots=5)]))
    book.gone("nobody")
    assert not sent and len(book) == 0


TWENTY = LimitSpec(name="l", per="global", requests=RateSpec(rate=20, burst=16))


def talk_until_something_is_held(world: World, worker: Worker, least: int) -> Share:
    """Asks again and again, one after the other."""
    while True:
        worker.ask("a")
        world.run(0.005)
        ((_, share), *_) = worker.shares.registry.all()
        assert isinstance(share, Share)
        if share.amounts[0] >= least:
            return share


def test_what_is_handed_out_and_what_refilled_are_never_more_than_the_burst() -> None:
    world = World([TWENTY], 2)
    holder, other = world.workers.values()
    share = talk_until_something_is_held(world, holder, 2)
    world.run(0.6)
    held = share.amounts[0]
    assert held >= 2
    at_once = [other.ask("a") for _ in range(30)] + [holder.ask("a") for _ in range(held)]
    assert all(one.reservation is not None for one in at_once[30:])
    world.run(0.02)
    assert 16 - held <= admitted(at_once) <= 16


def test_a_share_whose_lease_is_over_is_not_used() -> None:
    """Its worker was stopped meanwhile, and does not know yet that the others have got it."""
    world = World([TWENTY], 2)
    holder, other = world.workers.values()
    share = talk_until_something_is_held(world, holder, 2)
    holder.stopped = True
    world.run(3.0)
    assert share.amounts[0] >= 2
    tries = [other.ask("a") for _ in range(16)]
    world.run(0.01)
    assert admitted(tries) == 16
    late = holder.ask("a")
    assert late.reservation is None
    holder.go_on()
    world.run(0.03)
    assert late.error is not None


def test_what_is_left_of_a_lease_that_ended_before_the_next_one_began_is_not_used() -> None:
    """A request brings part of a share, and the control process stands still until the lease of the rest is over."""
    slow = LimitSpec(name="m", per="model", requests=RateSpec(rate=1, per=60.0, burst=100))
    world = World([TWENTY, slow], 1)
    (worker,) = world.workers.values()
    share = talk_until_something_is_held(world, worker, 3)
    one = worker.ask("a", model="another")
    assert one.pending and share.amounts[0] >= 2
    world.control.stopped = True
    world.run(0.0)
    worker.stopped = True
    world.run(1.5)
    world.control.go_on()
    world.run(0.01)
    worker.missed.reverse()  # it reads the answer before its timers are called
    worker.go_on()
    assert one.reservation is not None
    view = world.book.view(TWENTY, ())
    assert view is not None
    assert share.amounts[0] <= sum(held.amounts["requests"] for held in view.held)
