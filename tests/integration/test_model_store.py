# ruff: noqa: F811 - fixtures of pytest that are imported
"""Replicas that share model files through a real S3-compatible store: what is put there, fetched, deleted; what others' faults leave."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from engines.host.catalogue.checksums import Stopped
from gateway.app.shared_models import bucket, stowing
from gateway.app.shared_models.bucket import Bucket, BucketFailed, Sent
from gateway.core.errors import ConfigError, LeaseLost
from gateway.core.modelshare import SharedFile
from tests.integration.seaweedfs import BUCKET, SeaweedServer, seaweedfs
from tests.modelsigning import signature
from tests.unit.gateway.app.shared_models.test_sharing import Replica, eventually, make, models  # noqa: F401 - fixtures
from tests.waiting import reached

Make = Callable[..., Replica]
PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    with seaweedfs() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "REST", 0.2)
    monkeypatch.setattr(stowing, "AGAIN", 0.2)
    monkeypatch.setattr(bucket, "PART", 64 * 1024)
    monkeypatch.setattr(bucket, "FETCHED", 32 * 1024)


@pytest.fixture
def prefix() -> str:
    return f"p{next(PREFIXES)}/"


def keys(server: SeaweedServer, prefix: str) -> list[str]:
    return sorted(one["Key"] for one in server.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", []))


def begun(server: SeaweedServer, prefix: str) -> list[str]:
    return [one["Key"] for one in server.client().list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])]


async def stored(replica: Replica, name: str) -> None:
    """Waits until the gateways' store says that the bucket has it, which comes after it has."""

    def whole() -> bool:
        one = replica.sharing._shared.get(name)
        assert replica.sharing.stowing is not None
        copy = None if one is None else one.copy_of(replica.sharing.stowing.bucket.name)
        return one is not None and copy is not None and copy.digest == one.digest and bool(copy.address)

    await eventually(whole)


async def test_what_one_has_put_there_another_fetches_when_nobody_else_has_it_and_a_deletion_takes_it_out(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str, tmp_path: Path
) -> None:
    a = await make("a", store=server.spec(prefix)).start()
    (tmp_path / "m").write_bytes(models[0])
    await a.add("m.gguf", models[0], signature=signature(tmp_path / "m"))
    await stored(a, "m.gguf")
    shown = await a.shown("m.gguf")
    assert shown["stored"] and shown["replicas"] == ["a"] and a.told("model_stored")[0]["bytes"] == shown["size"]
    told = server.client().head_object(Bucket=BUCKET, Key=f"{prefix}{shown['digest']}/0")["Metadata"]
    assert told == {"sha256": hashlib.sha256(models[0]).hexdigest(), "model": "m.gguf", "file": "m.gguf"}
    await a.end()
    foreign = [f"{prefix}{shown['digest']}/notes.txt", f"{prefix}{shown['digest']}/00000", f"{prefix}other", "elsewhere"]
    for key in foreign:
        server.client().put_object(Bucket=BUCKET, Key=key, Body=b"somebody else's")

    b = await make("b", listen=None, store=server.spec(prefix)).start()
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_fetched"))
    assert b.has("m.gguf") == models[0] and b.has("m.gguf.sig") == a.has("m.gguf.sig") and b.arriving == []
    assert b.told("model_fetched")[0]["from"] == f"s3://{BUCKET}/{prefix}"

    await reached(lambda: b.sharing._shared["m.gguf"].copy_of("b"))
    await b.library.remove("m.gguf", version=None, dry_run=False)
    await eventually(lambda: not any("s3://" in copy.replica for copy in b.sharing._shared["m.gguf"].copies))
    assert keys(server, prefix) == sorted(foreign[:3]) and begun(server, prefix) == []


