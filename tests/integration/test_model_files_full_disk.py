# ruff: noqa: F811 - fixtures of pytest that are imported
"""A disk that is really full while a model file is sent: 507, what had arrived stays, and the upload goes on when there is room. And a
directory that replicas share which is full."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engines.host.catalogue import graves, install
from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from gateway.core.clock import SystemClock
from gateway.core.errors import GatehouseError
from gateway.core.modelfiles import UploadSettings
from gateway.core.specs import UploadsSpec
from loadtests.llamacpp.random_gguf import Shape, write
from tests.integration.disk import Disk, disk_of
from tests.unit.gateway.app.shared_models.test_directory import Clock, Neighbour, clock, make, pair  # noqa: F401 - fixtures
from tests.unit.gateway.app.shared_models.test_sharing import models  # noqa: F401 - a fixture

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SMALL, LARGE = 2 * 1024 * 1024, 32 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_of(tmp_path / "disk", SMALL, LARGE) as disk:
        yield disk


async def parts(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 65536):
        yield data[at : at + 65536]


async def test_an_upload_waits_for_room(small_disk: Disk, tmp_path: Path) -> None:
    place, grow = small_disk
    shape = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)
    data = write(tmp_path / "m.gguf", shape).read_bytes().ljust(SMALL * 2, b"\0")
    digest = hashlib.sha256(data).hexdigest()
    bounds, places = UploadsSpec(reserve_bytes=0), (Place(place / "models", "registry"),)
    library = Library(place, lambda: places, lambda: bounds, lambda: [], SystemClock())
    await library.start()
    free = library._quarantine.free
    if free() < len(data):
        with pytest.raises(GatehouseError) as early:  # said before a byte is sent
            await library.begin(UploadSettings(name="m.gguf", size=len(data), sha256=digest), actor="t/k", dry_run=False)
        assert (early.value.status, early.value.code) == (507, "insufficient_storage")
    library._quarantine.free = lambda: LARGE  # type: ignore[method-assign] # somebody else takes the room afterwards
    begun = await library.begin(UploadSettings(name="m.gguf", size=len(data), sha256=digest), actor="t/k", dry_run=False)
    with pytest.raises(GatehouseError) as full:
        await library.append(begun["id"], 0, len(data), parts(data))
    assert (full.value.status, full.value.code) == (507, "insufficient_storage")
    offset = library.upload(begun["id"])["offset"]
    assert 0 < offset < len(data) and (place / "quarantine" / begun["id"] / "data").stat().st_size == offset
    grow()
    await library.append(begun["id"], offset, None, parts(data[offset:]))
    assert (await library.complete(begun["id"], dry_run=False))["sha256"] == digest
    assert (place / "models" / "m.gguf").stat().st_size == len(data)
    await library.aclose()


@pytest.fixture
def full_place(tmp_path: Path) -> Iterator[Path]:
    """The directory that the replicas share."""
    with disk_of(tmp_path / "shared", SMALL, LARGE) as disk:
        yield disk[0]


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, check=lambda error: error.errno in FULL):
        while True:
            file.write(bytes(4096))


async def test_a_shared_directory_that_is_full_refuses_models_and_lets_them_be_deleted(
    full_place: Path, pair: tuple[Neighbour, Neighbour], models: list[bytes], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    await a.add("m.gguf", models[0])
    fill(full_place / "filler")
    real = install.free(a.library._quarantine, a.shared, []) < len(models[1])  # else it is but a limit of this process
    with pytest.raises(GatehouseError) as full:
        await b.add("n.gguf", models[1] if real else models[1].ljust(SMALL * 2, b"\0"))
    assert (full.value.status, full.value.code) == (507, "insufficient_storage")
    if real:  # it was sent when there was room
        b.library._quarantine.free = lambda: LARGE  # type: ignore[method-assign]
        elsewhere = install._other_device
        beside = b.library._quarantine.root
        monkeypatch.setattr(install, "_other_device", lambda source, registry: source != beside and elsewhere(source, registry))
        with pytest.raises(GatehouseError) as later:
            await b.add("n.gguf", models[1])
        assert later.value.status == 507 and not list(a.shared.glob(f"{install.INCOMING}*")) and len(b.library.uploads()) == 1
    await b.delete("m.gguf")
    assert a.has("m.gguf") is None and len(a.graves) == 1
    (full_place / "filler").unlink()
    clock.ahead += 3600.0
    await b.directory._tend(tidy=True)
    assert a.graves == [] and (a.shared / graves.FOLDER / graves.SPARE).stat().st_size == graves.SPARE_BYTES
    await a.add("n.gguf", models[1])
