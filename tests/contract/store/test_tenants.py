"""What every store keeps to when a tenant, a user or a key is deleted: whoever gets the name next finds nothing of those before."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.batches import BatchRecord, Creator, FileRecord
from gateway.core.conversations import KeepAnswer, ResponsesSpec, Said
from gateway.core.errors import VersionMismatch
from gateway.core.storage import Removal
from gateway.store.store import Store
from tests.contract.store.place import ANY, Place

SAID = Said(items=b"[]", answer=b"{}")
FILE = FileRecord(id="file-1", tenant="acme", owner="acme/app", name="in.jsonl", purpose="batch", size=1, key="")
BATCH = BatchRecord(
    id="batch_1", creator=Creator(id="app", tenant="acme", kind="api_key"), endpoint="/v1/embeddings", input="file-1", state="validating",
    created=0.0, expires=0.0, window="24h",
)  # fmt: skip


async def keep(store: Store, id: str, owner: str, tenant: str = "acme") -> None:
    await store.kept_answers.keep(KeepAnswer(id=id, tenant=tenant, owner=owner, model="m", said=SAID), ResponsesSpec())


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


@pytest.mark.parametrize("together", [False, True], ids=["delete", "sync"])
async def test_a_tenant_goes_after_its_files_and_batches_and_leaves_nothing(place: Place, together: bool) -> None:
    store = await place.open()
    made = await store.create("tenants", "acme", {"name": "acme"}, actor="x")

    async def delete() -> None:
        if together:
            await store.write_all((), actor="x", removals=[Removal("tenants", "acme", made.version)])
        else:
            await store.delete("tenants", "acme", actor="x")

    await store.files.add(FILE, 100.0, 9, 9)
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
