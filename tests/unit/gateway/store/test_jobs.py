"""Jobs and schedules in a real database by a clock of the test: who may take what, what an attempt's end leads to, what schedules make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.operator_jobs.cron import following
from gateway.core.batches import Creator
from gateway.core.errors import AlreadyExists, LeaseLost, NotFound, QuotaExceeded
from gateway.core.jobs import JobError, JobRecord, Quantize, ScheduleRecord
from gateway.store.database import Database, make_engine
from gateway.store.jobs import StoredJobs
from gateway.store.tables import metadata

TASK = Quantize(model="a.gguf", to="b.gguf", type="Q8_0")
CREATOR = Creator(id="root", tenant="acme", kind="api_key")


class Kept(StoredJobs):
    """The jobs, and the clock of their database."""

    clock = 1_000_000.0

    async def one(self, number: int, tenant: str = "acme", **more: Any) -> JobRecord:
        creator = msgspec.structs.replace(CREATOR, tenant=tenant)
        given = {"kind": "quantize", "state": "queued", "task": TASK, "creator": creator, "replica": "r1", "most": 2, **more}
        return await self.add(JobRecord(id=f"job_{number:03}", tenant=tenant, **given), 10)

    async def taken(self, holder: str = "r1:1", replica: str = "r1") -> JobRecord:
        found = await self.take(holder, replica, 15.0, [])
        assert found is not None
        return found

    async def state(self, number: int) -> str:
        return (await self.get(f"job_{number:03}", None)).state


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    engine = make_engine("sqlite", tmp_path, 10.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    database = Database(engine, 10.0)
    made = Kept(database, lambda connection: made.clock)
    yield made
    await database.aclose()


async def test_one_holds_a_job_until_its_lease_is_over_and_then_writes_nothing(kept: Kept) -> None:
    await kept.one(1)
    first = await kept.taken()
    assert (first.state, first.attempts, first.holder) == ("running", 1, "r1:1")
    assert await kept.take("r1:2", "r1", 15.0, []) is None
    kept.clock += 14
    first = await kept.advance(first, 15.0)
    kept.clock += 14
    assert await kept.take("r1:2", "r1", 15.0, []) is None
    kept.clock += 2
    second = await kept.taken("r1:2")
    assert (second.attempts, second.fence) == (2, first.fence + 1)
    for late in (kept.advance(first, 15.0), kept.finish(first, "done"), kept.release(first)):
        with pytest.raises(LeaseLost):
            await late
    assert (await kept.finish(second, "done")).holder == ""
    assert await kept.state(1) == "done"


async def test_a_job_stays_with_the_replica_that_has_its_files(kept: Kept) -> None:
    await kept.one(1)
    await kept.one(2, replica="")
    assert (await kept.taken("r2:1", "r2")).id == "job_002"
    assert await kept.take("r2:1", "r2", 15.0, []) is None
    assert (await kept.taken()).id == "job_001"


async def test_a_cancelled_job_of_a_replica_that_does_not_come_back_is_ended_by_another(kept: Kept) -> None:
    await kept.one(1)
    lost = await kept.taken()
    assert (await kept.cancel("job_001", None)).state == "running"
    assert await kept.take("r2:1", "r2", 15.0, []) is None
    kept.clock += 16
    ended = await kept.taken("r2:1", "r2")
    assert (ended.state, ended.holder) == ("cancelled", "")
    with pytest.raises(LeaseLost):
        await kept.finish(lost, "done")


async def test_an_attempt_that_fails_is_followed_by_another_when_it_is_due(kept: Kept) -> None:
    await kept.one(1)
    ended = await kept.finish(await kept.taken(), "failed", 30.0)
    assert (ended.state, ended.due) == ("failed", kept.clock + 30)
    kept.clock += 29
    assert await kept.take("r1:1", "r1", 15.0, []) is None
    kept.clock += 2
    assert (await kept.taken()).attempts == 2


async def test_a_process_that_is_gone_costs_an_attempt_and_a_stop_does_not(kept: Kept) -> None:
    await kept.one(1)
    await kept.release(await kept.taken())
    assert (await kept.taken()).attempts == 1
    assert await kept.free("r1:") == 1
    assert (await kept.taken("r1:2")).attempts == 2
    await kept.free("r1:")
    dead = await kept.taken("r1:3")
    assert (dead.state, dead.error and dead.error.code, dead.holder) == ("dead", "process_lost", "")
    again = await kept.retry("job_001", ["acme"])
    assert (again.state, again.attempts, again.error) == ("queued", 0, None)


async def test_a_job_is_cancelled_at_every_moment(kept: Kept) -> None:
    for number in range(1, 6):
        await kept.one(number)
    assert (await kept.cancel("job_001", None)).state == "cancelled"
    failing = await kept.taken()
    await kept.finish(failing, "failed", 30.0)
    assert (await kept.cancel(failing.id, None)).state == "cancelled"
    running = await kept.taken()
    assert (await kept.cancel(running.id, None, dry_run=True)).cancels and not (await kept.get(running.id, None)).cancels
    asked = await kept.cancel(running.id, None)
    assert asked.cancels and asked.state == "running"
    assert (await kept.advance(running, 15.0)).cancels
    assert (await kept.finish(running, "dead")).state == "cancelled"  # it is not tried again, and nobody has to look at it
    orphan = await kept.taken()
    await kept.cancel(orphan.id, None)
    await kept.free("r1:")
    assert (await kept.taken("r1:2")).state == "cancelled"
    done = await kept.taken()
    await kept.finish(done, "done")
    assert (await kept.cancel(done.id, None)).state == "done"
    with pytest.raises(AlreadyExists):
        await kept.retry(done.id, None)


async def test_jobs_wait_for_others(kept: Kept) -> None:
    await kept.one(1)
    await kept.one(2, tenant="globex")
    await kept.one(3, after=("job_001",))
    await kept.one(4, after=("job_001", "job_003"))
    with pytest.raises(NotFound):
        await kept.one(5, after=("job_002",))  # another tenant's
    assert await kept.settle() == [] and await kept.state(3) == "waiting"
    await kept.finish(await kept.taken(), "done")
    assert [job.id for job in await kept.settle()] == ["job_003"]
    await kept.cancel("job_003", None)
    assert [(job.id, job.state, job.error and job.error.code) for job in await kept.settle()] == [
        ("job_004", "cancelled", "dependency_failed")
    ]
    with pytest.raises(AlreadyExists):
        await kept.retry("job_004", None)
    await kept.retry("job_003", None)
    assert (await kept.retry("job_004", None)).state == "waiting"
    assert [job.id for job in await kept.settle()] == ["job_003"]


async def test_what_a_tenant_may_have_and_see(kept: Kept) -> None:
    for number in range(10):
        await kept.one(number)
    with pytest.raises(QuotaExceeded) as full:
        await kept.one(11)
    assert full.value.headers == (("x-should-retry", "false"),)
    await kept.one(12, tenant="globex")
    for id in ("job_012", "x" * 300, "\0", "\ud800"):
        with pytest.raises(NotFound):
            await kept.get(id, ["acme"])
        with pytest.raises(NotFound):
            await kept.cancel(id, ["acme"])
    found, more = await kept.page(["acme"], 4, None)
    assert [job.id for job in found] == ["job_009", "job_008", "job_007", "job_006"] and more
    found, more = await kept.page(["acme"], 10, "job_006", "queued", "quantize")
    assert len(found) == 6 and not more
    assert (await kept.page(None, 20, None, "dead"))[0] == [] and (await kept.page([], 20, None))[0] == []
    assert await kept.counts() == {"queued": 11}


async def test_what_is_over_is_forgotten_unless_another_waits_for_it(kept: Kept) -> None:
    await kept.one(1)
    await kept.one(2)
    await kept.finish(await kept.taken(), "done")
    await kept.one(3, after=("job_001", "job_002"))
    kept.clock += 1000
    assert await kept.forget(500.0) == 0
    await kept.cancel("job_002", None)
    await kept.settle()
    assert await kept.forget(500.0) == 2
    assert await kept.state(3) == "cancelled"


async def test_all_that_is_over_is_forgotten_however_much_it_is(kept: Kept) -> None:
    for number in range(1, 8):
        await kept.one(number)
        await kept.cancel(f"job_{number:03}", None)
    await kept.one(8)
    kept.clock += 1000
    assert await kept.forget(500.0, most=2) == 7
    assert await kept.counts() == {"queued": 1}


async def test_a_schedule_makes_one_job_for_all_times_that_were_missed_and_none_beside_one(kept: Kept) -> None:
    record = ScheduleRecord(
        name="nightly", tenant="acme", cron="0 * * * *", timezone="UTC", task=TASK, creator=CREATOR, replica="r1", most=1
    )  # fmt: skip
    numbers = iter(range(100))

    def job(one: ScheduleRecord) -> JobRecord:
        return JobRecord(
            id=f"job_{next(numbers):03}", tenant="acme", kind="quantize", state="queued", task=one.task, creator=one.creator, replica="r1"
        )  # fmt: skip

    def then(one: ScheduleRecord, now: float) -> float:
        return following(one.cron, one.timezone, now)

    made = await kept.add_schedule(record, lambda now: then(record, now), 1)
    assert made.next > kept.clock and made.next % 3600 == 0
    with pytest.raises(AlreadyExists):
        await kept.add_schedule(record, lambda now: now, 5)
    with pytest.raises(QuotaExceeded):
        await kept.add_schedule(msgspec.structs.replace(record, name="other"), lambda now: now, 1)
    assert await kept.make_due(then, job, 10) == []
    kept.clock = made.next + 5 * 3600 + 1
    assert len(await kept.make_due(then, job, 10)) == 1
    assert await kept.make_due(then, job, 10) == []
    kept.clock += 3600
    assert await kept.make_due(then, job, 10) == []  # the last one is not over
    assert (await kept.schedule("acme", "nightly")).next > kept.clock
    running = await kept.taken()
    await kept.finish(msgspec.structs.replace(running, error=JobError(code="x", message="y")), "dead")
    kept.clock += 3600
    assert len(await kept.make_due(then, job, 10)) == 1
    assert [one.name for one in await kept.schedules(["acme"])] == ["nightly"] and await kept.schedules(["globex"]) == []
    with pytest.raises(NotFound):
        await kept.drop_schedule("globex", "nightly")
    for tenant, name in (("acme", "b"), ("a", "z"), ("zeta", "a")):
        await kept.add_schedule(msgspec.structs.replace(record, tenant=tenant, name=name), lambda now: now + 1e9, 9)
    every = [(one.tenant, one.name) for one in await kept.schedules(None)]
    assert every == [("a", "z"), ("acme", "b"), ("acme", "nightly"), ("zeta", "a")]
    for place in range(len(every)):
        rest = await kept.schedules(None, after=every[place], most=2)
        assert [(one.tenant, one.name) for one in rest] == every[place + 1 : place + 3]
    assert [one.name for one in await kept.schedules(["acme"], after=("acme", "b"))] == ["nightly"]
    assert await kept.schedules(None, after=("acme", "\0")) == []
    kept.clock += 3600
    assert [(one.tenant, one.name) for one in await kept.due()] == [("acme", "nightly")]
    await kept.drop_schedule("acme", "nightly")
    kept.clock += 3600
    assert await kept.make_due(then, job, 10) == []


async def test_a_clock_that_was_wrong_for_a_while_stops_no_schedule(kept: Kept) -> None:
    task = {"task": TASK, "creator": CREATOR, "replica": "r1", "most": 1}
    record = ScheduleRecord(name="hourly", tenant="acme", cron="0 * * * *", timezone="UTC", **task)

    def then(one: ScheduleRecord, now: float) -> float:
        return following(one.cron, one.timezone, now)

    def job(one: ScheduleRecord) -> JobRecord:
        return JobRecord(id=f"job_{kept.clock:.0f}", tenant="acme", kind="quantize", state="queued", **task)

    await kept.add_schedule(record, lambda now: then(record, now), 1)
    right = kept.clock
    kept.clock += 400 * 86400
    assert len(await kept.make_due(then, job, 10)) == 1
    kept.clock = right
    await kept.cancel(f"job_{right + 400 * 86400:.0f}", None)
    assert await kept.make_due(then, job, 10) == []
    assert (await kept.schedule("acme", "hourly")).next == then(record, right)
    kept.clock += 3600
    assert len(await kept.make_due(then, job, 10)) == 1


async def test_jobs_do_not_wait_for_a_clock_that_was_ahead(kept: Kept) -> None:
    nothing: Any = None

    async def look() -> None:
        await kept.make_due(nothing, nothing, 10)

    right = kept.clock
    await look()
    kept.clock += 3600
    await look()
    for number in (1, 2):
        await kept.one(number)
    assert (await kept.finish(await kept.taken(), "failed", 20.0)).due == right + 3620
    kept.clock = right
    await look()
    second = await kept.taken()
    assert second.id == "job_002"
    await kept.finish(second, "done")
    assert await kept.take("r1:1", "r1", 15.0, []) is None, "the pause after the failure is kept"
    kept.clock += 20
    assert (await kept.taken()).id == "job_001"
