"""Replicas that share model files, in one process over one database, each with a registry and a port of its own: what is fetched, refused,
deleted, and what others' faults leave."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from gateway.app.replicas.replica import replica_id
from gateway.app.shared_models import arrival, offering, sharing
from gateway.app.shared_models.sharing import ModelSharing
from gateway.core.clock import SystemClock
from gateway.core.errors import GatehouseError, NotFound
from gateway.core.modelfiles import UploadSettings
from gateway.core.modelshare import SharedFile
from gateway.core.specs import UploadsSpec
from gateway.core.specs.fleet import ModelSharingSpec, ModelSignaturesSpec
from gateway.core.storage import Lease
from gateway.store import leases, model_copies
from gateway.store.database import Database, make_engine
from gateway.store.model_copies import StoredModelCopies
from gateway.store.tables import metadata
from loadtests.llamacpp.random_gguf import Shape, write
from tests.modelsigning import pem, signature
from tests.waiting import reached

SHAPES = [Shape(layers=1, width=width, heads=2, kv_heads=1, feed_forward=32) for width in (32, 64)]
SECRET = b"s" * 32


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Two valid models of some hundred KiB."""
    folder = tmp_path_factory.mktemp("models")
    return [write(folder / f"{number}.gguf", shape).read_bytes() for number, shape in enumerate(SHAPES)]


