"""The library on an event loop: conflicts, bounds, expiry, two at once, what a failure leaves, and that nothing blocks the loop."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engines.host.catalogue import install, library, quarantine
from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from gateway.core.clock import FakeClock
from gateway.core.errors import AlreadyExists, GatehouseError, NotFound, VersionMismatch
from gateway.core.modelfiles import UploadSettings
from gateway.core.specs import ModelSignaturesSpec, UploadsSpec
from loadtests.llamacpp.random_gguf import Shape, metadata, write
from tests.modelsigning import OTHER, pem, signature
from tests.waiting import reached

SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE).read_bytes()


class World:
    """A library with its surroundings in the open."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        self.shared = root / "shared"
        self.settings = UploadsSpec(max_bytes=10_000_000, max_open=3, reserve_bytes=0, expire_after=100.0)
        self.engines: list[tuple[str, str]] = []
        self.clock = FakeClock(wall=time.time())
        self.signatures = ModelSignaturesSpec()
        self.library = self.made()

    def made(self, idle: float = 20.0) -> Library:
        places = (Place(self.state / "models", "registry"), Place(self.shared, "directory"))
        return Library(
            self.state, lambda: places, lambda: self.settings, lambda: self.engines, self.clock, idle, signatures=lambda: self.signatures
        )

    async def restart(self) -> None:
        await self.library.aclose()
        self.library = self.made()
        await self.library.start()

    async def begin(self, name: str, data: bytes, **more: Any) -> str:
        settings = UploadSettings(name=name, size=len(data), **{"sha256": hashlib.sha256(data).hexdigest(), **more})
        return str((await self.library.begin(settings, actor="t/k", dry_run=False))["id"])

    async def append(self, id: str, data: bytes, offset: int = 0) -> int:
        return int((await self.library.append(id, offset, len(data), parts(data)))["offset"])

    async def add(self, name: str, data: bytes, **more: Any) -> dict[str, Any]:
        id = await self.begin(name, data, **more)
        await self.append(id, data)
        return await self.library.complete(id, dry_run=False)

    @property
    def waiting(self) -> list[str]:
        return sorted(p.name for p in (self.state / "quarantine").iterdir())


