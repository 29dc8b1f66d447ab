"""What every store keeps to when a tenant, a user or a key is deleted: whoever gets the name next finds nothing of those before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import msgspec
import pytest
import sqlalchemy as sa

from gateway.core.approvals import Requester
from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.conversations import KeepAnswer, Said
from gateway.core.errors import NotFound, PermissionDenied, VersionMismatch
from gateway.core.jobs import Benchmark, JobRecord
from gateway.core.specs.responses import ResponsesSpec
from gateway.core.storage import Removal, Write
from gateway.store.store import Store
from tests.contract.store.place import ANY, Place
from tests.contract.store.test_approvals import BOUNDS, hold

SAID = Said(items=b"[]", answer=b"{}")
FILE = FileRecord(id="file-1", tenant="acme", owner="acme/app", name="in.jsonl", purpose="batch", size=1, key="")
BATCH = BatchRecord(
    id="batch_1", creator=Creator(id="app", tenant="acme", kind="api_key"), endpoint="/v1/embeddings", input="file-1", state="validating",
    created=0.0, expires=0.0, window="24h",
)  # fmt: skip


async def keep(store: Store, id: str, owner: str, tenant: str = "acme", ago: float = 0.0) -> None:
    began = time.perf_counter() - ago
    await store.kept_answers.keep(KeepAnswer(id=id, tenant=tenant, owner=owner, model="m", said=SAID, began=began), ResponsesSpec())


async def kept(store: Store, *ids: str, tenant: str = "acme") -> list[str]:
    return [id for id in ids if (await store.kept_answers.find(id, tenant)).said is not None]


async def test_the_responses_of_a_key_and_of_a_user_go_with_them(place: Place) -> None:
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    for tenant in ("acme", "globex"):
        await store.create("users", f"bob@{tenant}", {"name": "bob", "tenant": tenant}, actor="x", tenant=tenant)
    for id, owner in (("resp_1", "api_key app"), ("resp_2", "user bob"), ("resp_3", "user app"), ("resp_4", "oidc bob")):
        await keep(store, id, owner)
    await keep(store, "resp_5", "user bob", "globex")
    await store.delete_key("app", actor="x", dry_run=True)
    assert await kept(store, "resp_1", "resp_2", "resp_3", "resp_4") == ["resp_1", "resp_2", "resp_3", "resp_4"]
    await store.delete_key("app", actor="x")
    assert await kept(store, "resp_1", "resp_2", "resp_3", "resp_4") == ["resp_2", "resp_3", "resp_4"]
    await store.delete("users", "bob@acme", actor="x")
    assert await kept(store, "resp_2", "resp_3", "resp_4") == ["resp_3", "resp_4"]
    assert await kept(store, "resp_5", tenant="globex") == ["resp_5"]


async def test_approvals_and_batches_of_a_user_end_with_them(place: Place) -> None:
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    await store.create("users", "bob@acme", {"name": "bob", "tenant": "acme"}, actor="x", tenant="acme")
    await store.files.add(FILE, 100.0, time.perf_counter(), 9, 9)
    who = {"bob": ("oidc", "b", "bob"), "other": ("oidc", "bob", "x"), "app": ("api_key", "app", ""), "own": ("api_key", "app", "bobby")}
    approved, made = {}, {}
    for name, (kind, id, user) in who.items():
        asked = hold(requester=Requester(tenant="acme", id=id, kind=kind, user=user))
        approved[name] = (await store.approvals.hold(asked, BOUNDS)).id
        creator = Creator(id=id, tenant="acme", kind=kind, user=user)
        made[name] = (await store.batches.add(msgspec.structs.replace(BATCH, id=f"batch_{name}", creator=creator), 100.0, 9)).id

    async def left() -> tuple[set[str], set[str]]:
        approvals = {name for name, id in approved.items() if (await store.approvals.get(id)).state == "pending"}
        return approvals, {name for name, id in made.items() if not (await store.batches.get(id, "acme")).cancels}

    everything = set(who)
    await store.delete("users", "bob@acme", actor="x", dry_run=True)
    assert await left() == (everything, everything)
    await store.delete("users", "bob@acme", actor="x")
    assert await left() == (everything - {"bob"}, everything - {"bob"})
    assert (await store.batches.get(made["bob"], "acme")).state == "cancelling"
    await store.delete_key("app", actor="x")
    assert await left() == ({"other", "own"}, everything - {"bob"}), "the batches of a key end with their next line"
    assert {one.id for one in (await store.approvals.sweep(60.0)).expired} == {approved["bob"], approved["app"]}


async def test_a_new_key_has_no_capture(place: Place) -> None:
    store = await place.open()
    await store.create("captures", "app", {"until": 9e9, "reason": "x"}, actor="x", tenant="acme")  # its key was deleted meanwhile
    await store.create_key("globex", ANY, actor="x", id="app")
    assert (await store.list("captures")).items == ()


@pytest.mark.parametrize("together", [False, True], ids=["delete", "sync"])
async def test_a_tenant_goes_after_its_files_and_batches_and_leaves_nothing(place: Place, together: bool) -> None:
    store = await place.open()
    made = await store.create("tenants", "acme", {"name": "acme"}, actor="x")

    async def delete() -> None:
        if together:
            await store.write_all((), actor="x", removals=[Removal("tenants", "acme", made.version)])
        else:
            await store.delete("tenants", "acme", actor="x")

    await store.files.add(FILE, 100.0, time.perf_counter(), 9, 9)
    batch = await store.batches.add(BATCH, 100.0, 9)
    await keep(store, "resp_1", "api_key app")
    await keep(store, "resp_2", "api_key app", "globex")
    with pytest.raises(VersionMismatch, match=r"files, 'file-1' for one: delete them first") as caught:
        await delete()
    assert (caught.value.status, caught.value.code) == (409, "in_use")
    held = await store.batches.take("here", 10.0, (), ())
    assert held is not None and held.id == batch.id
    over = await store.batches.finish(msgspec.structs.replace(held, state="completed"), (), 100.0)
    assert over.state == "completed"
    await store.files.delete("acme", "file-1")
    await delete()
    assert await store.batches.page("acme", 9, None) == ([], False)
    assert await kept(store, "resp_1") == [] and await kept(store, "resp_2", tenant="globex") == ["resp_2"]


async def test_a_tenant_goes_after_its_jobs_are_over_and_they_go_with_it(place: Place) -> None:
    """Their logs and errors would be shown to the next tenant's administrators."""
    store = await place.open()
    await store.create("tenants", "acme", {"name": "acme"}, actor="x")
    for tenant in ("acme", "globex"):
        creator = Creator(id="app", tenant=tenant, kind="api_key")
        job = JobRecord(
            id=f"job_{tenant}", tenant=tenant, kind="benchmark", state="queued", task=Benchmark(model="a.gguf"), creator=creator,
            replica="", most=1,
        )  # fmt: skip
        await store.jobs.add(job, 9)
    with pytest.raises(VersionMismatch, match=r"jobs, 'job_acme' for one: cancel them, or wait for their end, first") as caught:
        await store.delete("tenants", "acme", actor="x")
    assert (caught.value.status, caught.value.code) == (409, "in_use")
    await store.jobs.cancel("job_acme", "acme")
    await store.delete("tenants", "acme", actor="x")
    assert [one.id for one in (await store.jobs.page(None, 9, None))[0]] == ["job_globex"]


