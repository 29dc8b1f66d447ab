"""What the stores keep to when a second transaction comes at the same moment: of another replica, another thread, or a tick."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy as sa

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.conversations import KeepAnswer, Said
from gateway.core.errors import NotFound, Overloaded, PermissionDenied, VersionMismatch
from gateway.core.jobs import JobRecord, Quantize, ScheduleRecord
from gateway.core.ledger import Position, SessionAndEngineCounts, UsageRow
from gateway.core.modelshare import SharedFile
from gateway.core.people import Seen
from gateway.core.specs.responses import ResponsesSpec
from gateway.store import approvals, batches, data_keys, database, delivery_rows, files, jobs, kept_answers, people_rows, tombstones
from gateway.store.model_copies import AWAY_SECONDS
from gateway.store.store import Store
from tests.contract.store.place import ANY, Place
from tests.contract.store.races import Pause, beside, ended, held
from tests.contract.store.test_approvals import BOUNDS, hold
from tests.contract.store.test_data_keys import row
from tests.contract.store.test_deliveries import delivery
from tests.contract.store.test_sessions_and_engines import session

CREATOR = Creator(id="app", tenant="acme", kind="api_key")
FILE = FileRecord(id="file-1", tenant="acme", owner="acme/app", name="in.jsonl", purpose="batch", size=1, key="")
BATCH = BatchRecord(
    id="batch_1", creator=CREATOR, endpoint="/v1/embeddings", input="file-1", state="validating", created=0.0, expires=0.0, window="24h"
)
TASK = Quantize(model="a.gguf", to="b.gguf", type="Q8_0")
JOB = JobRecord(id="job_1", tenant="acme", kind="quantize", state="queued", task=TASK, creator=CREATOR, most=2)
POSTGRESQL = pytest.mark.parametrize("place", ["postgresql"], indirect=True)
"""Where in SQLite the second one would simply wait."""


async def two(place: Place) -> tuple[Store, Store]:
    return await place.open(), await place.open()


class TestErasing:
    async def test_results_that_are_written_while_their_caller_is_deleted_are_nobodys(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = await two(place)
        await one.create_key("acme", ANY, actor="x", id="app")
        await one.files.add(msgspec.structs.replace(FILE, caller="api_key app"), 100.0, time.perf_counter(), 9, 9)
        await one.batches.add(BATCH, 100.0, 9)
        batch = await one.batches.take("here", 10.0, (), ())
        assert batch is not None
        pause = Pause(monkeypatch, files, "put")
        results = [msgspec.structs.replace(FILE, id="file-2")]
        finishing = await pause.reached(one.batches.finish(msgspec.structs.replace(batch, state="completed"), results, 100.0))
        deleting = await beside(place, other.delete_key("app", actor="x"))
        pause.go()
        await ended(finishing, deleting)
        assert finishing.exception() is None and deleting.exception() is None
        assert (await one.files.get("acme", "file-2")).caller == ""
        with pytest.raises(NotFound):
            await one.files.get("acme", "file-2", "api_key app")

    @POSTGRESQL
    async def test_all_answers_are_erased_though_somebody_else_erases_one(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kept_answers, "PORTION", 2)
        store = await place.open()
        for number in range(5):
            answer = KeepAnswer(
                id=f"resp_{number}", tenant="acme", owner="", model="m", said=Said(items=b"[]", answer=b"{}"), began=time.perf_counter()
            )
            await store.kept_answers.keep(answer, ResponsesSpec())
        with held(place, "DELETE FROM kept_answers WHERE id = 'resp_0'") as theirs:
            erasing = await beside(place, store.kept_answers.erase_all("acme"))
            theirs.commit()
        assert await erasing == 4
        assert (await store.kept_answers.sweep()).answers == 0

    @POSTGRESQL
    async def test_a_counter_that_is_used_again_is_not_swept(self, place: Place) -> None:
        store, name = await place.open(), ("l", "requests", ("k",))
        await store.change_counters([name], lambda now, bodies: [("1", now + 100.0)])
        place.clock.advance(200.0)
        with held(place, "UPDATE limit_windows SET body = '2', expires = expires + 1000") as theirs:
            sweeping = await beside(place, store.sweep_counters())
            theirs.commit()
        assert await sweeping == 0
        assert [one.body for one in await store.counters_of("l")] == ["2"]

    @pytest.mark.parametrize("planned", [["dk-1"], None])
    async def test_a_key_that_is_made_while_the_tenants_are_destroyed_is_seen(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, planned: list[str] | None
    ) -> None:
        one, other = await two(place)
        await one.data_keys.add(row("dk-1"), None)
        pause = Pause(monkeypatch, data_keys, "_row")
        rotating = await pause.reached(one.data_keys.add(row("dk-2", 2), "dk-1"))
        noted: list[Any] = []
        destroying = await beside(place, other.data_keys.shred("acme", planned, noted.append))
        pause.go()
        await ended(rotating, destroying)
        assert rotating.exception() is None
        states = {one.id: one.state for one in await one.data_keys.every()}
        if planned is None:
            assert noted == [["dk-1", "dk-2"]] and set(states.values()) == {"shredded"}
        else:
            assert isinstance(destroying.exception(), VersionMismatch) and noted == []
            assert states == {"dk-1": "retired", "dk-2": "active"}

    async def test_what_cannot_be_noted_is_not_destroyed(self, place: Place) -> None:
        def full(ids: Any) -> None:
            raise OSError(28, "No space left on device")

        store = await place.open()
        await store.data_keys.add(row("dk-1"), None)
        with pytest.raises(OSError, match="No space left"):
            await store.data_keys.shred("acme", ["dk-1"], full)
        assert [one.state for one in await store.data_keys.every()] == ["active"]


class TestLogins:
    SEEN = Seen(tenant="acme", user="alice", method="oidc", groups=("old",), time=10.0)

    async def test_no_more_users_are_made_than_there_may_be(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        pause = Pause(monkeypatch, people_rows, "_upsert")
        first = await pause.reached(one.note_logins([self.SEEN], limit=1))
        second = await beside(place, other.note_logins([msgspec.structs.replace(self.SEEN, user="bob")], limit=1))
        pause.go()
        assert await ended(first, second) == [1, 0]

    async def test_an_older_login_does_not_bring_back_what_it_said(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        await one.note_logins([self.SEEN], limit=9)
        pause = Pause(monkeypatch, people_rows, "_upsert")
        older = await pause.reached(one.note_logins([msgspec.structs.replace(self.SEEN, time=20.0)], limit=9))
        newer = await beside(place, other.note_logins([msgspec.structs.replace(self.SEEN, groups=("new",), time=30.0)], limit=9))
        pause.go()
        assert await ended(older, newer) == [0, 0]
        login = (await one.logins(["alice@acme"]))["alice@acme"]
        assert (login.groups, login.first, login.last) == (("new",), 10.0, 30.0)

    async def test_a_deleted_user_leaves_no_login_for_the_next_of_the_name(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        await one.note_logins([self.SEEN], limit=9)
        pause = Pause(monkeypatch, people_rows, "_upsert")
        noting = await pause.reached(one.note_logins([msgspec.structs.replace(self.SEEN, time=20.0)], limit=9))
        deleting = await beside(place, other.delete("users", "alice@acme", actor="x"))
        pause.go()
        await ended(noting, deleting)
        assert deleting.exception() is None and await one.logins(["alice@acme"]) == {}


class TestBounds:
    async def test_no_caller_has_more_approvals_than_may_wait(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        pause = Pause(monkeypatch, approvals, "bound")
        bounds = msgspec.structs.replace(BOUNDS, pending=1)
        first = await pause.reached(one.approvals.hold(hold(), bounds))
        second = await beside(place, other.approvals.hold(hold(), bounds))
        pause.go()
        await ended(first, second)
        assert first.exception() is None and isinstance(second.exception(), Overloaded)

    async def test_two_replicas_that_forget_deliveries_forget_them_once(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        for number in range(9):
            place.clock.advance(1.0)
            await one.add_deliveries([delivery(f"{number}")], 10)
            await one.settle_delivery(f"{number}", status="delivered", pause=0.0, code=200, error="")
        pause = Pause(monkeypatch, delivery_rows, "beyond", late=True)
        first = await pause.reached(one.forget_deliveries(1000.0, 5))
        assert await other.forget_deliveries(1000.0, 5) == 4
        pause.go()
        assert await first == 0
        assert [found.id for found in await one.deliveries()] == ["8", "7", "6", "5", "4"]

    @POSTGRESQL
    async def test_two_replicas_that_forget_sessions_forget_them_once(self, place: Place) -> None:
        store = await place.open()
        sessions = tuple(session(f"s{number}", last=float(number)) for number in range(9))
        await store.add_usage([], others=SessionAndEngineCounts(sessions))

        def theirs(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if "count(" in statement:
                with psycopg.connect(place.url) as raw:
                    raw.execute("DELETE FROM usage_sessions WHERE last < 4")

        sa.event.listen(store._database.engine, "after_cursor_execute", theirs)
        assert await store.forget_sessions("", 5) == 0
        assert len(await store.usage_of_sessions()) == 5


class TestFilesAndJobs:
    async def add(self, store: Store, keep: float = 100.0) -> None:
        await store.files.add(FILE, keep, time.perf_counter(), 9, 9)

    async def test_a_file_does_not_expire_while_a_batch_is_made_of_it(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        await self.add(one)
        pause = Pause(monkeypatch, batches, "_values")
        making = await pause.reached(one.batches.add(BATCH, 100.0, 9))
        place.clock.advance(200.0)
        expiring = await beside(place, other.files.expire())
        pause.go()
        await ended(making, expiring)
        assert making.exception() is None and expiring.result() == []
        assert await one.files.known(["file-1"]) == {"file-1"}

    @pytest.mark.parametrize("what", ["expire", "delete"])
    async def test_a_file_goes_once(self, place: Place, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        """Each replica removes what it is told, and records it."""
        one, other = await two(place)
        await self.add(one)
        place.clock.advance(200.0 if what == "expire" else 0.0)
        pause = Pause(monkeypatch, files, "drop")
        first = await pause.reached(one.files.expire() if what == "expire" else one.files.delete("acme", "file-1"))
        second = await beside(place, other.files.expire() if what == "expire" else other.files.delete("acme", "file-1"))
        pause.go()
        await ended(first, second)
        assert first.exception() is None
        assert isinstance(second.exception(), NotFound) if what == "delete" else second.result() == []

    @POSTGRESQL
    async def test_an_upload_and_the_deletion_of_its_tenant_do_not_wait_in_a_circle(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "_given_way", lambda error: False)  # what PostgreSQL breaks off is not done again
        one, other = await two(place)
        await one.create("tenants", "acme", {"name": "acme"}, actor="x")
        pause = Pause(monkeypatch, tombstones, "check")
        adding = await pause.reached(self.add(one))
        deleting = await beside(place, other.delete("tenants", "acme", actor="x"))
        pause.go()
        await ended(adding, deleting)
        assert deleting.exception() is None and isinstance(adding.exception(), PermissionDenied)

    async def test_a_job_that_is_tried_again_is_not_forgotten(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        await one.jobs.add(JOB, 9)
        await one.jobs.cancel("job_1", "acme")
        place.clock.advance(200.0)
        pause = Pause(monkeypatch, jobs, "_values")
        trying = await pause.reached(one.jobs.retry("job_1", "acme"))
        forgetting = await beside(place, other.jobs.forget(100.0))
        pause.go()
        await ended(trying, forgetting)
        assert trying.exception() is None and forgetting.result() == 0
        assert (await one.jobs.get("job_1", "acme")).state == "queued"

    async def test_a_job_that_another_is_made_to_wait_for_is_not_forgotten(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = await two(place)
        await one.jobs.add(JOB, 9)
        taken = await one.jobs.take("r:1", "", 10.0, ())
        assert taken is not None
        await one.jobs.finish(taken, "done")
        place.clock.advance(200.0)
        pause = Pause(monkeypatch, jobs, "_values")
        adding = await pause.reached(one.jobs.add(msgspec.structs.replace(JOB, id="job_2", after=("job_1",)), 9))
        forgetting = await beside(place, other.jobs.forget(100.0))
        pause.go()
        await ended(adding, forgetting)
        assert adding.exception() is None and forgetting.result() == 0
        assert [job.state for job in await one.jobs.settle()] == ["queued"]

    @POSTGRESQL
    async def test_the_next_schedule_of_a_name_is_not_deleted_for_the_one_before(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await place.open()
        record = ScheduleRecord(
            name="nightly", tenant="acme", cron="0 3 * * *", timezone="UTC", task=TASK, creator=CREATOR, replica="", most=2, next=0.0
        )
        made = await store.jobs.add_schedule(record, lambda now: now + 10.0, 9)
        pause = Pause(monkeypatch, jobs, "_find", late=True)
        dropping = await pause.reached(store.jobs.drop_schedule("acme", "nightly", made.created))
        with psycopg.connect(place.url) as theirs:
            theirs.execute("UPDATE job_schedules SET created = created + 1")
        pause.go()
        with pytest.raises(NotFound):
            await dropping
        assert len(await store.jobs.schedules("acme")) == 1


class TestModels:
    @POSTGRESQL
    async def test_a_replica_that_comes_back_keeps_its_copies(self, place: Place) -> None:
        store = await place.open()
        one = SharedFile(path="a.gguf", size=1, sha256="0" * 64)
        await store.model_copies.publish("a.gguf", (one,), "r1", "r1:1", placed=True, replaces=False)
        place.clock.advance(2 * AWAY_SECONDS)
        with held(place, "UPDATE model_copies SET seen = %s", place.clock.wall()) as theirs:
            leaving = await beside(place, store.model_copies.leave("r1"))
            theirs.commit()
        assert await leaving is None
        assert len((await store.model_copies.every())["a.gguf"].copies) == 1

    @POSTGRESQL
    async def test_a_directory_that_another_replica_marks_is_known_by_its_mark(self, place: Place) -> None:
        store = await place.open()
        with held(place, "INSERT INTO facts (name, value) VALUES ('model_directory', 'theirs')") as theirs:
            marking = await beside(place, store.model_uses.directory("ours"))
            theirs.commit()
        assert await marking == "theirs" and await store.model_uses.directory() == "theirs"


@POSTGRESQL
async def test_usage_and_positions_are_read_as_they_were_at_one_moment_however_much_is_counted(place: Place) -> None:
    store = await place.open()
    await store.add_usage([UsageRow("2026-01-01", "t", "k", "m", 1, writer="w")], Position("w"), Position("w", 1, 100, 1, "aa"))

    def theirs(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "FROM usage_positions" in statement:
            with psycopg.connect(place.url) as raw:
                raw.execute("UPDATE usage_positions SET seq = seq + 1")
                raw.execute("UPDATE usage SET requests = requests + 1")

    sa.event.listen(store._database.engine, "after_cursor_execute", theirs)
    positions, found = await store.usage_of_writers(["w"])
    assert (positions["w"].seq, found[0].requests) == (1, 1)


@POSTGRESQL
async def test_of_two_who_begin_after_a_key_has_expired_one_does(place: Place) -> None:
    store = await place.open()
    assert await store.begin_idempotent("key", "root", "POST /x", "a", ttl=60.0) is None
    place.clock.advance(100.0)

    def theirs(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "FROM idempotency" in statement and statement.startswith("SELECT"):
            with psycopg.connect(place.url) as raw:
                raw.execute("UPDATE idempotency SET fingerprint = 'theirs', expires = expires + 1000")

    sa.event.listen(store._database.engine, "after_cursor_execute", theirs)
    begun = await store.begin_idempotent("key", "root", "POST /x", "a", ttl=60.0)
    assert begun is not None and (begun.status, begun.fingerprint) == (0, "theirs")
