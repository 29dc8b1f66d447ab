"""Model files on their way to a machine, over its real ear for orders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.joined.orders import Orders
from gateway.app.joined.received import ReceivedFiles
from gateway.app.joined.sending import Refused, Sending
from gateway.config.expand import OnMachine
from gateway.core.errors import EngineError
from gateway.core.host_port import HostPort
from gateway.core.placing import PIECE, Order, Received, SentFile
from gateway.core.specs.base import ClientTlsSpec
from gateway.transport.pool import EndpointClient

SIZE = PIECE + 100_000


class Ear:
    def __init__(self, folder: Path, short: Path, most: int = 64 * 1024 * 1024) -> None:
        self.needed: set[str] = set()
        self.files = ReceivedFiles(folder / "received", most, lambda: self.needed)
        self.orders = Orders(short / "o.sock", self.files, None)  # type: ignore[arg-type] # it gets no order here
        self.sending = Sending(OnMachine("gpu-1", "orders.gpu-1.joined.gatehouse", HostPort("127.0.0.1", 9), ClientTlsSpec()))
        self.sending._client = EndpointClient(f"unix:{short / 'o.sock'}")

    async def start(self) -> None:
        await self.files.start()
        self.orders.start()

    async def aclose(self) -> None:
        await self.sending.aclose()
        await self.orders.aclose()
        await self.files.aclose()


@pytest.fixture
async def ear(tmp_path: Path, short_path: Path) -> AsyncIterator[Ear]:
    made = Ear(tmp_path, short_path)
    await made.start()
    yield made
    await made.aclose()


def made(folder: Path, content: bytes) -> tuple[Path, str]:
    path = folder / "m.gguf"
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


async def parts(*given: bytes) -> AsyncIterator[bytes]:
    for one in given:
        yield one


async def test_a_file_is_sent_once_and_goes_on_from_where_it_broke_off(ear: Ear, tmp_path: Path, short_path: Path) -> None:
    content = os.urandom(SIZE)
    path, sha256 = made(tmp_path, content)
    assert await ear.files.append(sha256, SIZE, 0, parts(content[:70_000])) == Received(offset=70_000)
    assert await ear.sending.file(path, SIZE, sha256) == SIZE - 70_000
    assert (tmp_path / "received" / "files" / sha256).read_bytes() == content
    assert await ear.sending.file(path, SIZE, sha256) == 0, "it is there"
    again = Ear(tmp_path, short_path)
    await again.files.start()
    assert again.files.has(sha256, SIZE) and again.files.used == SIZE


async def test_what_has_another_checksum_is_deleted(ear: Ear, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path, b"something else")
    with pytest.raises(Refused) as refused:
        await ear.sending.file(path, 14, hashlib.sha256(b"what was promised").hexdigest())
    assert refused.value.code == "checksum_mismatch" and ear.files.used == 0
    with pytest.raises(Refused) as refused:
        await ear.sending.file(path, 20, sha256)
    assert refused.value.code == "model_invalid", "the file is shorter than was said"


async def test_files_that_nothing_uses_make_room_and_no_others(tmp_path: Path, short_path: Path) -> None:
    ear = Ear(tmp_path, short_path, most=250_000)
    await ear.start()
    try:
        kept, gone = made(tmp_path, b"a" * 100_000), None
        await ear.sending.file(kept[0], 100_000, kept[1])
        gone = made(tmp_path, b"b" * 100_000)
        await ear.sending.file(gone[0], 100_000, gone[1])
        ear.needed = {kept[1]}
        third = made(tmp_path, b"c" * 120_000)
        await ear.sending.file(third[0], 120_000, third[1])
        assert {file.name for file in (tmp_path / "received" / "files").iterdir()} == {kept[1], third[1]}
        ear.needed = {kept[1], third[1]}
        with pytest.raises(Refused) as refused:
            await ear.sending.file(gone[0], 100_000, gone[1])
        assert refused.value.code == "insufficient_storage"
    finally:
        await ear.aclose()


async def test_a_machine_that_cannot_be_reached(ear: Ear, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path, b"x")
    await ear.orders.aclose()
    with pytest.raises((EngineError, TimeoutError)):
        await ear.sending.file(path, 1, sha256)


async def test_an_orders_files_are_laid_out_as_its_paths_say(ear: Ear, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path, b"weights")
    await ear.sending.file(path, 7, sha256)
    files = tuple(SentFile(path=name, size=7, sha256=sha256) for name in ("embed/model.onnx", "embed/onnx/model.onnx_data"))
    order = Order(fence=1, revision="a" * 32, runtime="onnx", model="embed", files=files)
    folder = await ear.files.laid_out(order)
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()) == [
        "model.onnx",
        "onnx/model.onnx_data",
    ]
    assert await ear.files.laid_out(order) == folder
    await ear.files.taken_down(order.revision)
    assert not folder.exists() and ear.files.has(sha256, 7)
