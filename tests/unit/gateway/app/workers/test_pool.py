"""So many workers serve, whatever becomes of each: replaced when they die, hang or cannot be reached; ended in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.workers import pool, states
from gateway.app.workers.channel import Channel
from gateway.app.workers.codec import FeedError
from gateway.app.workers.hub import Worker
from gateway.app.workers.messages import ConfigChanged, Drain, KeyChanged, KeysMissed, Stopped, StopsChanged
from gateway.app.workers.settings import Settings
from gateway.core.errors import GatehouseError
from gateway.core.specs import ConfigSpec, ListenSpec
from tests.unit.gateway.app.workers.fakes import FakeWorker, Farm
from tests.waiting import SECONDS, reached


@pytest.fixture
async def farm() -> AsyncIterator[Farm]:
    made = Farm()
    yield made
    await made.aclose()


async def test_all_workers_start_with_the_state_and_ids_of_their_own(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    assert farm.ids() == ["gw-1", "gw-2"]
    assert [fake.state.worker for fake in farm.made if fake.state is not None] == ["gw-1", "gw-2"]


async def test_an_id_that_a_worker_of_an_earlier_start_still_has_is_left_to_it(farm: Farm) -> None:
    farm.held |= {"gw-1", "gw-3"}
    farm.pool.start()
    await farm.pool.ready()
    assert farm.ids() == ["gw-2", "gw-4"]
    farm.held -= {"gw-1"}
    farm.fake("gw-4").end(-9)
    await reached(lambda: farm.ids() == ["gw-1", "gw-2"])


async def test_a_pause_of_this_process_costs_a_worker_none_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first wait ends 60 s late, so there is another one of as many seconds."""
    times = iter([0.0, 60.0, 60.0, 60.01])
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert not await pool._within(asyncio.Event(), 0.01)
    assert next(times, None) is None