class DatabaseLeases:
    """Those of a store, over its database alone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_lease(self, name: str, holder: str, seconds: float, *, period: float = 0.0) -> Lease | None:
        return await self._database.run(lambda connection: leases.take(connection, wall, name, holder, seconds, period), write=True)

    async def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        return await self._database.run(lambda connection: leases.renew(connection, wall, lease, seconds), write=True)

    async def finish_lease(self, lease: Lease, *, done: bool) -> None:
        await self._database.run(lambda connection: leases.finish(connection, wall, lease, done), write=True)


def wall(connection: Any) -> float:
    return time.time()


class Replica:
    """One replica; may be ended and started again."""

    def __init__(
        self, name: str, root: Path, stored: StoredModelCopies, held: DatabaseLeases, secret: bytes = SECRET, **settings: Any
    ) -> None:
        self.name, self.state, self.stored, self.secret, self.held = name, root / name, stored, secret, held
        self.settings = ModelSharingSpec(**{"listen": "127.0.0.1:0", **settings})
        self.engines: list[tuple[str, str]] = []
        self.reserve = 0
        self.signatures = ModelSignaturesSpec()
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.arrived = 0

    async def start(self) -> Replica:
        uploads = UploadsSpec(reserve_bytes=0)
        places = (Place(self.state / "models", "registry"),)
        self.library = Library(
            self.state, lambda: places, lambda: uploads, lambda: self.engines, SystemClock(), signatures=lambda: self.signatures
        )
        await self.library.start()
        replica_id(self.state, {})  # the file with the id of a replica that has no name of its own
        record = lambda event, name, detail: self.events.append((event, name, detail))  # noqa: E731
        parts = (self.stored, lambda purpose: self.secret, self.library, self.state, self.name, self.settings)
        self.sharing = ModelSharing(*parts, lambda: self.reserve, record, self.came, self.held, self.name)
        self.sharing.start()
        return self

    def came(self) -> None:
        self.arrived += 1

    async def end(self) -> None:
        await self.sharing.aclose()
        await self.library.aclose()

    async def add(self, name: str, data: bytes, **more: Any) -> None:
        settings = UploadSettings(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), **more)
        id = (await self.library.begin(settings, actor="t/k", dry_run=False))["id"]
        await self.library.append(id, 0, len(data), parts(data))
        await self.library.complete(id, dry_run=False)

    def has(self, name: str) -> bytes | None:
        try:
            return (self.state / "models" / name).read_bytes()
        except OSError:
            return None

    async def shown(self, name: str) -> dict[str, Any]:
        found = {one["name"]: one for one in await self.sharing.view()}
        return found.get(name, {"state": "", "problem": None, "replicas": []})

    def wants(self, name: str) -> None:
        self.sharing.lacked(name)

    def told(self, event: str) -> list[dict[str, Any]]:
        return [detail for kind, _, detail in self.events if kind == event]

    @property
    def arriving(self) -> list[str]:
        folder = self.state / "arriving"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def parts(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 65536):
        yield data[at : at + 65536]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Replica]]:
    """Makes replicas on one store; those that run are ended at the end."""
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(sharing, "AGAIN", 0.2)
    monkeypatch.setattr(arrival, "PAUSE", 0.05)
    for module in (offering, arrival):
        monkeypatch.setattr(module, "PIECE", 8192)
    engine = make_engine("sqlite", tmp_path, 60.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    database = Database(engine, 60.0)
    stored = StoredModelCopies(database, wall)
    made: list[Replica] = []

    def make(name: str, **more: Any) -> Replica:
        made.append(Replica(name, tmp_path, stored, DatabaseLeases(database), **more))
        return made[-1]

    yield make
    for one in made:
        await one.end()
    await database.aclose()


async def eventually(condition: Callable[[], Any]) -> None:
    await reached(condition)


async def test_a_file_a_split_model_and_a_folder_come_whole_and_are_given_on(
    make: Callable[..., Replica], models: list[bytes], tmp_path: Path
) -> None:
    a, b, c = [await make(name).start() for name in ("a", "b", "c")]
    await a.add("m.gguf", models[0])
    folder = a.state / "models" / "emb" / "sub"
    folder.mkdir(parents=True)
    onnx = min(Path("engines/demo/artefacts").rglob("model.onnx"))
    shutil.copytree(onnx.parent, a.state / "models" / "emb", dirs_exist_ok=True)
    (folder / "more.json").write_text("{}")
    names = ("m.gguf", "emb")
    for name in names:
        b.wants(name)
    await eventually(lambda: len(b.told("model_fetched")) == 2)
    assert b.has("m.gguf") == models[0] and (b.state / "models" / "emb" / "sub" / "more.json").read_text() == "{}"
    assert (b.state / "models" / "emb" / "model.onnx").read_bytes() == onnx.read_bytes()
    await a.end()  # from now on the other copy is what there is
    for name in names:
        c.wants(name)
    await eventually(lambda: len(c.told("model_fetched")) == 2)
    assert {detail["from"] for detail in c.told("model_fetched")} == {"b"} and c.arriving == b.arriving == []
    await eventually(lambda: "c" in {copy.replica for copy in c.sharing._shared["emb"].copies if copy.address})
    assert (await c.shown("emb"))["replicas"] == ["a", "b", "c"] and b.arrived >= 2


async def test_a_signature_comes_with_its_model_and_what_is_not_signed_stays_away(
    make: Callable[..., Replica], models: list[bytes], tmp_path: Path
) -> None:
    a, b = await make("a").start(), await make("b").start()
    (tmp_path / "vendor.pem").write_bytes(pem())
    for number in (0, 1):
        (tmp_path / f"{number}").write_bytes(models[number])
    b.signatures = ModelSignaturesSpec(keys=(str(tmp_path / "vendor.pem"),), required=True)
    await a.add("good.gguf", models[0], signature=signature(tmp_path / "0"))
    await a.add("wrong.gguf", models[1], signature=signature(tmp_path / "0"))
    await a.add("none.gguf", models[1])
    for name in ("good.gguf", "wrong.gguf", "none.gguf"):
        b.wants(name)
    unsigned = lambda: (wanted := b.sharing._wanted.get("none.gguf")) and wanted.problem  # noqa: E731
    await eventually(lambda: b.told("model_fetched") and b.told("model_fetch_failed") and unsigned())
    assert b.has("good.gguf") == models[0] and b.has("good.gguf.sig") == a.has("good.gguf.sig")
    assert "wrong.gguf is not what was signed" in b.told("model_fetch_failed")[0]["reason"]
    problem = (await b.shown("none.gguf"))["problem"]
    assert "'none.gguf'" in problem and "no signature (none.gguf.sig beside it)" in problem
    assert b.has("none.gguf") is None and b.has("wrong.gguf") is None
    await eventually(lambda: b.arriving == [])  # what was refused is deleted after that is told
    await eventually(
        lambda: (one := b.sharing._shared.get("good.gguf")) and {copy.replica for copy in one.copies if copy.address} == {"a", "b"}
    )


async def test_a_transfer_goes_on_where_it_stopped_when_the_holder_died_and_when_this_one_did(
    make: Callable[..., Replica], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []
    stop = 5
    piece = offering._piece

    def counted(path: str, stamp: tuple[int, int, int], offset: int) -> bytes:
        if len(served) == stop:
            raise NotFound("It is gone.")
        served.append(offset)
        return piece(path, stamp, offset)

    monkeypatch.setattr(offering, "_piece", counted)
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    b.wants("m.gguf")
    await eventually(lambda: len(b.told("model_fetch_failed")) == 1)
    await a.end()
    assert "404" in b.told("model_fetch_failed")[0]["reason"] and len(b.arriving) == 1
    await b.end()
    await b.start()
    assert b.has("m.gguf") is None
    stop = -1
    await a.start()
    b.wants("m.gguf")
    await eventually(lambda: b.has("m.gguf") == models[0])
    assert served == list(range(0, len(models[0]), 8192)), "no piece twice"


async def test_what_is_asked_for_as_a_comparison_ends_begins_the_next_one(
    make: Callable[..., Replica], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 3600.0)
    a, b = await make("a").start(), await make("b").start()
    ends, goes, compare = asyncio.Event(), asyncio.Event(), b.sharing._compare

    async def held(*, tidy: bool) -> None:
        await compare(tidy=tidy)
        ends.set()
        await goes.wait()

    monkeypatch.setattr(b.sharing, "_compare", held)  # its first comparison has not begun
    await a.add("m.gguf", models[0])
    await eventually(ends.is_set)
    b.wants("m.gguf")
    await eventually(lambda: "m.gguf" in b.sharing._wanted)
    goes.set()
    await eventually(lambda: b.told("model_fetched"))


async def test_bytes_that_are_not_what_was_announced_are_never_used(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    path = a.state / "models" / "m.gguf"
    before = path.stat()
    with path.open("r+b") as file:  # in place, and its time put back: nothing shows but the content
        file.seek(20000)
        file.write(b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    b.wants("m.gguf")
    await eventually(lambda: len(b.told("model_fetch_failed")) == 1)
    assert "another SHA-256" in b.told("model_fetch_failed")[0]["reason"] and b.has("m.gguf") is None
    c = await make("c").start()
    await c.add("m.gguf", models[0])  # the same one: it becomes a copy
    await eventually(lambda: b.told("model_fetched"))
    assert b.has("m.gguf") == models[0] and b.told("model_fetched")[0]["from"] == "c"


async def test_a_changed_file_is_not_given_and_no_longer_told(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    (a.state / "models" / "m.gguf").write_bytes(models[1])
    b.wants("m.gguf")
    await reached(lambda: a.sharing._refused.get("m.gguf"))
    assert (await a.shown("m.gguf"))["state"] == "differs" and (await a.shown("m.gguf"))["replicas"] == []
    assert b.has("m.gguf") is None


async def test_a_model_that_is_replaced_while_it_comes_comes_as_the_new_one_and_old_copies_go(
    make: Callable[..., Replica], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = [await make(name).start() for name in ("a", "b", "c")]
    await a.add("m.gguf", models[0])
    c.wants("m.gguf")
    await eventually(lambda: c.has("m.gguf") == models[0])
    c.engines = [("e", str((c.state / "models" / "m.gguf").resolve()))]
    await c.end()
    half, go = asyncio.Event(), asyncio.Event()
    rest = arrival.Arrival._rest

    async def held(self: Any, *given: Any) -> None:
        half.set()
        await go.wait()
        await rest(self, *given)

    monkeypatch.setattr(arrival.Arrival, "_rest", held)
    b.wants("m.gguf")
    await half.wait()
    await a.add("m.gguf", models[1], replace=True)
    go.set()
    await eventually(lambda: b.has("m.gguf") == models[1])
    await c.start()  # an engine has the old one there: it stays until no engine does
    await eventually(lambda: "in use" in c.sharing._refused.get("m.gguf", ""))
    assert c.has("m.gguf") == models[0]
    c.engines = []
    await eventually(lambda: c.told("model_withdrawn"))
    assert c.has("m.gguf") is None and c.told("model_withdrawn")[0]["why"] == "replaced"


async def test_a_deletion_reaches_those_who_were_away_and_nobody_brings_the_model_back(
    make: Callable[..., Replica], models: list[bytes]
) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    b.wants("m.gguf")
    await eventually(lambda: b.has("m.gguf") == models[0])
    await reached(lambda: b.sharing._shared["m.gguf"].copy_of("b"))
    await b.end()
    await a.library.remove("m.gguf", version=None, dry_run=False)
    a.wants("m.gguf")
    await b.start()
    await eventually(lambda: b.told("model_withdrawn"))
    assert b.has("m.gguf") is None and a.has("m.gguf") is None
    path = b.state / "models" / "m.gguf"
    path.write_bytes(models[0])  # by hand: it is this machine's own, and nobody else's
    looked = [0]
    every = b.stored.every

    async def counted() -> Any:
        looked[0] += 1
        return await every()

    b.stored.every = counted  # type: ignore[method-assign]
    await eventually(lambda: looked[0] > 6)
    assert a.has("m.gguf") is None and path.exists() and not b.sharing._wanted
    await a.add("m.gguf", models[1])
    assert (await a.shown("m.gguf"))["state"] == "here"


async def test_one_that_is_deleted_while_it_comes_does_not_stay(
    make: Callable[..., Replica], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    adopt = Library.adopt

    async def deleted(self: Library, *given: Any, **more: Any) -> Any:
        if self is b.library:  # after the last question whether it is still wanted
            await a.library.remove("m.gguf", version=None, dry_run=False)
        return await adopt(self, *given, **more)

    monkeypatch.setattr(Library, "adopt", deleted)
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_withdrawn"))
    assert b.has("m.gguf") is None and b.arriving == []
    assert await b.stored.every() and not (await b.shown("m.gguf"))["replicas"]


async def test_dead_addresses_and_impossible_rows_harm_nobody(make: Callable[..., Replica], models: list[bytes], tmp_path: Path) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    digest = (await a.shown("m.gguf"))["digest"]
    for name, address in (("0", "127.0.0.1:1"), ("1", "no such host:9"), ("2", "x"), ("3", "")):
        await a.stored.hold("m.gguf", digest, name, address)
    file = SharedFile(path="../../escaped.gguf", size=4, sha256="0" * 64)
    await a.stored.publish("bad.gguf", (file,), "0", "127.0.0.1:1", placed=True, replaces=False)
    await a.stored.publish("../up", (file,), "0", "127.0.0.1:1", placed=True, replaces=False)
    for name in ("bad.gguf", "m.gguf", "../up"):
        b.wants(name)
    await eventually(lambda: b.told("model_fetched"))
    assert b.has("m.gguf") == models[0]
    await eventually(lambda: "no file of it" in b.sharing._wanted["bad.gguf"].problem)
    assert not list(tmp_path.rglob("escaped*")) and b.arriving == []


async def test_a_disk_without_room_is_told_and_tried_again(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), make("b")
    b.reserve = 1 << 62
    await b.start()
    (b.state / "arriving" / "left-by-a-kill").mkdir(parents=True)
    await a.add("m.gguf", models[0])
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_fetch_failed"))
    assert "stay free" in (await b.shown("m.gguf"))["problem"]
    b.reserve = 0
    await eventually(lambda: b.has("m.gguf") == models[0])
    await b.end()  # perhaps before it had removed what it needs no more
    await b.start()
    await eventually(lambda: b.arriving == [])


async def test_of_two_that_add_a_name_at_once_one_is_shared(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b").start()
    settings = UploadSettings(name="m.gguf", size=1, sha256="0" * 64)
    await b.sharing.admit(settings)  # both may: neither is there
    await a.add("m.gguf", models[0])
    with pytest.raises(GatehouseError) as refused:
        await b.add("m.gguf", models[1])
    assert (refused.value.status, refused.value.code) == (409, "already_exists")
    (b.state / "models").mkdir(exist_ok=True)
    (b.state / "models" / "m.gguf").write_bytes(models[1])
    b.library._shelf.forget()
    await b.library.checksum("m.gguf")
    await b.sharing.added(settings)
    await eventually(lambda: b.sharing._refused.get("m.gguf"))
    assert (await b.shown("m.gguf"))["state"] == "differs" and b.has("m.gguf") == models[1]
    with pytest.raises(NotFound):
        await b.sharing.contents("n.gguf")


async def test_a_deletion_at_a_replica_that_has_no_copy_is_one_at_all(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    b.engines = [("e", "m.gguf")]
    with pytest.raises(GatehouseError) as used:
        await b.library.remove("m.gguf", version=None, dry_run=False)
    b.engines = []
    with pytest.raises(GatehouseError) as versioned:
        await b.library.remove("m.gguf", version="1", dry_run=False)
    tried = await b.library.remove("m.gguf", version=None, dry_run=True)
    assert (used.value.code, versioned.value.status) == ("in_use", 412)
    assert (await a.shown("m.gguf"))["state"] == "here", "nothing was deleted so far"
    gone = await b.library.remove("m.gguf", version=None, dry_run=False)
    assert gone == tried and (gone["source"], gone["size"]) == ("elsewhere", len(models[0]))
    await eventually(lambda: a.told("model_withdrawn"))
    assert a.has("m.gguf") is None
    for name in ("m.gguf", "never.gguf", "../m.gguf"):
        with pytest.raises(NotFound):
            await b.library.remove(name, version=None, dry_run=False)


async def test_a_replica_that_is_away_is_asked_last_and_can_be_forgotten(
    make: Callable[..., Replica], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await make("a").start(), await make("b").start()
    await a.add("m.gguf", models[0])
    digest = (await a.shown("m.gguf"))["digest"]
    monkeypatch.setattr(model_copies, "AWAY_SECONDS", -1e9)  # all are
    for name in ("dead", "old"):
        await a.stored.hold("m.gguf", digest, name, "127.0.0.1:1")
    assert (await a.shown("m.gguf"))["away"] == ["a", "dead", "old"]
    monkeypatch.setattr(model_copies, "AWAY_SECONDS", 1e9)
    shared = (await a.stored.every())["m.gguf"]
    away = tuple(replace(copy, away=copy.replica != "a") for copy in shared.copies)
    assert b.sharing._holders(replace(shared, copies=away))[0].replica == "a"
    for name, status in (("dead", 409), ("a", 409), ("nobody", 404)):
        with pytest.raises(GatehouseError) as refused:
            await a.sharing.forget(name)
        assert refused.value.status == status
    monkeypatch.setattr(model_copies, "AWAY_SECONDS", -1e9)
    assert await a.sharing.forget("dead", dry_run=True) == 1
    assert await a.sharing.forget("dead") == 1
    monkeypatch.setattr(model_copies, "KEPT_SECONDS", -1e9)
    await a.end()
    await a.stored.forget()
    assert (await a.stored.every())["m.gguf"].copies == (), "after their time without being asked for"


async def test_what_a_replica_of_an_earlier_release_has_is_kept(make: Callable[..., Replica], models: list[bytes]) -> None:
    """It runs on during an upgrade: it writes its copies, and not when it was seen."""
    a = await make("a").start()
    await a.add("m.gguf", models[0])
    digest = (await a.shown("m.gguf"))["digest"]
    await a.end()
    await a.stored.hold("m.gguf", digest, "old", "127.0.0.1:1")
    await a.stored._database.run(
        lambda connection: connection.execute(update(model_copies.copies).values(seen=0.0).where(model_copies.copies.c.replica == "old")),
        write=True,
    )
    assert not any(copy.away for copy in (await a.stored.every())["m.gguf"].copies) and await a.stored.leave("old") is None
    await a.stored.forget()
    (old,) = [copy for copy in (await a.stored.every())["m.gguf"].copies if copy.replica == "old"]
    assert not old.away and old.seen > 0.0


async def test_a_gateway_of_another_store_is_given_nothing(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b", secret=b"x" * 32).start()
    await a.add("m.gguf", models[0])
    b.wants("m.gguf")
    await eventually(lambda: b.told("model_fetch_failed"))
    assert b.has("m.gguf") is None


async def test_all_are_fetched_where_that_is_wished_a_few_at_a_time(make: Callable[..., Replica], models: list[bytes]) -> None:
    a, b = await make("a").start(), await make("b", fetch="all", parallel=1).start()
    most = 0
    for number in range(3):
        await a.add(f"m{number}.gguf", models[0])

    def all_there() -> bool:
        nonlocal most
        most = max(most, len(b.sharing._arrivals))
        return all(b.has(f"m{number}.gguf") == models[0] for number in range(3))

    await eventually(all_there)
    assert most == 1
