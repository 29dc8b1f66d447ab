"""An engine's slots over several workers: never more than there are, for whoever needs them, however late the messages are."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import EngineSpec
from gateway.routing.mirror import Mirror
from gateway.routing.mirror_messages import SlotsHeld
from gateway.routing.router import PoolAttempt, Waiting
from gateway.routing.slots import LENT_SECONDS, Given, Ledger, Want, plan
from tests.unit.gateway.routing.fleet import SUCCESS, sidecar
from tests.unit.gateway.routing.workers import House, Worker

WANTS = st.builds(
    Want,
    in_flight=st.integers(0, 20),
    waiting=st.integers(0, 50),
    slots=st.integers(0, 20),
    lent=st.booleans(),
    waited=st.floats(0, 100),
    recent=st.integers(0, 50),
)


@given(st.integers(1, 64), st.lists(WANTS, min_size=1, max_size=8))
def test_a_plan_gives_out_every_slot_fairly(total: int, wants: list[Want]) -> None:
    named = {str(number): want for number, want in enumerate(wants)}
    shares = plan(total, named)
    assert sum(shares.values()) == total and min(shares.values()) >= 0
    wanting = [name for name, want in named.items() if want.total]
    if total >= len(wanting):
        assert all(shares[name] for name in wanting), "each that wants some gets one"
    else:
        assert sorted(shares[name] for name in wanting) == [0] * (len(wanting) - total) + [1] * total
    for poor in wanting:  # whoever gets less than it wants gets, but for one, as much as any other that wants so much
        if shares[poor] < named[poor].total:
            assert all(shares[rich] <= shares[poor] + 1 for rich in wanting)
    if sum(want.total for want in wants) <= total:
        assert all(shares[name] >= want.total for name, want in named.items())


@pytest.mark.parametrize(
    ("total", "wants", "expected"),
    [
        (8, [(0, 0), (0, 0)], [4, 4]),
        (8, [(4, 6), (0, 0)], [8, 0]),
        (8, [(4, 6), (1, 0)], [7, 1]),
        (8, [(4, 6), (2, 9)], [4, 4]),
        (8, [(1, 0), (1, 0), (6, 9)], [1, 1, 6]),
        (3, [(0, 5), (0, 5)], [1, 2]),
        (1, [(1, 9), (0, 0)], [1, 0]),
    ],
)
def test_slots_go_to_whoever_wants_them(total: int, wants: list[tuple[int, int]], expected: list[int]) -> None:
    named = {str(n): Want(in_flight=i, waiting=w, slots=min(i, total)) for n, (i, w) in enumerate(wants)}
    assert sorted(plan(total, named).values()) == sorted(expected)


def test_what_is_left_goes_to_those_that_wanted_more_a_moment_ago() -> None:
    busy, idle = Want(in_flight=1, slots=4, recent=4), Want(slots=0)
    assert plan(4, {"a": busy, "b": idle}) == {"a": 4, "b": 0}
    assert plan(6, {"a": busy, "b": idle}) == {"a": 5, "b": 1}
    alone, other = Want(in_flight=1, slots=1, recent=1), Want(slots=1)
    assert plan(2, {"a": alone, "b": other}) == plan(2, {"b": other, "a": alone}) == {"a": 1, "b": 1}, "nothing moves without need"
    assert plan(4, {"a": busy, "b": Want(waiting=1)}) == {"a": 3, "b": 1}, "what is wanted now goes first"


def test_a_slot_that_several_want_goes_round() -> None:
    ledger = Ledger(1)
    numbers = {one.worker: one for one in ledger.join(dict.fromkeys("abc"), 0.0)}
    now, held = 0.0, next(iter(numbers))
    served = [held]
    for worker in "abc":
        for one in ledger.used(worker, numbers[worker].number if worker in numbers else 0, 0, 5, now):
            numbers[one.worker] = one
    for _ in range(600):
        now += 0.01
        moved = [*ledger.look(now)]
        while moved:
            one = moved.pop()
            numbers[one.worker] = one
            moved += ledger.used(one.worker, one.number, 0, 5, now)
            if one.slots and one.worker != served[-1]:
                served.append(one.worker)
        assert ledger.held <= 1
    rounds = [served[at : at + 3] for at in range(1, len(served) - 3, 3)]
    assert len(served) >= 6 / (LENT_SECONDS + 0.02) and all(set(one) == set("abc") for one in rounds)


class Pretended:
    """A worker as the ledger sees it: takes requests while it has slots, answers late."""

    def __init__(self) -> None:
        self.inbox: deque[Given] = deque()
        self.outbox: deque[tuple[int, int, int]] = deque()
        self.number = self.slots = self.in_flight = self.waiting = 0

    def step(self) -> None:
        while self.waiting and self.in_flight < self.slots:
            self.waiting -= 1
            self.in_flight += 1

    def say(self) -> None:
        self.outbox.append((self.number, self.in_flight, self.waiting))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_there_are_never_more_requests_than_slots_however_late_messages_are(total: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    ledger, now = Ledger(total), 0.0
    workers: dict[str, Pretended] = {}

    def send(given: list[Given]) -> None:
        for one in given:
            workers[one.worker].inbox.append(one)

    def deliver(worker: str) -> None:
        one = workers[worker]
        if one.inbox and chance.random() < 0.7:
            given = one.inbox.popleft()
            one.number, one.slots = given.number, given.slots
            one.say()
        if one.outbox and chance.random() < 0.7:
            number, in_flight, waiting = one.outbox.popleft()
            send(ledger.used(worker, number, in_flight, waiting, now))

    for number in range(count):
        workers[str(number)] = Pretended()
        send(ledger.join({str(number): None}, now))
    for turn in range(300):
        now += chance.random() * 0.02
        name = chance.choice(list(workers))
        one = workers[name]
        action = chance.random()
        if action < 0.25 and turn < 200:
            one.waiting += chance.randrange(4)
            one.say()
        elif action < 0.5 and one.in_flight:
            one.in_flight -= 1
            one.say()
        elif action < 0.53 and len(workers) > 1:
            del workers[name]
            send(ledger.gone(name, now))
        elif action < 0.56:
            workers[f"w{turn}"] = Pretended()
            send(ledger.join({f"w{turn}": None}, now))
        else:
            send(ledger.look(now))
        if not ledger.look(now) and ledger.settled(now):
            assert not copy.deepcopy(ledger).look(now + chance.random() * 9), "time alone changes nothing"
        for other in list(workers):
            deliver(other)
            workers[other].step()
        assert sum(max(one.in_flight, one.slots) for one in workers.values()) <= total
        assert ledger.held <= total
    for _ in range(3000):  # nobody starves: with requests that end, every waiting one is served
        now += 0.02
        send(ledger.look(now))
        for name, one in workers.items():
            if one.in_flight and chance.random() < 0.5:
                one.in_flight -= 1
                one.say()
            deliver(name)
            one.step()
        if not any(one.waiting or one.in_flight for one in workers.values()):
            return
    raise AssertionError("requests wait for ever")


# --- the same with registries and messages


async def test_of_many_engines_only_those_are_looked_at_where_slots_may_move() -> None:
    house = House(2, tuple(EngineSpec(name=f"e{n}", runtime="external", url=f"http://e{n}:80", slots=4) for n in range(40)))
    house.advance(3.0)
    assert not house.mirror._slots.restless
    attempt = house.workers[0].attempt()
    house.advance(0.6)
    assert house.mirror._slots.restless == 1
    attempt.close(SUCCESS)
    house.advance(4.0)
    assert not house.mirror._slots.restless


@pytest.fixture
async def house() -> House:
    return House(2, slots=8)


async def test_slots_are_shared_evenly_at_rest_and_go_where_requests_are(house: House) -> None:
    assert house.slots() == [4, 4]
    first, second = house.workers
    attempts = [first.attempt() for _ in range(4)]
    more = [first.wait() for _ in range(3)]
    house.advance(0.02)
    assert all(w.value is not None for w in more)
    attempts += [w.value for w in more if w.value is not None]
    house.serve_one(second)
    house.advance(0.3)
    assert sum(house.slots()) == 8
    for attempt in attempts:
        attempt.close(SUCCESS)
    house.advance(1.0)
    for worker in house.workers:
        house.serve_one(worker)


async def test_an_idle_worker_gets_a_slot_from_one_that_has_them_all(house: House) -> None:
    first, second = house.workers
    got = [first.acquire() for _ in range(20)]
    house.settle()
    house.advance(0.3)
    assert house.slots() == [8, 0]
    waiting = second.wait()
    house.advance(0.02)
    assert not waiting.done
    held = [a if isinstance(a, PoolAttempt) else a.value for a in got]
    next(a for a in held if a is not None).close(SUCCESS)
    house.settle()
    assert waiting.value is not None, "the first that is free, as others wait too"


async def test_one_slot_serves_all_workers_in_turn() -> None:
    house = House(3, slots=1)
    queues = {worker.name: [worker.acquire() for _ in range(4)] for worker in house.workers}
    served: list[str] = []
    for _ in range(2000):
        house.advance(0.01)
        busy = [worker for worker in house.workers if worker.endpoint().in_flight]
        assert len(busy) <= 1
        for worker in busy:
            for got in queues[worker.name]:
                attempt = got if isinstance(got, PoolAttempt) else got.value
                if attempt is not None and attempt._open:
                    attempt.close(SUCCESS)
                    served.append(worker.name)
        if len(served) == 12:
            break
    assert sorted(served) == sorted(worker.name for worker in house.workers for _ in range(4))
    assert len(set(served[:9])) == 3, "nobody waits until the others are done"


async def test_a_worker_that_is_starting_has_no_slots_and_keeps_nobody_waiting(house: House) -> None:
    new = house.start(load=False)
    house.advance(0.5)
    assert sum(worker.endpoint().slots for worker in house.workers[:2]) == 8
    house.mirror.engine_draining("a")
    drained = asyncio.create_task(house.mirror.drained("a", "http://a:80"))
    await asyncio.sleep(0)
    while house.workers[0].down.waiting or house.workers[1].down.waiting:
        for worker in house.workers[:2]:
            worker.follower.apply(worker.down.take())
            while worker.up.waiting:
                house.mirror.heard(worker.name, worker.up.take())
    await asyncio.wait_for(drained, 60.0)
    new.load()
    house.advance(0.5)
    assert [worker.endpoint().slots for worker in house.workers] in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


async def test_a_worker_that_leaves_keeps_what_it_uses_and_nothing_in_reserve(house: House) -> None:
    attempt = house.workers[0].attempt()
    house.mirror.leave("1")
    house.settle()
    assert house.slots() == [1, 7] or house.slots() == [0, 7], "until it has said what it uses"
    house.advance(0.5)
    assert house.slots() == [1, 7]
    attempt.close(SUCCESS)
    house.advance(0.5)
    assert house.slots() == [0, 8]
    house.kill(house.workers[0])
    house.settle()
    assert house.slots() == [8]


@pytest.mark.parametrize("engines_first", [True, False])
async def test_a_control_process_that_takes_anothers_place_goes_on_with_what_workers_have(engines_first: bool) -> None:
    house = House(2, slots=4)
    first, second = house.workers
    taken = [first.acquire() for _ in range(4)]
    house.advance(0.1)
    assert house.slots() == [4, 0]
    handed = msgspec.msgpack.decode(msgspec.msgpack.encode(house.mirror.hand_over()), type=list[SlotsHeld])
    after = Mirror(house.registry, house.scheduler)
    house.mirror = after
    if engines_first:
        house.load()
    after.take_over(handed)
    house.load()
    waiting = [second.wait() for _ in range(3)]
    for worker in (second, first):
        worker.up.waiting.clear()
        house.mirror.join(worker.name, worker.down.tell, routes=True)
        house.advance(0.05)
        assert first.endpoint().in_flight + second.endpoint().slots <= 4
    assert not any(w.done for w in waiting)
    for one in taken:
        attempt = one if isinstance(one, PoolAttempt) else one.value
        assert attempt is not None
        attempt.close(SUCCESS)
    house.advance(0.05)
    assert all(w.value is not None for w in waiting)
    house.kill(first)
    house.advance(0.05)
    assert house.slots() == [4]


async def test_the_slots_of_a_worker_that_did_not_live_to_join_are_free_after_a_while() -> None:
    house = House(2, slots=4)
    first, second = house.workers
    handed = house.mirror.hand_over()
    house.mirror = Mirror(house.registry, house.scheduler)
    house.mirror.take_over(handed)
    house.load()
    second.up.waiting.clear()
    house.mirror.join(second.name, second.down.tell, routes=True)
    first.alive = False
    house.advance(9.0)
    assert house.slots() == [2]
    house.advance(2.0)
    assert house.slots() == [4]


async def test_a_process_that_reports_fewer_slots_lowers_what_workers_have() -> None:
    house = House(2, (sidecar(model="m"),))
    house.mirror.engine_ready("a", "unix:/a.sock", 6)
    house.settle()
    assert house.slots() == [3, 3]
    attempts = [house.workers[0].attempt() for _ in range(3)]
    house.endpoint().said_slots = 2
    house.endpoint().count_slots()
    house.mirror._share_out("a")
    house.settle()
    assert sum(house.slots()) == 2
    waiting = house.workers[1].wait()
    house.advance(0.02)
    assert not waiting.done, "three are under way, which is one too many already"
    for attempt in attempts:
        attempt.close(SUCCESS)
    house.advance(0.02)
    assert waiting.value is not None


@pytest.mark.parametrize("seed", range(30))
async def test_over_all_workers_no_endpoint_has_more_requests_than_slots(seed: int) -> None:
    """Requests come and end, engines are replaced, workers die and come, and messages are late."""
    chance = random.Random(seed)
    slots = chance.choice((1, 2, 3, 8))
    house = House(3, (sidecar(model="m", slots=slots),))
    house.mirror.engine_ready("a", "unix:/0.sock", slots)
    house.settle()
    got: list[tuple[Worker, PoolAttempt | Waiting]] = []
    replaced = 0
    for _ in range(600):
        action, worker = chance.random(), chance.choice(house.live)
        if action < 0.4 and worker.endpoint().address is not None:  # it serves once it has the state
            got.append((worker, worker.acquire()))
        elif action < 0.75:
            end_one(got, chance)
        elif action < 0.77 and len(house.live) > 1:
            house.kill(worker)
        elif action < 0.79:
            house.start()
        elif action < 0.8:
            replaced += 1
            shift = house.mirror.shift("a", f"unix:/{replaced}.sock", slots, 0)
            shift.move(chance.random())
            if chance.random() < 0.5:
                house.mirror.engine_ready("a", f"unix:/{replaced}.sock", slots)
            shift.end()
        for _ in range(chance.randrange(3)):
            house.deliver()
            for process in (house, *house.live):
                process.scheduler.run()
        if chance.random() < 0.3:
            house.clock.advance(chance.random() * 0.1)
        assert_fits(house, slots)
    for _ in range(400):
        house.advance(0.05, 0.05)
        assert_fits(house, slots)
        while end_one(got, chance):
            pass
        if not any(not g.done for w, g in got if isinstance(g, Waiting) and w.alive):
            return
    raise AssertionError("requests wait for ever")


def end_one(got: list[tuple[Worker, PoolAttempt | Waiting]], chance: random.Random) -> bool:
    open_ones = [
        attempt
        for worker, one in got
        if worker.alive and (attempt := one if isinstance(one, PoolAttempt) else one.value) is not None and attempt._open
    ]
    if open_ones:
        chance.choice(open_ones).close(SUCCESS)
    return bool(open_ones)


def assert_fits(house: House, slots: int) -> None:
    """No process has more requests under way than slots. Those that a promoted process took while it was second are its own."""
    at: dict[str, int] = {}
    for worker in house.live:
        endpoint = worker.endpoint()
        second = endpoint.shift.in_flight if endpoint.shift is not None else 0
        for address, count in (
            (endpoint.address, endpoint.in_flight - second),
            (endpoint.shift.address if endpoint.shift is not None else None, second),
            *((retired.address, retired.in_flight) for retired in endpoint._retired.values()),
        ):
            if address is not None:
                at[address] = at.get(address, 0) + count
    assert all(count <= slots for count in at.values()), at