async def test_a_worker_that_dies_is_replaced_at_once_under_its_id(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    farm.fake("gw-1").end(-9)
    await reached(lambda: len(farm.made) == 3 and farm.ids() == ["gw-1", "gw-2"])
    assert farm.gone == ["gw-1"]
    assert farm.fake("gw-1") is farm.made[2]
    assert ("worker_died", "gw-1", "failed") in farm.events
    assert farm.pool.restarts == 1


@pytest.mark.parametrize(
    ("state", "known", "code", "said"),
    [
        ("ready", "", -9, "signal 9, SIGKILL"),
        ("ready", "", -250, "signal 250"),
        ("ready", "", 3, "exit code 3"),
        ("draining", "it closed the feed", -11, "it closed the feed; signal 11, SIGSEGV"),
        ("ready", "it did not answer for 10 s", -9, "it did not answer for 10 s; signal 9, SIGKILL"),
        ("starting", "no such file", 1, "no such file"),
        ("draining", "it closed the feed", 0, "it closed the feed"),
    ],
)
def test_why_a_worker_has_ended_says_how_its_process_did(state: states.State, known: str, code: int, said: str) -> None:
    process: Any = None
    assert pool._why(Worker("gw-1", 1, process, state=state, reason=known), code) == said


async def test_a_killed_worker_whose_feed_ends_before_its_process_is_reaped_has_a_successor_under_its_id(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "REAP_SECONDS", 60.0)
    farm.pool.start()
    await farm.pool.ready()
    killed, before = farm.fake("gw-2"), farm.hub.workers["gw-2"]
    killed.channel.end("the other process is gone")
    await reached(lambda: before.state == "draining")
    killed.end(-9)
    await reached(lambda: len(farm.made) == 3 and farm.ids() == ["gw-1", "gw-2"])
    assert farm.fake("gw-2") is farm.made[2] and ("worker_died", "gw-2", "failed") in farm.events
    assert before.reason == "it closed the feed; signal 9, SIGKILL", "the runbook looks for the signal"


async def test_a_worker_whose_feed_ends_is_replaced_under_another_id_and_ended_when_it_lingers(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "END_SECONDS", 0.05)
    monkeypatch.setattr(pool, "REAP_SECONDS", 0.01)
    farm.pool.start()
    await farm.pool.ready()
    lost = farm.fake("gw-1")
    lost.channel.end("a fault")
    await reached(lambda: farm.ids() == ["gw-2", "gw-3"])
    await reached(lambda: lost.killed)
    await reached(lambda: farm.gone == ["gw-1"])


async def test_a_worker_that_does_not_answer_is_ended_and_replaced(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    silent = farm.fake("gw-2")
    silent.prompt = False
    for _ in range(12):
        await farm.hub.beat()
        await reached(lambda: farm.hub.workers["gw-1"].missed == 0)
    assert silent.killed and not farm.fake("gw-1").killed
    await reached(lambda: farm.ids() == ["gw-1", "gw-2"])


async def test_what_a_worker_says_of_itself_is_kept(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    await farm.hub.beat()
    await reached(lambda: [worker.beat.in_flight for worker in farm.hub.workers.values()] == [3, 3])


async def test_the_start_fails_with_the_reason_of_a_worker(farm: Farm) -> None:
    farm.on_state = lambda fake: fake.fail("no such file")
    farm.pool.start()
    with pytest.raises(GatehouseError, match="no such file"):
        await farm.pool.ready()


async def test_a_process_that_cannot_be_started_is_tried_again(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "FIRST_PAUSE", 0.01)
    farm.refusals = 1
    farm.pool.start()
    await farm.pool.ready()
    assert farm.ids() == ["gw-1", "gw-2"]


async def test_the_start_fails_with_the_reason_where_a_worker_cannot_be_told_its_settings(farm: Farm) -> None:
    async def introduce(channel: Channel) -> None:
        raise FeedError("a SettingsPart is too large for the feed")

    farm.hub.introduce = introduce
    farm.pool.start()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(GatehouseError, match="a worker could not be started: a SettingsPart is too large"):
            await farm.pool.ready()
    assert all(fake.killed for fake in farm.made)


async def test_deaths_in_a_row_make_pauses(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []

    def noted(deaths: int) -> float:
        pauses.append(deaths)
        return 0.0

    monkeypatch.setattr(states, "pause", noted)
    farm.on_state = lambda fake: fake.end(3)
    farm.pool.start()
    await reached(lambda: len(pauses) >= 12)
    assert sorted(pauses[:12]) == sorted([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])


async def test_a_worker_is_replaced_once_its_successor_serves(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    old = farm.fake("gw-1")
    farm.ends_when_drained = False
    waiting: list[FakeWorker] = []
    farm.on_state = waiting.append
    replacing = farm.tasks.spawn(farm.pool.replace("gw-1"), name="replace")
    await reached(lambda: waiting)
    assert old.heard == [] and farm.ids() == ["gw-1", "gw-2"]
    waiting[0].ready()
    await replacing
    await reached(lambda: old.heard == [Drain(0.0, True)])
    assert farm.ids() == ["gw-2", "gw-3"] and farm.ids("draining") == ["gw-1"]
    old.end(0)
    await reached(lambda: farm.gone == ["gw-1"])
    assert ("worker_ended", "gw-1", "ok") in farm.events
    assert len(farm.made) == 3


async def test_a_worker_goes_on_when_its_successor_does_not_start(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    farm.on_state = lambda fake: fake.fail("broken")
    with pytest.raises(GatehouseError, match="broken"):
        await farm.pool.replace("gw-1")
    assert farm.ids() == ["gw-1", "gw-2"] and farm.fake("gw-1").heard == []
    with pytest.raises(GatehouseError, match="no worker named"):
        await farm.pool.replace("gw-9")
    farm.on_state = FakeWorker.ready
    farm.fake("gw-1").end(-9)
    await reached(lambda: farm.ids() == ["gw-1", "gw-2"])


async def test_leaving_tells_all_and_waits_for_their_end(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    farm.ends_when_drained = False
    leaving = farm.tasks.spawn(farm.pool.leave(7.0), name="leave")
    await reached(lambda: all(fake.heard == [Drain(7.0)] for fake in farm.made))
    farm.pool.hurry()
    await reached(lambda: all(fake.heard == [Drain(7.0), Drain()] for fake in farm.made))
    for fake in farm.made:
        assert not leaving.done()
        fake.end(0)
    await leaving
    assert len(farm.made) == 2, "nobody is replaced any more"


async def test_leaving_while_workers_start_lets_them_close_what_they_have_opened(farm: Farm) -> None:
    farm.on_state = lambda fake: None
    farm.listen = ListenSpec(drain_timeout=30.0)
    farm.pool.start()
    await reached(lambda: len(farm.made) == 2 and all(fake.state is not None for fake in farm.made))
    await farm.pool.leave(7.0)
    assert [fake.heard for fake in farm.made] == [[Drain(0.0)], [Drain(0.0)]] and not any(fake.killed for fake in farm.made)
    assert [(event, outcome) for event, _, outcome in farm.events] == [("worker_ended", "ok")] * 2


async def test_leaving_ends_workers_that_are_not_connected_yet_and_no_worker_is_said_to_have_died(farm: Farm) -> None:
    connecting = asyncio.Event()

    async def connect(worker: Worker, sock: socket.socket) -> None:
        sock.close()
        connecting.set()
        await asyncio.Event().wait()

    farm.hub.connect = connect  # type: ignore[method-assign]
    farm.pool.start()
    await reached(lambda: connecting.is_set() and len(farm.made) == 2)
    await farm.pool.leave(0.0)
    assert all(fake.killed for fake in farm.made)
    assert [(event, outcome) for event, _, outcome in farm.events] == [("worker_ended", "ok")] * 2


async def test_a_start_that_is_given_up_ends_the_workers_that_start(farm: Farm) -> None:
    farm.on_state = lambda fake: None
    farm.pool.start()
    await reached(lambda: len(farm.made) == 2 and all(fake.state is not None for fake in farm.made))
    await farm.pool.aclose()
    assert [(event, outcome) for event, _, outcome in farm.events] == [("worker_ended", "ok")] * 2


async def test_leaving_ends_a_worker_that_hangs_in_its_start(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "END_SECONDS", 0.05)
    farm.on_state = lambda fake: None
    farm.ends_when_drained = False
    farm.pool.start()
    await reached(lambda: len(farm.made) == 2 and all(fake.state is not None for fake in farm.made))
    async with asyncio.timeout(60.0):
        await farm.pool.leave(0.0)
    assert all(fake.killed for fake in farm.made)


async def test_leaving_ends_who_is_late(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "END_SECONDS", 0.05)
    farm.pool.start()
    await farm.pool.ready()
    farm.ends_when_drained = False
    await farm.pool.leave(0.0)
    assert all(fake.killed for fake in farm.made)
    assert farm.hub.workers == {}


async def test_a_start_survives_the_death_of_workers_that_another_program_has_started(farm: Farm) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        children = [FakeWorker(farm, pid, theirs.fileno()) for pid in (1, 2)]
        for number, child in enumerate(children, 1):
            worker = farm.hub.workers[f"gw-{number}"] = Worker(f"gw-{number}", number, child, adopted=True)
            worker.move("ready")
            farm.pool.adopt(worker)
        for child in children:
            child.end(-9)
        await reached(lambda: farm.gone == ["gw-1", "gw-2"])
        farm.pool.start()
        await farm.pool.ready()
    assert farm.ids() == ["gw-1", "gw-2"] and not farm.pool.adopted() and len(farm.made) == 2


async def handed_over(farm: Farm, heir: Farm) -> list[FakeWorker]:
    """Gives the workers of one program to the next."""
    before = [(farm.hub.workers[id], farm.fake(id)) for id in farm.ids()]
    await farm.pool.let_go()
    for worker, fake in before:
        assert worker.channel is not None
        worker.channel.hold()
        left = worker.channel.let_go()
        assert left is not None
        adopted = Worker(worker.id, worker.number, fake)
        adopted.move("ready")
        await heir.hub.adopt(adopted, socket.socket(fileno=left[0]), *left[1:])
        heir.pool.adopt(adopted)
    farm.hub.workers.clear()  # as with the exec
    heir.pool.start()
    return [fake for _, fake in before]


async def test_workers_of_the_program_before_are_adopted_and_replaced_one_by_one(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    assert farm.pool.busy() is None
    heir = Farm()
    try:
        first, second = await handed_over(farm, heir)
        await heir.pool.ready()
        assert heir.made == [] and heir.pool.adopted() == ["gw-1", "gw-2"]
        heir.hub.change(ConfigChanged(settings=Settings(ConfigSpec(version=1), {}, 0), version=1))
        heir.hub.change(KeyChanged("k", "revoked"))
        heir.hub.change(StopsChanged("halts", [], ["key/a"]), whole=lambda: Stopped("halts", []))
        await reached(lambda: len(first.heard) == len(second.heard) == 3)
        assert [type(each) for each in first.heard] == [KeysMissed, KeyChanged, Stopped], "it keeps its configuration"
        await heir.pool.replace("gw-1")
        await reached(lambda: heir.ids() == ["gw-2", "gw-3"] and heir.gone == ["gw-1"])
        assert first.heard[-1] == Drain(0.0, True) and heir.pool.adopted() == ["gw-2"]
        second.end(-9)
        await reached(lambda: len(heir.made) == 2 and heir.ids() == ["gw-1", "gw-3"])
        assert heir.pool.adopted() == []
    finally:
        await heir.aclose()


async def test_an_adopted_worker_that_leaves_before_its_turn_is_not_renewed(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REAP_SECONDS", 60.0)  # its successor has not been started yet
    farm.pool.start()
    await farm.pool.ready()
    heir = Farm()
    asked: list[str] = []
    replace = heir.pool.replace

    async def counted(id: str) -> None:
        asked.append(id)
        assert len(asked) < 9, "the loop does not turn any more"
        await replace(id)

    async def failed(reason: str) -> None:
        raise AssertionError(reason)

    heir.pool.replace = counted  # type: ignore[method-assign]
    try:
        _, second = await handed_over(farm, heir)
        await heir.pool.ready()
        left = heir.hub.workers["gw-2"]
        left.grace = 60.0
        second.channel.end("a fault")
        await reached(lambda: left.state == "draining")
        await heir.pool.renew(failed)
        assert asked == ["gw-1"]
        second.end(-9)
        await reached(lambda: len(heir.ids()) == 2 and heir.pool.adopted() == [])
    finally:
        await heir.aclose()


async def test_a_program_whose_workers_do_not_start_lets_those_before_serve_and_the_next_program_come(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    heir = Farm()
    heir.on_state = lambda fake: fake.end(3)
    try:
        _, second = await handed_over(farm, heir)
        second.end(-9)
        await reached(lambda: heir.gone[:1] == ["gw-2"] and heir.made)
        await heir.pool.ready()
        assert heir.pool.adopted() == ["gw-1"]
        await reached(lambda: heir.pool.busy() is None)
        reasons: list[str] = []

        async def failed(reason: str) -> None:
            reasons.append(reason)
            heir.on_state = FakeWorker.ready

        await heir.pool.renew(failed)
        assert len(reasons) == 1
        await reached(lambda: len(heir.ids()) == 2)
    finally:
        await heir.aclose()


async def test_the_last_worker_of_the_program_before_takes_the_gateway_with_it_where_no_other_starts(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    heir = Farm()
    heir.on_state = lambda fake: fake.fail("broken")
    try:
        for fake in await handed_over(farm, heir):
            fake.end(-9)
        await reached(lambda: {"gw-1", "gw-2"} <= set(heir.gone))
        with pytest.raises(GatehouseError, match="did not start: broken"):
            await heir.pool.ready()
    finally:
        await heir.aclose()


async def test_a_worker_that_still_starts_is_ended_with_the_program(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    farm.on_state = lambda fake: None
    farm.fake("gw-1").end(-9)
    await reached(lambda: len(farm.made) == 3 and farm.made[2].state is not None)
    await farm.pool.let_go()
    assert [fake.killed for fake in farm.made] == [False, False, True]
    assert farm.ids() == ["gw-2"] and farm.ids("starting") == [], "nobody else can reap it"
    channel = farm.hub.workers.pop("gw-2").channel  # as with the exec
    assert channel is not None
    await channel.aclose()


async def test_more_adopted_workers_than_places_finish(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    heir = Farm(1)
    try:
        await handed_over(farm, heir)
        await reached(lambda: heir.gone == ["gw-2"])
        assert heir.ids() == ["gw-1"] and heir.made == []
    finally:
        await heir.aclose()


async def test_nothing_is_handed_over_while_a_worker_starts(farm: Farm) -> None:
    farm.on_state = lambda fake: None
    farm.pool.start()
    assert farm.pool.busy() == "a worker is being started or replaced"


async def test_a_worker_that_dies_while_it_is_replaced_has_one_successor(farm: Farm) -> None:
    farm.pool.start()
    await farm.pool.ready()
    farm.on_state = lambda fake: None  # it takes its time
    replacing = farm.tasks.spawn(farm.pool.replace("gw-1"), name="replace")
    await reached(lambda: len(farm.made) == 3 and farm.made[2].state is not None)
    farm.fake("gw-1").end(-9)
    await reached(lambda: farm.gone == ["gw-1"])
    farm.made[2].ready()
    await replacing
    await asyncio.sleep(0)
    assert farm.ids() == ["gw-2", "gw-3"] and len(farm.made) == 3
    farm.on_state = FakeWorker.ready
    farm.fake("gw-3").end(-9)
    await reached(lambda: farm.ids() == ["gw-1", "gw-2"])