async def test_a_put_that_was_broken_off_goes_on_with_the_parts_that_are_there(
    server: SeaweedServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PART", 5 * 1024 * 1024)  # the smallest that stores take
    path, data = tmp_path / "m.gguf", b"".join(bytes([number]) * bucket.PART for number in range(5)) + b"and a bit more"
    path.write_bytes(data)
    status = path.stat()
    file = SharedFile(path="m.gguf", size=len(data), sha256=hashlib.sha256(data).hexdigest())
    going = iter([True, True, False])
    sent = Sent(file, str(path), (status.st_size, status.st_mtime_ns, status.st_ino), "m.gguf", lambda: next(going))
    one = Bucket(server.spec(prefix), 2)
    with pytest.raises(Stopped):
        await one.put("a" * 64, 0, sent, again=False)
    await one.aclose()
    upload = begun(server, prefix)
    assert upload == [f"{prefix}{'a' * 64}/0"] and keys(server, prefix) == [], "half of it is nobody's to see"

    two = Bucket(server.spec(prefix), 2)
    parts: list[int] = []
    put = two._client.upload_part
    two._client.upload_part = lambda **given: parts.append(given["PartNumber"]) or put(**given)
    await two.put("a" * 64, 0, sent._replace(go_on=lambda: True), again=True)
    assert parts[0] == 4 and begun(server, prefix) == []
    assert await two.piece("a" * 64, 0, 0, len(data)) == data
    parts.clear()
    await two.put("a" * 64, 0, sent, again=True)
    assert parts == [], "it is there"
    await two.aclose()


async def test_a_file_that_changes_while_it_is_put_is_not_there_afterwards(
    server: SeaweedServer, prefix: str, models: list[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(models[1])
    status = path.stat()
    file = SharedFile(path="m.gguf", size=len(models[1]), sha256="0" * 64)
    sent = Sent(file, str(path), (status.st_size, status.st_mtime_ns, status.st_ino), "m.gguf", lambda: True)
    one = Bucket(server.spec(prefix), 2)
    small = sent._replace(file=SharedFile(path="m.gguf", size=9, sha256="0" * 64), stamp=(9, 0, 0))
    for wrong in (sent, small):
        with pytest.raises(bucket.Changed):
            await one.put("b" * 64, 0, wrong, again=False)
    assert keys(server, prefix) == [] and begun(server, prefix) == [] and one.problem is None
    await one.aclose()


async def test_wrong_bytes_in_the_bucket_are_never_used_and_are_put_right(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str
) -> None:
    a = await make("a", store=server.spec(prefix)).start()
    await a.add("m.gguf", models[0])
    await stored(a, "m.gguf")
    key = f"{prefix}{(await a.shown('m.gguf'))['digest']}/0"
    wrong = bytes(len(models[0]))
    server.client().put_object(Bucket=BUCKET, Key=key, Body=wrong, Metadata={"sha256": hashlib.sha256(models[0]).hexdigest()})
    b = await make("b", store=server.spec(prefix)).start()
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_fetched"))
    assert b.has("m.gguf") == models[0] and b.told("model_fetched")[0]["from"] == "a"
    assert "another SHA-256" in b.told("model_store_altered")[0]["reason"]
    await eventually(lambda: len(a.told("model_stored")) + len(b.told("model_stored")) == 2)
    assert server.client().get_object(Bucket=BUCKET, Key=key)["Body"].read() == models[0]

    server.client().delete_object(Bucket=BUCKET, Key=key)
    c = await make("c", store=server.spec(prefix)).start()
    c.wants("m.gguf")
    await eventually(lambda: c.told("model_fetched"))
    await eventually(lambda: sum(len(one.told("model_stored")) for one in (a, b, c)) == 3)
    assert c.has("m.gguf") == models[0] and keys(server, prefix) == [key]


async def test_a_replaced_model_is_replaced_there_and_one_replica_puts_it(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str
) -> None:
    a, b = [await make(name, store=server.spec(prefix), fetch="all").start() for name in "ab"]
    await asyncio.gather(a.add("m.gguf", models[0]), b.add("m.gguf", models[0]))
    await stored(a, "m.gguf")
    await stored(b, "m.gguf")
    await a.add("m.gguf", models[1], replace=True)
    await eventually(lambda: b.has("m.gguf") == models[1])
    await stored(a, "m.gguf")
    digest = (await a.shown("m.gguf"))["digest"]
    await eventually(lambda: keys(server, prefix) == [f"{prefix}{digest}/0"])
    assert len(a.told("model_stored")) + len(b.told("model_stored")) == 2, "each of the two once"


async def test_without_the_store_replicas_go_on_among_themselves_and_say_so(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str
) -> None:
    a, b = [await make(name, store=server.spec(prefix, timeout=1.0)).start() for name in "ab"]
    await a.add("m.gguf", models[0])
    await stored(a, "m.gguf")
    server.freeze()
    failed = len(a.told("model_store_failed"))  # on a slow machine it may have been late before
    try:
        b.wants("m.gguf")
        await a.add("n.gguf", models[1])
        b.wants("n.gguf")
        await eventually(lambda: len(b.told("model_fetched")) == 2)
        assert {one["from"] for one in b.told("model_fetched")} == {"a"}
        await eventually(lambda: a.sharing.store()["up"] is False)  # type: ignore[index]
        assert a.told("model_store_failed") and a.sharing.store()["since"]  # type: ignore[index]
        up = {family.name: family.samples[0].value for family in a.sharing.collect()}
        assert up["gatehouse_model_store_up"] == 0.0 and up["gatehouse_model_store_failures"] >= 1
    finally:
        server.thaw()
    await stored(a, "n.gguf")
    await eventually(lambda: a.sharing.store()["up"])  # type: ignore[index]
    assert len(a.told("model_store_failed")) - failed <= 2


async def test_a_replica_that_has_nothing_to_put_there_finds_that_the_store_works_again(
    make: Make, server: SeaweedServer, prefix: str
) -> None:
    a = await make("a", store=server.spec(prefix)).start()
    assert a.sharing.stowing is not None
    a.sharing.stowing.bucket._failed("It was away.")
    assert a.sharing.store()["up"] is False  # type: ignore[index]
    await eventually(lambda: a.sharing.store()["up"] and a.told("model_store_back"))  # type: ignore[index]


async def test_credentials_that_are_withdrawn_or_may_only_read_are_told(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str
) -> None:
    a = await make("a", store=server.spec(prefix, "reader")).start()
    b = await make("b", store=server.spec(prefix, secret="withdrawn")).start()
    await a.add("m.gguf", models[0])
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_fetched") and b.sharing.store()["problem"])  # type: ignore[index]
    await eventually(lambda: "AccessDenied" in (a.sharing.stowing.problems.get("m.gguf", "") if a.sharing.stowing else ""))
    assert "withdrawn" not in str(b.events) and "AccessDenied" in (await a.shown("m.gguf"))["problem"]
    assert not (await a.shown("m.gguf"))["stored"] and b.told("model_fetched")[0]["from"] == "a"


async def test_a_replica_that_was_paused_and_taken_over_does_not_say_that_it_is_there(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await make("a", store=server.spec(prefix)).start()
    done = Bucket.put
    taken: list[Any] = []

    async def paused(self: Bucket, digest: str, *given: Any, **more: Any) -> None:
        await done(self, digest, *given, **more)
        if not taken:
            name = f"{stowing.LEASES}{digest[0]}"
            lease = await a.held.take_lease(name, "a", 60)  # its lease was over, and somebody has it
            taken.append(lease)
            await a.stored.remove("m.gguf", "a")
            await a.stored.drop("m.gguf", f"s3://{BUCKET}/{prefix}")

    monkeypatch.setattr(Bucket, "put", paused)
    await a.add("m.gguf", models[0])
    await eventually(lambda: taken and a.has("m.gguf") is None)
    await eventually(lambda: keys(server, prefix) == [])
    assert a.told("model_stored") == []


async def test_what_was_being_sent_when_the_lease_was_lost_does_not_stay_there(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is deleted meanwhile. The object comes into being after the lease was lost, when its thread is through with it."""
    monkeypatch.setattr(stowing, "HOLD", 0.4)
    monkeypatch.setattr(stowing, "AGAIN", 600.0)  # longer than this test takes to look whether it waits
    a = await make("a", store=server.spec(prefix)).start()
    assert a.sharing.stowing is not None
    begun_to_send, go_on, loop = threading.Event(), threading.Event(), asyncio.get_running_loop()
    put, renew = a.sharing.stowing.bucket._client.put_object, a.held.renew_lease

    def held_up(**given: Any) -> Any:
        begun_to_send.set()
        assert go_on.wait(90)
        return put(**given)

    async def told(*given: Any) -> Any:
        try:
            return await renew(*given)
        except LeaseLost:
            loop.call_later(0.3, go_on.set)
            raise

    a.sharing.stowing.bucket._client.put_object, a.held.renew_lease = held_up, told  # type: ignore[method-assign]
    await a.add("m.gguf", models[0])
    digest = (await a.shown("m.gguf"))["digest"]
    await eventually(begun_to_send.is_set)
    assert await a.held.take_lease(f"{stowing.LEASES}{digest[0]}", "a", 60) is not None
    await a.stored.remove("m.gguf", "a")
    await a.stored.drop("m.gguf", a.sharing.stowing.bucket.name)
    await eventually(lambda: a.sharing.stowing and a.sharing.stowing._task and a.sharing.stowing._task.done())
    assert go_on.is_set() and keys(server, prefix) == [] and a.told("model_stored") == []
    assert a.sharing.stowing._after["m.gguf"] > time.monotonic(), "it is not tried again at once"


async def test_a_model_that_the_store_never_takes_does_not_keep_others_waiting(
    make: Make, models: list[bytes], server: SeaweedServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stowing, "AGAIN", 0.05)
    a = await make("a", store=server.spec(prefix)).start()
    assert a.sharing.stowing is not None
    put, refused = a.sharing.stowing.bucket._client.put_object, {"Error": {"Code": "403", "Message": "Forbidden"}}

    def some(**given: Any) -> Any:
        if given["Metadata"]["model"] == "m.gguf":
            raise ClientError(refused, "PutObject")
        return put(**given)

    a.sharing.stowing.bucket._client.put_object = some
    await a.add("m.gguf", models[0])
    await eventually(lambda: a.sharing.stowing and "m.gguf" in a.sharing.stowing.problems)
    await a.add("n.gguf", models[1])
    await stored(a, "n.gguf")
    assert "403" in (await a.shown("m.gguf"))["problem"]


async def test_settings_that_cannot_be_used_and_stores_that_are_none_are_told(server: SeaweedServer, prefix: str) -> None:
    with pytest.raises(ConfigError, match="access_key and secret_key go together"):
        Bucket(server.spec(prefix, secret_key=None), 2)
    one = Bucket(server.spec(prefix, bucket="no-such-bucket"), 2)
    with pytest.raises(BucketFailed, match="NoSuchBucket"):
        await one.piece("c" * 64, 0, 0, 10)
    assert one.problem and one.resting
    await one.aclose()
    with pytest.raises(BucketFailed, match="shutting down"):
        await one.piece("c" * 64, 0, 0, 10)