async def test_the_debug_capture_of_a_key_ends_with_it(place: Place) -> None:
    """Otherwise the texts of another tenant's key that gets its id would be kept."""
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    for key in ("app", "other"):
        await store.create("captures", key, {"until": 2e9}, actor="x", tenant="acme")
    seq = (await store.changes_since(0)).head
    await store.delete_key("app", actor="x")
    assert [one.name for one in (await store.list("captures")).items] == ["other"]
    assert ("captures", "app", "deleted") in [(one.kind, one.name, one.action) for one in (await store.changes_since(seq)).changes]


async def refused(keeping: Awaitable[object]) -> bool:
    try:
        await keeping
    except PermissionDenied as error:
        assert error.code == "caller_deleted"
        return True
    return False


async def test_a_request_that_outlives_its_tenant_keeps_nothing_for_the_next_one(place: Place) -> None:
    """Nor does one of another replica that has not heard of it yet. A request of the new tenant keeps what it likes."""
    store = await place.open()
    for when in ("before", "after"):
        await store.create("tenants", "acme", {"name": "acme"}, actor="x")
        if when == "before":
            place.clock.advance(100.0)
            await store.delete("tenants", "acme", actor="x")
    place.clock.advance(60.0)
    began = time.perf_counter()
    for ago, late in ((100.0, True), (59.0, True), (0.0, False)):
        request = {"began": began - ago}
        kept_now = [
            await refused(keep(store, f"resp_{ago}", "api_key app", ago=ago)),
            await refused(store.files.add(msgspec.structs.replace(FILE, id=f"file-{ago}"), 100.0, request["began"], 9, 9)),
            await refused(store.approvals.hold(hold(**request), BOUNDS)),
        ]
        assert kept_now == [late, late, late]
        assert not await refused(keep(store, f"resp_other_{ago}", "api_key app", "globex", ago))
    await store.prune()
    assert await refused(keep(store, "resp_late", "api_key app", ago=100.0))


