"""Schedules end with the key or the token that made them, by a real store and a clock of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.operator_jobs import scheduling
from gateway.app.operator_jobs.book import JobBook
from gateway.app.operator_jobs.run import Shared
from gateway.app.operator_jobs.scheduling import LOOK_SECONDS, ScheduleCheck, Schedulers
from gateway.app.operator_jobs.work import JobWork
from gateway.core.batches import Creator
from gateway.core.clock import FakeClock
from gateway.core.errors import NotFound
from gateway.core.jobs import Benchmark, ScheduleRecord
from gateway.core.specs.jobs import JobsSpec
from gateway.core.standing import Standing, Stop
from gateway.core.storage import KeySettings
from gateway.core.types import Acting, Login, Peer, Principal
from gateway.identity import keys
from gateway.identity.revocations import Revocations, Row, name_of
from gateway.store.store import Store
from tests.stores import migrated

IDP = "https://idp.example"
ALICE = Creator(id="alice", tenant="acme", kind="oidc", user="alice", logins=((IDP, "t-1", 100.0),))
APP = Creator(id="app", tenant="acme", kind="api_key")
REVOKED = ("token", IDP, "t-1", 0.0, 0.0)


class World:
    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock, self.revocations = store, clock, Revocations()
        self.told: list[tuple[Any, ...]] = []
        self.standing = Standing()
        self.schedulers = Schedulers(store.get_key, lambda: {("acme", "fixed")}, self.revocations, self.standing, clock, store.jobs.deleted)
        self.check = ScheduleCheck(store.jobs, self.schedulers, self.record, clock)

    def record(self, event: str, target: str, detail: dict[str, Any], *, actor: str, outcome: str) -> None:
        self.told.append((event, target, detail, actor, outcome))

    async def schedule(self, name: str, creator: Creator) -> None:
        task = Benchmark(model="a.gguf")
        made = ScheduleRecord(
            name=name, tenant=creator.tenant, cron="0 3 * * *", timezone="UTC", task=task, creator=creator, replica="r1", most=1
        )
        await self.store.jobs.add_schedule(made, lambda now: now + 1e6, 9)

    async def left(self) -> list[str]:
        self.clock.advance(LOOK_SECONDS)
        await self.check.look()
        return [one.name for one in await self.store.jobs.schedules(None)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    now = lambda connection: clock.wall()  # noqa: E731 - one line says it
    store = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, clock=clock, database_clock=now, deadline=30.0)
    await store.start()
    yield World(store, clock)
    await store.aclose()


@pytest.mark.parametrize("how", ["revoked", "deleted", "made anew", "expired", "another's", "user deleted"])
async def test_a_schedule_ends_with_the_key_that_made_it(world: World, how: str) -> None:
    store, expires = world.store, world.clock.wall() + 1000.0 if how == "expired" else None
    mine, user = APP, ""
    if how == "user deleted":
        user, mine = "bob", Creator(id="app", tenant="acme", kind="api_key", user="bob")
        await store.create("users", "bob@acme", {"name": "bob", "tenant": "acme"}, actor="x", tenant="acme")
    settings = KeySettings(models=("*",), expires=expires)
    if user:
        await store.create_own_key("acme", user, settings, actor="x", count=9, id="app")
    else:
        await store.create_key("acme", settings, actor="x", id="app")
    await world.schedule("mine", mine)
    await world.schedule("fixed", Creator(id="fixed", tenant="acme", kind="api_key"))
    await world.schedule("hers", ALICE)
    assert await world.left() == ["fixed", "hers", "mine"] and world.told == []
    if how == "revoked":
        await store.revoke_key("app", actor="x")
    elif how == "user deleted":
        await store.delete("users", "bob@acme", actor="x")
    elif how == "expired":
        world.clock.advance(1000.0)
    else:
        await store.delete_key("app", actor="x")
        if how != "deleted":
            await store.create_key("acme" if how == "made anew" else "globex", settings, actor="x", id="app")
    assert await world.left() == ["fixed", "hers"]
    detail = {"tenant": "acme", "code": "creator_stopped"}
    assert world.told == [("job_unscheduled", "acme/mine", detail, "acme/app", "denied")]
    assert await world.left() == ["fixed", "hers"] and len(world.told) == 1


async def test_a_clock_that_was_ahead_when_the_key_was_made_ends_no_schedule_of_it(world: World) -> None:
    world.clock.step(3600.0)
    key, _ = await world.store.create_key("acme", KeySettings(models=("*",)), actor="x", id="app")
    world.clock.step(-3600.0)
    await world.schedule("mine", msgspec.structs.replace(APP, made=key.created))
    assert await world.left() == ["mine"] and world.told == []


async def test_a_schedule_ends_with_the_token_that_made_it(world: World) -> None:
    await world.schedule("hers", ALICE)
    await world.schedule("fixed", Creator(id="fixed", tenant="acme", kind="api_key"))
    world.revocations.apply({name_of(REVOKED): REVOKED}, ())
    await world.check.look()
    assert [name for _, name, *_ in world.told] == ["acme/hers"]
    assert await world.left() == ["fixed"]


@pytest.mark.parametrize(
    "row",
    [
        ("token", "https://gw.example", "g-1", 0.0, 0.0),
        ("token", IDP, "t-1", 0.0, 0.0),
        ("token", IDP, "b-1", 0.0, 0.0),
        ("subject", IDP, "bot", 60.0, 0.0),
    ],
)
async def test_a_schedule_ends_with_each_token_that_a_gateway_token_comes_from(world: World, row: Row) -> None:
    await world.schedule("theirs", delegated())
    await world.schedule("hers", msgspec.structs.replace(ALICE, logins=((IDP, "t-2", 100.0),)))
    world.revocations.apply({name_of(row): row}, ())
    assert await world.left() == ["hers"]


@pytest.mark.parametrize("user", ["robot", "alice"])
async def test_a_schedule_ends_with_the_user_who_acts(world: World, user: str) -> None:
    await world.store.create("users", f"{user}@acme", {"name": user, "tenant": "acme"}, actor="x", tenant="acme")
    await world.schedule("theirs", delegated())
    assert await world.left() == ["theirs"]
    await world.store.delete("users", f"{user}@acme", actor="x")
    assert await world.left() == []


@pytest.mark.parametrize(("target", "stopped"), [("user/robot@acme", True), ("agent/bot", True), ("user/alice", True), ("user/x", False)])
async def test_a_schedule_rests_while_its_actor_is_stopped(world: World, target: str, stopped: bool) -> None:
    world.standing.replace("suspensions", [Stop(target, "suspended", admin=True)])
    assert world.schedulers.stopped(delegated()) is stopped


def delegated() -> Creator:
    """Of a gateway token by which a bot acts for Alice."""
    acting = (Acting("bot", "robot", IDP, "b-1", 50.0),)
    source = Login(issuer=IDP, token_id="t-1", issued=100.0)
    login = Login("token", issuer="https://gw.example", token_id="g-1", issued=110.0, acting=acting, source=source)
    return Creator.of_batch(Principal("alice", "acme", "gateway_token", user="alice", agent="bot", login=login), Peer("127.0.0.1"), ())


async def test_another_schedule_of_the_name_is_not_dropped(world: World) -> None:
    await world.schedule("hers", ALICE)
    [old] = await world.store.jobs.schedules(None)
    await world.store.jobs.drop_schedule("acme", "hers")
    world.clock.advance(1.0)
    await world.schedule("hers", ALICE)
    with pytest.raises(NotFound, match="There is no schedule 'hers'"):
        await world.store.jobs.drop_schedule("acme", "hers", old.created)
    assert [one.name for one in await world.store.jobs.schedules(None)] == ["hers"]


async def test_of_many_schedules_a_look_asks_for_a_portion_and_for_all_that_are_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "PORTION", 4)
    names = [f"n{number:02}" for number in range(9)]
    for name in names:
        await world.schedule(name, ALICE)
    asked: list[str] = []
    gone = world.schedulers.gone

    async def noted(creator: Creator, since: float) -> bool:
        asked.append(creator.id)
        return await gone(creator, since)

    monkeypatch.setattr(world.schedulers, "gone", noted)
    for _ in range(2):
        counts = []
        for _ in range(3):
            asked.clear()
            await world.left()
            counts.append(len(asked))
        assert counts == [4, 4, 1], "all are looked at, then the first ones again"
    asked.clear()
    await world.check.look()
    assert asked == [], "not before LOOK_SECONDS are over"
    world.revocations.apply({name_of(REVOKED): REVOKED}, ())
    assert await world.left() == names[4:]
    world.clock.advance(1e6)
    await world.check.look()
    assert await world.store.jobs.schedules(None) == [], "none of those that are due makes a job"


@pytest.mark.parametrize(
    ("target", "rests"),
    [("key/app", True), ("tenant/acme", True), ("all", True), ("user/bob@acme", True), ("key/other", False), ("tenant/globex", False)],
)
async def test_a_schedule_rests_while_its_maker_is_stopped(world: World, target: str, rests: bool) -> None:
    library: Any = None
    book = JobBook(JobsSpec(), world.store.jobs, None, library, "r1", lambda *args, **more: None)
    book.stopped = world.schedulers.stopped
    await world.schedule("mine", msgspec.structs.replace(APP, user="bob"))
    world.standing.replace("suspensions", [Stop(target, "suspended", admin=True)])
    world.clock.advance(2e6)
    await book.look()
    jobs, _ = await book.page(None, 9, None)
    assert [job.schedule for job in jobs] == ([] if rests else ["mine"])
    world.standing.replace("suspensions", [])
    world.clock.advance(2e6)  # what it missed is not made up for; the next time counts
    await book.look()
    jobs, _ = await book.page(None, 9, None)
    assert [job.schedule for job in jobs] == ["mine"]


async def test_a_fixed_key_of_the_id_does_not_go_on_with_the_schedule_of_a_stored_one(world: World) -> None:
    await world.schedule("hers", Creator(id="fixed", tenant="acme", kind="api_key", made=1.0))
    assert await world.left() == []


async def test_a_schedule_ends_with_its_user(world: World) -> None:
    for user in ("alice", "bob"):
        await world.store.create("users", f"{user}@acme", {"name": user, "tenant": "acme"}, actor="x", tenant="acme")
    await world.schedule("hers", ALICE)
    await world.store.delete("users", "bob@acme", actor="x")
    assert await world.left() == ["hers"]
    await world.store.delete("users", "alice@acme", actor="x")
    await world.store.create("users", "alice@acme", {"name": "alice", "tenant": "acme"}, actor="x", tenant="acme")
    assert await world.left() == []
    await world.schedule("anew", ALICE)
    assert await world.left() == ["anew"], "of the next one of the name"


async def test_a_job_does_not_begin_while_its_maker_is_stopped(world: World, tmp_path: Path) -> None:
    library: Any = None
    book = JobBook(JobsSpec(), world.store.jobs, None, library, "r1", lambda *args, **more: None)
    book.stopped = world.schedulers.stopped
    shared = Shared(JobsSpec(), world.store.jobs, book, library, None, None, lambda: False, tmp_path / "jobs", world.clock)
    work = JobWork(shared, world.check, "r1", "here", "here:1")
    made = await world.store.jobs.add(book.new(Benchmark(model="a.gguf"), APP), 9)
    world.standing.replace("suspensions", [Stop("key/app", "suspended", admin=True)])
    await work._look()
    found = await book.get(made.id, None)
    assert (found.state, found.attempts, found.holder) == ("queued", 0, "")
    await work.aclose()


async def test_jobs_that_cannot_be_counted_are_not_told_as_none(world: World) -> None:
    """Else each outage of the store would end with an alert about jobs that died long ago."""
    library: Any = None
    book = JobBook(JobsSpec(), world.store.jobs, None, library, "r1", lambda *args, **more: None)

    def told() -> dict[str, float]:
        return {
            sample.labels["state"]: sample.value
            for metric in book.collect()
            if metric.name == "gatehouse_jobs"
            for sample in metric.samples
        }

    assert told() == {}
    await world.store.jobs.add(book.new(Benchmark(model="a.gguf"), APP), 9)
    await book.count()
    assert (told()["queued"], told()["dead"]) == (1.0, 0.0)
    await world.store.aclose()
    await book.count()
    assert told() == {}