async def parts(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def refused(call: Any, status: int, code: str) -> GatehouseError:
    with pytest.raises(GatehouseError) as caught:
        await call
    assert (caught.value.status, caught.value.code) == (status, code), caught.value
    return caught.value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.library.start()
    yield made
    await made.library.aclose()


async def test_an_upload_becomes_a_model(world: World, model: bytes) -> None:
    view = await world.add("m.gguf", model)
    assert (view["name"], view["source"], view["sha256"], view["problem"]) == (
        "m.gguf", "registry", hashlib.sha256(model).hexdigest(), None,
    )  # fmt: skip
    assert (world.state / "models" / "m.gguf").read_bytes() == model and not world.waiting and not world.library.uploads()
    await world.restart()
    assert [item["name"] for item in (await world.library.models())["items"]] == ["m.gguf"]
    assert (await world.library.model("m.gguf"))["sha256"] == view["sha256"]


@pytest.mark.parametrize("kind", ["bytes", "truncated", "noise", "part", "not a part"])
async def test_what_is_not_what_was_promised_is_refused_and_deleted(world: World, model: bytes, tmp_path: Path, kind: str) -> None:
    split = write(tmp_path / "s.gguf", SHAPE, values={**metadata(SHAPE), "split.no": 0, "split.count": 2}).read_bytes()
    name, data, more, code = {
        "bytes": ("m.gguf", model, {"sha256": "0" * 64}, "checksum_mismatch"),
        "truncated": ("m.gguf", model[:-5000], {}, "model_invalid"),
        "noise": ("m.onnx", b"noise", {}, "model_invalid"),
        "part": ("m.gguf", split, {}, "model_invalid"),
        "not a part": ("m-00001-of-00002.gguf", model, {}, "model_invalid"),
    }[kind]
    id = await world.begin(name, data, **more)
    await world.append(id, data)
    error = await refused(world.library.complete(id, dry_run=False), 422, code)
    assert str(world.root) not in error.message
    assert not world.waiting and not list((world.state / "models").glob("*"))
    with pytest.raises(NotFound):
        world.library.upload(id)


async def test_names_that_are_taken_are_refused(world: World, model: bytes) -> None:
    world.shared.mkdir()
    (world.shared / "shared.gguf").write_bytes(model)
    await world.add("m.gguf", model)
    with pytest.raises(AlreadyExists):
        await world.begin("m.gguf", model)
    await refused(world.begin("shared.gguf", model, replace=True), 409, "read_only")
    world.engines = [("chat", str((world.state / "models" / "m.gguf").resolve()))]
    error = await refused(world.begin("m.gguf", model, replace=True), 409, "in_use")
    assert "chat" in error.message
    assert (await world.library.model("m.gguf"))["used_by"] == ["chat"]


async def test_replacing_is_all_or_nothing(world: World, model: bytes, tmp_path: Path) -> None:
    other = write(tmp_path / "o.gguf", SHAPE, seed=2).read_bytes()
    await world.add("m.gguf", model)
    assert (await world.add("m.gguf", other, replace=True))["sha256"] == hashlib.sha256(other).hexdigest()
    id = await world.begin("m.gguf", model, replace=True)
    await world.append(id, model)
    world.engines = [("chat", str(world.state / "models" / "m.gguf"))]  # meanwhile
    await refused(world.library.complete(id, dry_run=False), 409, "in_use")
    assert world.library.upload(id)["offset"] == len(model)  # it may be completed later
    world.engines = []
    assert (await world.library.complete(id, dry_run=False))["sha256"] == hashlib.sha256(model).hexdigest()


async def test_two_of_one_name_at_once(world: World, model: bytes) -> None:
    ids = [await world.begin("m.gguf", model) for _ in range(2)]
    await asyncio.gather(*(world.append(id, model) for id in ids))
    done = await asyncio.gather(*(world.library.complete(id, dry_run=False) for id in ids), return_exceptions=True)
    assert sorted(type(d).__name__ for d in done) == ["AlreadyExists", "dict"]
    assert len(world.library.uploads()) == 1


async def test_one_writer_at_a_time(world: World, model: bytes) -> None:
    id, gate = await world.begin("m.gguf", model), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield model[:100]
        await gate.wait()
        yield model[100:]

    writing = asyncio.ensure_future(world.library.append(id, 0, None, slowly()))
    while not world.library._busy:
        await asyncio.sleep(0)
    for call in (world.append(id, model), world.library.complete(id, dry_run=False), world.library.abandon(id, dry_run=False)):
        await refused(call, 409, "upload_busy")
    world.clock.advance(1000)
    await world.library.expire()  # does not touch what is being written
    gate.set()
    assert (await writing)["offset"] == len(model)
    first, second = await asyncio.gather(*(world.library.complete(id, dry_run=False) for _ in range(2)))
    assert first == second  # one verification, two callers


async def test_what_came_before_a_cut_is_kept(world: World, model: bytes) -> None:
    id = await world.begin("m.gguf", model)

    async def cut() -> AsyncIterator[bytes]:
        yield model[:1000]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await world.library.append(id, 0, len(model), cut())
    assert world.library.upload(id)["offset"] == 1000
    await world.restart()
    error = await refused(world.append(id, model), 409, "offset_mismatch")
    assert dict(error.headers) == {"upload-offset": "1000"}
    await refused(world.library.complete(id, dry_run=False), 409, "upload_incomplete")
    await world.append(id, model[1000:], 1000)
    assert (await world.library.complete(id, dry_run=False))["sha256"] == hashlib.sha256(model).hexdigest()


async def test_a_caller_that_is_cancelled_leaves_whole_pieces(world: World, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PIECE", 1000)
    id = await world.begin("m.gguf", model)

    async def endless() -> AsyncIterator[bytes]:
        yield model[:5000]
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(world.library.append(id, 0, None, endless()))
    while not world.library.upload(id)["offset"]:
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert world.library.upload(id)["offset"] == 5000
    await world.append(id, model[5000:], 5000)
    await world.library.complete(id, dry_run=False)


async def test_a_sender_that_says_nothing_is_not_waited_for(tmp_path: Path, model: bytes) -> None:
    world = World(tmp_path)
    world.library = world.made(idle=0.05)
    id = await world.begin("m.gguf", model)

    async def silent() -> AsyncIterator[bytes]:
        yield model[:10]
        await asyncio.Event().wait()

    await refused(world.library.append(id, 0, None, silent()), 408, "request_timeout")
    assert world.library.upload(id)["offset"] == 10
    await world.library.aclose()


async def test_bounds(world: World, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    world.settings = UploadsSpec(max_bytes=len(model), max_open=2, reserve_bytes=0)
    await refused(world.begin("m.gguf", model + b"x"), 413, "request_too_large")
    id = await world.begin("m.gguf", model)
    await refused(world.append(id, model + b"x"), 413, "request_too_large")
    await refused(world.library.append(id, 0, None, parts(model + b"x")), 413, "request_too_large")
    assert world.library.upload(id)["offset"] <= len(model)
    free = 3 * len(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(free, 0, free))  # type: ignore[attr-defined]
    world.settings = UploadsSpec(max_bytes=len(model), max_open=2, reserve_bytes=free)
    await refused(world.begin("n.gguf", model), 507, "insufficient_storage")
    world.settings = UploadsSpec(max_bytes=len(model), max_open=2, reserve_bytes=0)
    await world.begin("n.gguf", model)
    await refused(world.begin("o.gguf", model), 409, "too_many_uploads")


async def test_a_full_disk_keeps_the_offset(world: World, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    id, real = await world.begin("m.gguf", model), os.pwrite

    def full(descriptor: int, data: Any, at: int) -> int:
        real(descriptor, data[:7], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(quarantine.os, "pwrite", full)
    await refused(world.append(id, model), 507, "insufficient_storage")
    assert world.library.upload(id)["offset"] == 0
    monkeypatch.setattr(quarantine.os, "pwrite", real)
    await world.append(id, model)
    await world.library.complete(id, dry_run=False)


@pytest.mark.parametrize("failing", ["link", "fsync"])
async def test_a_failure_while_installing_keeps_the_upload(
    world: World, model: bytes, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    id = await world.begin("m.gguf", model)
    await world.append(id, model)
    real = getattr(os, failing)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(install.os, failing, fail)
    await refused(world.library.complete(id, dry_run=False), 500, "storage_failed")
    monkeypatch.setattr(install.os, failing, real)
    assert world.library.upload(id)["state"] == "receiving" and world.library.upload(id)["offset"] == len(model)
    assert (await world.library.complete(id, dry_run=False))["problem"] is None


async def test_a_file_system_without_links(world: World, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(install.os, "link", fail)
    assert (await world.add("m.gguf", model))["problem"] is None
    with pytest.raises(AlreadyExists):
        await world.begin("m.gguf", model)


async def test_another_file_system_is_copied_to(world: World, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Path] = []
    real = install.bring
    monkeypatch.setattr(install, "bring", lambda upload, source, *at: called.append(source) or real(upload, source, *at))
    shm = Path("/dev/shm") / f"gatehouse-test-{os.getpid()}"
    shm.mkdir()
    try:
        if shm.stat().st_dev == world.root.stat().st_dev:
            monkeypatch.setattr(install, "_other_device", lambda *_: True)
        world.state.mkdir(exist_ok=True)
        (world.state / "models").symlink_to(shm, target_is_directory=True)
        assert (await world.add("m.gguf", model))["problem"] is None
        assert called and sorted(p.name for p in shm.iterdir()) == ["m.gguf"]
        await world.library.remove("m.gguf", version=None, dry_run=False)
        await reached(lambda: not list(shm.iterdir()) and not world.waiting)
    finally:
        shutil.rmtree(shm)


async def test_abandoned_uploads_expire(world: World, model: bytes) -> None:
    old = await world.begin("old.gguf", model)
    world.clock.advance(60)
    new = await world.begin("new.gguf", model)
    world.clock.advance(60)
    await world.library.expire()
    assert [u["id"] for u in world.library.uploads()] == [new] and world.waiting == [new]
    await refused(world.append(old, model), 404, "not_found")
    await world.library.abandon(new, dry_run=True)
    await world.library.abandon(new, dry_run=False)
    assert not world.waiting


async def test_removing(world: World, model: bytes) -> None:
    view = await world.add("m.gguf", model)
    with pytest.raises(VersionMismatch):
        await world.library.remove("m.gguf", version="other", dry_run=False)
    await world.library.remove("m.gguf", version=view["version"], dry_run=True)
    world.engines = [("chat", str(world.state / "models" / "m.gguf"))]
    await refused(world.library.remove("m.gguf", version=None, dry_run=False), 409, "in_use")
    world.engines = []
    await world.library.remove("m.gguf", version=view["version"], dry_run=False)
    with pytest.raises(NotFound):
        await world.library.model("m.gguf")
    await reached(lambda: not world.waiting)


async def test_a_split_model_part_by_part(world: World, tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{n}", SHAPE, values={**(metadata(SHAPE) if n == 0 else {}), "split.no": n, "split.count": 2}).read_bytes()
        for n in range(2)
    ]
    first = await world.add("s-00001-of-00002.gguf", files[0])
    assert "missing: 2" in str(first["problem"])
    id = await world.begin("s-00002-of-00002.gguf", files[1])
    await world.append(id, files[1])
    await world.library.complete(id, dry_run=False)
    whole = await world.library.model("s-00001-of-00002.gguf")
    assert (whole["problem"], whole["format"], whole["files"]) == (None, "split", 2)
    assert whole["parameters"] == 2 * (SHAPE.parameters + 96)
    world.engines = [("e", str(world.state / "models" / "s-00001-of-00002.gguf"))]
    await refused(world.begin("s-00002-of-00002.gguf", files[1], replace=True), 409, "in_use")


async def test_broken_files_are_listed_with_their_reason(world: World, model: bytes) -> None:
    (world.state / "models").mkdir(parents=True)
    (world.state / "models" / "broken.gguf").write_bytes(model[:100])
    (world.state / "models" / "good.gguf").write_bytes(model)
    found = {item["name"]: item for item in (await world.library.models())["items"]}
    assert "truncated" in found["broken.gguf"]["problem"] and found["good.gguf"]["problem"] is None
    assert found["good.gguf"]["sha256"] is None
    assert (await world.library.checksum("good.gguf"))["sha256"] == hashlib.sha256(model).hexdigest()


async def test_what_is_not_signed_where_signatures_are_required_does_not_arrive(world: World, model: bytes, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    world.library.on_refused = lambda name, why: told.append((name, why))
    (tmp_path / "vendor.pem").write_bytes(pem())
    (tmp_path / "m.gguf").write_bytes(model)
    await world.add("before.gguf", model, signature="{}")
    world.signatures = ModelSignaturesSpec(keys=(str(tmp_path / "vendor.pem"),), required=True)
    for given, why in (
        (None, "has no signature"),
        (signature(tmp_path / "m.gguf", OTHER), "made with another key"),
        ("{}", "not a bundle"),
    ):
        error = await refused(world.add("m.gguf", model, signature=given), 422, "model_untrusted")
        assert "'m.gguf'" in error.message and "vendor.pem" in error.message and why in error.message
        assert told[-1] == ("m.gguf", error.message)
    assert not world.waiting and not (world.state / "models" / "m.gguf").exists()
    view = await world.add("m.gguf", model, signature=signature(tmp_path / "m.gguf"))
    assert [part["name"] for part in view["parts"]] == ["m.gguf", "m.gguf.sig"] and all(part["sha256"] for part in view["parts"])
    assert (view["format"], view["files"]) == ("file", 1)
    (local,) = [one for one in await world.library.local() if one.name == "m.gguf"]
    assert local.files is not None and [file.path for file in local.files] == ["m.gguf", "m.gguf.sig"]
    path, listed = await world.library.contents("m.gguf")
    assert [one[0].name for one in listed] == ["m.gguf", "m.gguf.sig"]
    assert world.library.trust.loading(str(path), {}, lambda: True) is not None
    await world.library.remove("m.gguf", version=None, dry_run=False)
    assert sorted(os.listdir(world.state / "models")) == ["before.gguf", "before.gguf.sig"]
    world.signatures = ModelSignaturesSpec()
    await world.add("before.gguf", model, replace=True)
    assert os.listdir(world.state / "models") == ["before.gguf"], "the signature of what was replaced goes with it"