async def test_a_request_that_outlives_its_key_or_user_keeps_no_response(place: Place) -> None:
    store = await place.open()
    await store.create_key("acme", ANY, actor="x", id="app")
    await store.create("users", "bob@acme", {"name": "bob", "tenant": "acme"}, actor="x", tenant="acme")
    await store.delete_key("app", actor="x")
    await store.delete("users", "bob@acme", actor="x")
    place.clock.advance(60.0)
    for owner, late in (("api_key app", True), ("user bob", True), ("user app", False)):
        assert await refused(keep(store, f"resp_{owner}", owner, ago=100.0)) == late
        assert not await refused(keep(store, f"resp_new_{owner}", owner))


async def test_of_a_deletion_and_a_request_at_the_same_moment_one_sees_the_other(place: Place) -> None:
    store, other = await place.open(), await place.open()
    for number in range(10):
        await store.create("tenants", "acme", {"name": "acme"}, actor="x")
        keeping = [refused(keep(other, f"resp_{number}_{one}", "api_key app", ago=60.0)) for one in range(3)]
        await asyncio.gather(store.delete("tenants", "acme", actor="x"), *keeping)
        assert await kept(store, *(f"resp_{number}_{one}" for one in range(3))) == []
        place.clock.advance(100.0)


async def test_many_go_with_few_statements(place: Place) -> None:
    store = await place.open()
    names = [f"t{number:03}" for number in range(120)]
    await store.write_all([Write("tenants", name, {}, name) for name in names], actor="x")
    await keep(store, "resp_1", "api_key app-3", "t003")
    await keep(store, "resp_2", "user bob", "t003")
    for name in names[:40]:
        await store.create_key(name, ANY, actor="x", id=f"app-{int(name[1:])}")
    await store.create("captures", "app-7", {}, actor="x")
    said: list[str] = []
    sa.event.listen(store._database.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    await store.write_all([], actor="x", removals=[Removal("keys", f"app-{number}", 1) for number in range(40)])
    assert len(said) < 25 and await kept(store, "resp_1", "resp_2", tenant="t003") == ["resp_2"]
    with pytest.raises(NotFound):
        await store.get("captures", "app-7")
    said.clear()
    await store.write_all([], actor="x", removals=[Removal("tenants", name, 1) for name in names])
    assert len(said) < 25 and not (await store.list("tenants")).items and not await kept(store, "resp_2", tenant="t003")
    with pytest.raises(PermissionDenied):
        await keep(store, "resp_3", "user bob", "t119")
    heard = (await store.changes_since(0, 1000)).changes
    assert [change.name for change in heard if change.kind == "tenants" and change.action == "deleted"] == names
