"""A disk that is really full while a model file is sent: 507, what had arrived stays, and the upload goes on when there is room."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from gateway.core.clock import SystemClock
from gateway.core.errors import GatehouseError
from gateway.core.modelfiles import UploadSettings
from gateway.core.specs import UploadsSpec
from loadtests.llamacpp.random_gguf import Shape, write
from tests.integration.disk import Disk, disk_of

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
